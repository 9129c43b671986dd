"""The base of every config section, and the section `parallel`."""
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt


class Section(BaseModel):
    """One section of a run's config: unknown keys and wrong types are refused, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class TopologyConfig(Section):
    """The machines that a plan is meant for; only estimates, the check of memory and fusion_mb=auto read it.

    The defaults are what data sheets say of nodes with eight Ascend 910B of 64 GB; nothing here was measured.
    compute_efficiency is an assumption: published runs on GPUs come to 0.41 to 0.57 (parallel/README.md, "Weak scaling").
    """

    ranks_per_node: int = Field(8, ge=1, description="devices of one node")
    device_memory_gb: float = Field(64.0, gt=0, description="memory of one device, GB (1e9 bytes)")
    device_tflops: float = Field(313.0, gt=0, description="peak of one device in matrix products of 16 bits, TFLOP/s")
    compute_efficiency: float = Field(0.5, gt=0, le=1, description="share of the peak that matrix products reach")
    node_bandwidth_gbs: float = Field(150.0, gt=0, description="a rank's bandwidth to others of its node, GB/s each way")
    node_latency_us: float = Field(10.0, ge=0, description="start of one transfer inside a node, microseconds")
    network_bandwidth_gbs: float = Field(20.0, gt=0, description="a rank's bandwidth to other nodes, GB/s each way")
    network_latency_us: float = Field(30.0, ge=0, description="start of one transfer between nodes, microseconds")


class ParallelConfig(Section):
    """How the ranks are laid out: world_size = dp * tp * pp."""

    dp: Literal["auto"] | PositiveInt = Field("auto", description="data-parallel ranks; auto: world size / (tp * pp)")
    tp: int = Field(1, ge=1, description="tensor-parallel ranks")
    pp: int = Field(1, ge=1, description="pipeline stages")
    num_micro_batches: Literal["auto"] | PositiveInt = Field(
        "auto", description="micro-batches in a step of a rank; auto: global_batch_size / (dp * micro_batch_size)")
    virtual_stages: int = Field(1, ge=1, description="parts of each stage, interleaved; 1: the plain 1F1B schedule")
    stage_layers: Literal["auto"] | Annotated[tuple[PositiveInt, ...], Field(strict=False)] = Field(
        "auto", description="layers of each stage in order (pp * virtual_stages numbers); auto: balanced")
    sequence_parallel: bool = Field(False, description="split norms and residual stream over tp along the sequence")
    optimizer_sharding: bool = Field(False, description="split weights and moments over dp (MindSpore's hsdp)")
    optimizer_sharding_threshold_kb: int = Field(64, ge=0, description="smaller parameters are not split")
    recompute: Literal["none", "selective", "full"] = Field(
        "none", description="activations computed again in the backward pass: selective: attention's scores; full: whole blocks")
    recompute_layers: Literal["all"] | Annotated[tuple[NonNegativeInt, ...], Field(strict=False)] = Field(
        "all", description="indices of the blocks that recompute")
    fusion_mb: Literal["auto"] | NonNegativeInt = Field(
        "auto", description="gradient and parameter collectives are fused up to this size; 0: not; auto: with which the estimate "
                            "for `topology` is shortest")
    topology: TopologyConfig = TopologyConfig()
