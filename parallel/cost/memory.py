"""Memory of one rank of each stage, in bytes.

Activations follow Korthikanti et al., arXiv:2205.05198, section 4, worked out anew for the cells in `model/`, and held against
what the forward graphs that MindSpore 2.10 compiles hand to their backward graphs. A row's mean and variance, token ids,
dropout's keys and other tensors without the factor `hidden` are left out.
"""
import math
from dataclasses import dataclass
from functools import lru_cache

from parallel.config import TopologyConfig
from parallel.cost.parameters import moments, stage_kinds
from parallel.cost.sizes import Plan, Sizes

WIDE = 4       # bytes of an element where norms and softmax compute: float32, whatever the rest does
RESERVE = 0.1  # share of the device for the runtime, communication buffers and fragmentation


@dataclass(frozen=True)
class StageMemory:
    """What one rank of a stage holds at its peak; bytes."""

    weights: float  # with optimizer sharding the rank's part, and the gathered whole, which lives from forward to backward
    gradients: float
    moments: float  # of the optimizer, float32, and the float32 master copy where weights have fewer bytes
    activations: float  # of all micro-batches that are alive
    logits: float  # of the loss, on the last stage
    working: float  # the backward pass of one block: its gradients, and what it computes again

    @property
    def total(self) -> float:
        """Sum of the terms."""
        return self.weights + self.gradients + self.moments + self.activations + self.logits + self.working


def budget(topology: TopologyConfig) -> float:
    """Bytes of a device that a plan may use: its memory less the reserve."""
    return topology.device_memory_gb * 1e9 * (1 - RESERVE)


def block_activations(sizes: Sizes, plan: Plan, recompute: str) -> float:
    """Bytes that one block keeps of one micro-batch.

    Two inputs of norms, as wide as the residual stream; the two outputs, which the column-parallel products read whole, with
    sequence parallelism too; query, key, value (for all heads) and the attention's result; MLP before and after GELU, or of a
    gated one both products, SiLU and what they make (tp parts); the probabilities (heads in tp parts). Dropout keeps its mask in
    the activations' format: two of the stream's shape, one of the probabilities', and the probabilities after it.

    Full recomputing keeps the block's input, what communication over tp has given (it is not repeated), and query, key, value
    and the attention's result: their reshapes count as redistribution, which MindSpore keeps with the communication.

    In half precision the inputs of LayerNorm and the softmax stay float32, and the probabilities are kept in half as well.

    Flash attention keeps no probabilities, but of each row and head the largest score and the sum, eight times each in float32;
    and it takes key and value as they are.
    """
    stream, whole, tp = plan.stream_rows(sizes) * sizes.hidden, plan.rows(sizes) * sizes.hidden, plan.mesh.tp
    keys = plan.rows(sizes) * sizes.kv_hidden if sizes.flash else whole
    heads = 2 * (whole + keys) / tp
    if recompute == "full":
        received = 0 if tp == 1 else stream + 2 * whole if plan.mesh.sequence_parallel else whole
        return (stream + received + heads) * plan.activation_bytes
    inner = (4 if sizes.gated else 2) * plan.rows(sizes) * sizes.ffn / tp
    kept = 2 * whole + heads + inner + 2 * stream * sizes.dropout
    wide = 2 * stream
    if sizes.flash:
        wide += 16 * plan.rows(sizes) * sizes.heads / tp
    elif recompute == "none":
        wide += _scores(sizes, plan)
        kept += _scores(sizes, plan) * (2 if sizes.dropout else plan.activation_bytes < WIDE)
    return kept * plan.activation_bytes + wide * WIDE


def alive_micro_batches(plan: Plan, stage: int) -> float:
    """Micro-batches whose activations a stage keeps at its peak.

    1F1B: min(pp - stage, micro-batches). Interleaved: the stage runs 2 (pp - stage - 1) + (v - 1) pp parts ahead of its first
    backward pass and holds one more (Narayanan et al., arXiv:2104.04473), each a v-th of the stage.
    """
    pp, v = plan.mesh.pp, plan.virtual_stages
    ahead = pp - stage if v == 1 else 2 * (pp - stage - 1) + (v - 1) * pp + 1
    return min(ahead, plan.num_micro_batches * v) / v


