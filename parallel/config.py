"""The base of every config section, and the section `parallel`."""
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt


class Section(BaseModel):
    """One section of a run's config: unknown keys and wrong types are refused, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ParallelConfig(Section):
    """How the ranks are laid out: world_size = dp * tp * pp."""

    dp: Literal["auto"] | PositiveInt = Field("auto", description="data-parallel ranks; auto: world size / (tp * pp)")
    tp: int = Field(1, ge=1, description="tensor-parallel ranks")
    pp: int = Field(1, ge=1, description="pipeline stages")
    num_micro_batches: Literal["auto"] | PositiveInt = Field(
        "auto", description="micro-batches in a step of a rank; auto: global_batch_size / (dp * micro_batch_size)")
