"""Every collective of one training step, as one rank sees it."""
import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from parallel.cost.parameters import TABLE, Parameter, embedding, stage_kinds
from parallel.cost.sizes import Plan, Sizes
from parallel.mesh import Mesh


@dataclass(frozen=True)
class Traffic:
    """`count` equal transfers in one step.

    kind: AllReduce, AllGather, ReduceScatter, Send or Receive. group: the ranks that take part: tp, dp, "dp x tp" (all ranks of a
    stage), pp (one rank of another stage) or all; of names for the same ranks the first. bytes: the whole tensor of one transfer:
    what AllReduce and Send are given, what AllGather gives, what ReduceScatter is given. when: in each micro-batch; once a step;
    or as gradients and weights, once a step, which may be fused and may overlap with computation.
    """

    kind: str
    group: str
    count: int
    bytes: int
    what: str
    when: Literal["micro-batch", "step", "gradients", "weights"] = "micro-batch"

    @property
    def total(self) -> int:
        """Bytes of all transfers."""
        return self.count * self.bytes


def group_size(plan: Plan, group: str) -> int:
    """Ranks of a group."""
    mesh = plan.mesh
    return {"tp": mesh.tp, "dp": mesh.dp, "dp x tp": mesh.dp * mesh.tp, "pp": 2, "all": mesh.world_size}[group]


def members(mesh: Mesh, group: str) -> tuple[int, ...]:
    """The ranks of mesh.rank's group; not for pp, where each rank of a stage has its partners before and after it."""
    first = mesh.stage * mesh.dp * mesh.tp
    return {"tp": tuple(range(mesh.rank - mesh.tp_rank, mesh.rank - mesh.tp_rank + mesh.tp)),
            "dp": tuple(range(first + mesh.tp_rank, first + mesh.dp * mesh.tp, mesh.tp)),
            "dp x tp": tuple(range(first, first + mesh.dp * mesh.tp)),
            "all": tuple(range(mesh.world_size))}[group]


def communication(sizes: Sizes, plan: Plan, stage: int) -> list[Traffic]:
    """The collectives of one step of any rank of a stage: exactly those that MindSpore 2.10 compiles, before it fuses them."""
    micro, mesh = plan.num_micro_batches, plan.mesh
    within = [replace(t, count=t.count * micro)
              for t in [*_blocks(sizes, plan, stage), *_ends(sizes, plan, stage), *_boundaries(sizes, plan, stage)]]
    norms = sum(n for s in range(mesh.pp) for _, n in stage_kinds(sizes, plan, s)) if plan.clips_each else 1
    step = [*_inputs(sizes, plan, stage), *_gradients(sizes, plan.for_weights(), stage), *_tied(sizes, plan, stage),
            Traffic("AllReduce", "all", 1, 4 * (norms + 2), "sums: squared gradients, losses, tokens", "step")]
    if stage == mesh.pp - 1:  # equal in all micro-batches: the compiler sees it where they are one graph, without a pipeline
        step.append(Traffic("AllReduce", "dp", micro if mesh.pp > 1 else 1, 4, "gradient of the sum of losses", "step"))
    same = {"dp x tp": "tp" if mesh.dp == 1 else "dp" if mesh.tp == 1 else "dp x tp"}
    same["all"] = same["dp x tp"] if mesh.pp == 1 else "all"
    return [replace(t, group=same.get(t.group, t.group)) for t in (*within, *step) if t.count and group_size(plan, t.group) > 1]


def _inputs(sizes: Sizes, plan: Plan, stage: int) -> list[Traffic]:
    """MindSpore gathers the whole batch where it is to be cut into micro-batches; dropout's masks need each sample's position."""
    if plan.mesh.pp == plan.num_micro_batches == 1:
        return []
    samples, ends = plan.mesh.dp * plan.micro_batch_size * plan.num_micro_batches, stage in (0, plan.mesh.pp - 1)
    return [Traffic("AllGather", "dp", int(ends), samples * (sizes.seq + 1) * 4, "tokens of all samples", "step"),
            Traffic("AllGather", "dp", int(sizes.dropout), samples * 4, "positions of all samples", "step")]


def _blocks(sizes: Sizes, plan: Plan, stage: int) -> list[Traffic]:
    """Of one micro-batch: a sum behind each row-parallel product, and another of its gradient.

    Megatron-LM (arXiv:1909.08053) sums the gradient before each column-parallel product instead; MindSpore differentiates the
    AllReduce into an AllReduce, and the residual stream's gradient stays a partial sum in between. There are as many of them.
    Sequence parallelism makes of each sum a ReduceScatter behind and an AllGather before (arXiv:2205.05198, section 4.2.2);
    the gathered input is kept for the weights' gradients. Recomputing repeats none of them.
    """
    count, stream = 2 * plan.num_blocks(stage), plan.rows(sizes) * sizes.hidden * plan.linear_bytes
    if not plan.mesh.sequence_parallel:
        return [Traffic("AllReduce", "tp", count, stream, "outputs of attention and MLP"),
                Traffic("AllReduce", "tp", count, stream, "gradients of these outputs")]
    return [Traffic("AllGather", "tp", count, stream, "inputs of attention and MLP"),
            Traffic("ReduceScatter", "tp", count, stream, "outputs of attention and MLP"),
            Traffic("AllGather", "tp", count, stream, "gradients of these outputs"),
            Traffic("ReduceScatter", "tp", count, stream, "gradients of the inputs")]


