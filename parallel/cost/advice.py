"""The best plans for a number of devices, and why."""
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from parallel.config import TopologyConfig
from parallel.cost.balance import stage_layers
from parallel.cost.estimate import Estimate, best_fusion, estimate
from parallel.cost.memory import budget, peak
from parallel.cost.sizes import Plan, Sizes
from parallel.errors import UserError
from parallel.mesh import Mesh
from parallel.rules import compiles

TIE = 0.01  # plans whose rates differ by less count as equally fast: the model is not better than that
RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True)
class Candidate:
    """A plan that fits, its estimates, and (on the first of the list) why it is the first."""

    plan: Plan
    memory_bytes: float  # of the fullest stage
    estimate: Estimate
    why: tuple[str, ...] = ()


def advise(sizes: Sizes, devices: int, global_batch_size: int, topology: TopologyConfig,
           fusion_mb: int | Literal["auto"] = "auto", **given) -> list[Candidate]:
    """All plans that fit the memory, the fastest first; among equally fast ones data parallel before tensor before pipeline.

    Searched: dp x tp x pp = devices with tp inside a node, every micro-batch size that divides, recompute, sequence parallelism,
    optimizer sharding; at least as many micro-batches as stages. Raises UserError where nothing is possible, or nothing fits.

    Args:
        fusion_mb: as in the config; auto: chosen for each plan.
        given: fields of Plan that are not searched: number formats, the optimizer.
    """
    base = Plan(Mesh(1), 1, 1, (sizes.layers,), **given)
    limit, need = budget(topology), {}
    for plan in _plans(base, sizes, devices, global_batch_size, topology):
        share = global_batch_size // plan.mesh.dp
        for micro in _divisors(share // plan.mesh.pp, share):
            if plan.mesh.sequence_parallel and micro * sizes.seq % plan.mesh.tp:
                continue
            plan = replace(plan, micro_batch_size=micro, num_micro_batches=share // micro)
            if not compiles(plan):
                continue
            need[plan] = peak(sizes, plan)
            if need[plan] > limit:
                break  # larger ones need more
    if not need:
        heads = f"{sizes.heads}{f' and num_kv_heads={sizes.kv_heads}' if sizes.kv_heads else ''}"
        raise UserError(f"no plan for {devices} devices: dp * tp * pp must equal them, dp must divide train.global_batch_size="
                        f"{global_batch_size} and leave a rank at least pp samples, tp must divide model.num_heads={heads} "
                        f"and the {topology.ranks_per_node} ranks of a node, pp be at most model.num_layers={sizes.layers}")
    fitting = []
    for plan, size in need.items():
        if size <= limit:
            plan = replace(plan, fusion_mb=best_fusion(sizes, plan, topology) if fusion_mb == "auto" else fusion_mb)
            fitting.append(Candidate(plan, size, estimate(sizes, plan, topology)))
    if not fitting:
        least = min(need, key=need.get)
        raise UserError(f"no plan fits: {devices} devices have {_gb(limit)} each to use, the least that any plan needs is "
                        f"{_gb(need[least])} ({least}): take more devices or a smaller model, data.seq_length or precision")
    best, *rest = rank(fitting)
    return [replace(best, why=tuple(_why(best, fitting, need, limit))), *rest]


def rank(candidates: list[Candidate]) -> list[Candidate]:
    """By tokens/s; those within TIE of the fastest of their group by simplicity."""
    left, ranked = sorted(candidates, key=lambda c: -c.estimate.tokens_per_second), []
    while left:
        floor = left[0].estimate.tokens_per_second * (1 - TIE)
        equal = [c for c in left if c.estimate.tokens_per_second >= floor]
        ranked += sorted(equal, key=_simplicity)
        left = left[len(equal):]
    return ranked


def _simplicity(c: Candidate) -> tuple:
    plan = c.plan
    return (plan.mesh.pp, plan.mesh.tp, RECOMPUTE.index(plan.recompute), plan.optimizer_sharding, plan.mesh.sequence_parallel,
            -c.estimate.tokens_per_second)


def _plans(base: Plan, sizes: Sizes, devices: int, global_batch_size: int, topology: TopologyConfig) -> Iterator[Plan]:
    """Every plan that the rules allow, without its micro-batches."""
    cut = math.gcd(sizes.heads, sizes.kv_heads or sizes.heads, sizes.vocab, sizes.ffn, topology.ranks_per_node, devices)
    recomputes = ("none", "full") if sizes.flash else RECOMPUTE  # selective: the scores, which the fused kernel does not keep
    whole = base.optimizer == "adafactor"  # its means are over whole matrices
    for tp in [1] if whole else _divisors(cut):
        for pp in _divisors(devices // tp):
            dp = devices // tp // pp
            if pp > sizes.layers or global_batch_size % dp or global_batch_size // dp < pp:
                continue
            layers = stage_layers(sizes, pp)
            sequences, shardings = (False, True)[:1 + (tp > 1)], (False, True)[:1 + (dp > 1 and not whole)]
            for recompute, sequence, sharding in product(recomputes, sequences, shardings):
                yield replace(base, mesh=Mesh(dp, tp, pp, 0, sequence), recompute=recompute, stage_layers=layers,
                              optimizer_sharding=sharding)


def _why(best: Candidate, fitting: list[Candidate], need: dict[Plan, float], limit: float) -> Iterator[str]:
    """Against its nearest rivals: with or without tensor parallelism and pipeline, without recompute, a larger micro-batch."""
    plan = best.plan

    def against(name: str, alike: Callable[[Plan], bool]) -> str:
        rivals = [c for c in fitting if alike(c.plan)]
        if rivals:
            rival = rank(rivals)[0]
            loss = 1 - rival.estimate.tokens_per_second / best.estimate.tokens_per_second
            how = f"{loss:.0%} slower" if loss > TIE else f"as fast, within {TIE:.0%}"
            return f"{name}: {how} ({rival.plan}; {_gb(rival.memory_bytes)})"
        least = min((p for p in need if alike(p)), key=need.get, default=None)
        if least is None:
            return f"{name}: no such plan for this batch and these devices"
        return f"{name}: does not fit, at least {_gb(need[least])} of {_gb(limit)} ({least})"

    if plan.mesh.tp > 1:
        yield against("without tensor parallelism", lambda p: p.mesh.tp == 1)
    else:
        yield against("with tensor parallelism", lambda p: p.mesh.tp > 1)
    if plan.mesh.pp > 1:
        yield against("without pipeline", lambda p: p.mesh.pp == 1)
    else:
        yield against("with a pipeline", lambda p: p.mesh.pp > 1)
    if plan.recompute != "none":
        yield against("without recompute", lambda p: p.recompute == "none")

    def cut(p: Plan) -> Plan:
        """All of it but the micro-batches, and the parcels that go with them."""
        return replace(p, micro_batch_size=0, num_micro_batches=0, fusion_mb=0)

    sizes = {p.micro_batch_size for p in need if cut(p) == cut(plan)}
    if larger := min((size for size in sizes if size > plan.micro_batch_size), default=None):
        yield against(f"micro-batch {larger}", lambda p: cut(p) == cut(plan) and p.micro_batch_size == larger)


def _divisors(largest: int, of: int | None = None) -> list[int]:
    """Divisors of a number, itself being the largest unless said otherwise."""
    return [d for d in range(1, largest + 1) if (of or largest) % d == 0]


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"