def stage_memory(sizes: Sizes, plan: Plan, stage: int) -> StageMemory:
    """The peak of one rank of a stage.

    A micro-batch's gradient is added to its accumulator as it comes. MindSpore's optimizer sharding (hsdp level 1) splits weights
    and moments, not the accumulators.
    """
    last = stage == plan.mesh.pp - 1
    computed, kept, gathered, moments_kept = _elements(sizes, plan.for_weights(), stage)
    stream, rows = plan.stream_rows(sizes) * sizes.hidden, plan.rows(sizes)
    modes = plan.recompute_of(stage)
    per_micro_batch = sum(n * block_activations(sizes, plan, mode) for mode, n in modes.items())
    if last:  # the last LayerNorm's input, and its output, which the head reads
        per_micro_batch += stream * WIDE + rows * sizes.hidden * plan.activation_bytes
    if plan.linear_bytes < WIDE:
        per_micro_batch += _products(sizes, plan, stage) * plan.linear_bytes
    if stage == 0 and sizes.dropout:
        per_micro_batch += stream * plan.activation_bytes
    again = block_activations(sizes, plan, "none") - min(block_activations(sizes, plan, mode) for mode in modes)
    wide = 2 * max(rows * sizes.ffn / plan.mesh.tp, 0 if sizes.flash else _scores(sizes, plan)) + stream
    return StageMemory(
        weights=(kept + gathered) * plan.weight_bytes,
        gradients=computed * plan.weight_bytes,
        moments=moments_kept * 4 + (0 if plan.weight_bytes == 4 else kept * 4),
        activations=per_micro_batch * alive_micro_batches(plan, stage),
        # In float32: logits, exponentials, one-hot labels; in the backward pass the gradients of the first two.
        logits=5 * 4 * rows * sizes.vocab / plan.mesh.tp if last else 0,
        working=again + wide * plan.activation_bytes)


def memory(sizes: Sizes, plan: Plan) -> list[StageMemory]:
    """The peak of one rank of each stage."""
    return [stage_memory(sizes, plan, stage) for stage in range(plan.mesh.pp)]


def peak(sizes: Sizes, plan: Plan) -> float:
    """Bytes of one rank of the fullest stage: the first of its kind."""
    return max(stage_memory(sizes, plan, stages[0]).total for stages in plan.kinds().values())


def _products(sizes: Sizes, plan: Plan, stage: int) -> float:
    """Elements of the matrices that a stage multiplies by, blocks apart that are computed again: each micro-batch casts them to
    half for itself, and keeps them for its backward pass.
    """
    block = sizes.hidden * (2 * (sizes.hidden + sizes.kv_hidden) + (2 + sizes.gated) * sizes.ffn)
    head = sizes.vocab * sizes.hidden * (stage == plan.mesh.pp - 1)
    return ((plan.num_blocks(stage) - plan.recompute_of(stage)["full"]) * block + head) / plan.mesh.tp


def _scores(sizes: Sizes, plan: Plan) -> float:
    return plan.micro_batch_size * sizes.heads * sizes.seq**2 / plan.mesh.tp


@lru_cache(4096)
def _elements(sizes: Sizes, plan: Plan, stage: int) -> tuple[int, int, int, int]:
    """Elements that one rank of a stage computes with, keeps, gathers from the others where they are sharded; of its moments."""
    computed = kept = gathered = of_moments = 0
    for p, count in stage_kinds(sizes, plan, stage):
        whole = count * math.prod(p.tp_shape(plan))
        computed, kept = computed + whole, kept + count * math.prod(p.local_shape(plan))
        gathered += whole * p.sharded(plan)
        of_moments += count * sum(math.prod(shape) for shape in moments(p, plan).values())
    return computed, kept, gathered, of_moments