def _ends(sizes: Sizes, plan: Plan, stage: int) -> list[Traffic]:
    """Of one micro-batch: embedding, head and loss, the vocabulary being split over tp."""
    stream, row = plan.rows(sizes) * sizes.hidden * plan.activation_bytes, plan.rows(sizes) * 4
    traffic = []
    if stage == 0:
        # Where only the vocabulary is cut, MindSpore's Gather scatters the sum over the samples, if they divide, and gathers.
        scattered = plan.mesh.dp == 1 and plan.micro_batch_size % plan.mesh.tp == 0
        traffic += [Traffic(kind, "tp", 2, stream, "embeddings of the tokens, and their gradient")
                    for kind in (("ReduceScatter", "AllGather") if scattered else ("AllReduce",))]
    if stage == plan.mesh.pp - 1:
        if plan.mesh.sequence_parallel:
            taken = plan.rows(sizes) * sizes.hidden * plan.linear_bytes
            traffic += [Traffic("AllGather", "tp", 1, taken, "input of the head"),
                        Traffic("ReduceScatter", "tp", 1, taken, "gradient of the head's input")]
        traffic += [Traffic("AllReduce", "tp", 6, row, "largest logit, sum of exponentials, label's logit, and their gradients"),
                    Traffic("AllReduce", "dp", 2, 4, "sum of losses, number of tokens")]
    return traffic


def _boundaries(sizes: Sizes, plan: Plan, stage: int) -> list[Traffic]:
    """Of one micro-batch: at each boundary between parts the stream goes forward and its gradient back."""
    parts, held = len(plan.stage_layers), range(stage, len(plan.stage_layers), plan.mesh.pp)
    before, after = sum(part > 0 for part in held), sum(part < parts - 1 for part in held)
    stream = plan.stream_rows(sizes) * sizes.hidden * plan.activation_bytes
    return [Traffic("Receive", "pp", before, stream, "activations"), Traffic("Send", "pp", after, stream, "activations"),
            Traffic("Receive", "pp", after, stream, "gradients"), Traffic("Send", "pp", before, stream, "gradients")]


@lru_cache(4096)
def _gradients(sizes: Sizes, plan: Plan, stage: int) -> list[Traffic]:
    """Before fusion, for each parameter: over dp where tp cuts it, else over all ranks of the stage."""
    traffic = []
    for p, count in stage_kinds(sizes, plan, stage):
        size, group = math.prod(p.tp_shape(plan)) * plan.weight_bytes, "dp x tp" if p.tp_axis is None else "dp"
        if p.sharded(plan):
            taken = size // plan.weight_bytes * _gathered(p, plan, stage)
            traffic += [Traffic("AllGather", group, count, taken, p.name, "weights"),
                        Traffic("ReduceScatter", group, count, size, f"gradient of {p.name}", "gradients")]
        # The last stage's part goes to the first, to be summed there; where others are sharded MindSpore sums it here as well.
        elif p.name != TABLE or stage == 0 or plan.optimizer_sharding:
            traffic.append(Traffic("AllReduce", group, count, size, f"gradient of {p.name}", "gradients"))
    return traffic


def _gathered(p: Parameter, plan: Plan, stage: int) -> int:
    """Bytes of an element of a parameter as it is gathered: MindSpore does so behind the cast to half, where there is one.

    Norms compute in float32, and the token table is gathered before it is sent to the last stage.
    """
    if "norm" in p.name or p.name == TABLE and stage > 0:
        return plan.weight_bytes
    return min(plan.weight_bytes, plan.activation_bytes if p.name.startswith("embedding.") else plan.linear_bytes)


def _tied(sizes: Sizes, plan: Plan, stage: int) -> list[Traffic]:
    """The token table goes from the first stage to the last as each rank keeps it, its gradient there goes back."""
    last = plan.mesh.pp - 1
    if last == 0 or stage not in (0, last) or not sizes.tied:
        return []
    size = math.prod(embedding(sizes)[0].local_shape(plan)) * plan.weight_bytes
    kinds = ("Send", "Receive") if stage == 0 else ("Receive", "Send")
    return [Traffic(kinds[0], "pp", 1, size, "token table", "step"),
            Traffic(kinds[1], "pp", 1, size, "gradient of the token table", "step")]
