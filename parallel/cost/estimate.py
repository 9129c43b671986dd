"""Time of one training step: an estimate, from peak FLOP/s, bandwidths and latencies. It ranks plans; it promises nothing.

What overlaps with what:
- Collectives of a micro-batch, over tp, stand between products that need their results: nothing hides them.
- Gradients hide behind the backward pass of the last micro-batch, weights gathered by optimizer sharding behind the
  forward pass of the first; what is longer than these shows, and at least one parcel (see Overlap).
- Sends between stages hide behind other micro-batches, except while the pipeline fills and drains.
- A stage waits for the slowest one. Optimizer, data and host are not counted.
"""
import math
from collections import Counter
from dataclasses import astuple, dataclass, replace

from parallel.config import TopologyConfig
from parallel.cost.communication import Traffic, communication, group_size
from parallel.cost.flops import model_flops, stage_flops
from parallel.cost.sizes import Plan, Sizes

FLOAT32_SHARE = 0.25  # of the 16-bit peak, in matrix products of float32
FUSION_MB = tuple(2**n for n in range(11))  # what best_fusion chooses from: 1 to 1,024
EQUAL = 0.001  # steps that differ by less count as equally long


@dataclass(frozen=True)
class Overlap:
    """Gradients and gathered weights of one step, on the stage where most of them shows; seconds."""

    parcels: int  # transfers after fusion
    seconds: float  # all of them
    shown: float  # what no computation hides

    def __str__(self) -> str:
        hidden = f", {1 - self.shown / self.seconds:.0%} hidden" if self.seconds else ""
        return f"{self.parcels} parcels, {self.seconds:.3g} s{hidden}, {self.shown:.3g} s shown"


@dataclass(frozen=True)
class Estimate:
    """One step's expected time and its parts, which add up to it; seconds."""

    step_seconds: float
    computation: float  # of the slowest stage
    communication: float  # what nothing hides
    waiting: float  # the pipeline's bubble: filling, draining
    tokens_per_second: float  # of all ranks together
    mfu: float  # model FLOPs / (16-bit peak of all devices), 0 to 1
    transfers: dict[str, float]  # seconds of a rank's transfers by group, hidden or not, on the stage that has most
    fusion_mb: int  # size of a parcel of gradients or gathered weights
    overlap: Overlap  # of these parcels with computation

    @property
    def shares(self) -> tuple[float, float, float]:
        """Computation : communication not hidden : waiting, of 10. To be held against 7 : 2 : 1 or better."""
        return tuple(10 * t / self.step_seconds for t in (self.computation, self.communication, self.waiting))

    def __str__(self) -> str:
        ratio = " : ".join(f"{s:.1f}" for s in self.shares)
        return (f"estimate: {self.step_seconds:.3g} s a step, {self.tokens_per_second:,.0f} tokens/s, MFU {self.mfu:.0%}, "
                f"computation : communication : waiting {ratio} (7 : 2 : 1 or better is good)")


def ranks_in_node(plan: Plan, group: str, topology: TopologyConfig) -> int:
    """Ranks of a group that share a node: tp is innermost, then dp, pp outermost, and nodes are filled in order.

    Where a group does not cut into equal parts by node, 1: as if each of its ranks had a node to itself.
    """
    mesh, per_node, size = plan.mesh, topology.ranks_per_node, group_size(plan, group)
    if mesh.world_size <= per_node:
        return size
    stride = {"tp": 1, "dp": mesh.tp, "dp x tp": 1, "pp": mesh.dp * mesh.tp, "all": 1}[group]
    span = stride * size  # ranks from the first to the next group's first, and groups begin at multiples of it
    if group == "pp" or per_node % stride or per_node % span and span % per_node:
        return 1
    return min(size, per_node // stride)


def transfer_seconds(traffic: Traffic, plan: Plan, topology: TopologyConfig) -> float:
    """All transfers of one kind: rings inside each node, then rings of one rank from each, all at once, with a part each.

    A ring of n takes for AllReduce 2 (n-1) steps of bytes / n, for AllGather and ReduceScatter n-1 of them. Receive counts
    nothing: its time is the Send's.
    """
    size, inside = group_size(plan, traffic.group), ranks_in_node(plan, traffic.group, topology)
    near = topology.node_latency_us * 1e-6, topology.node_bandwidth_gbs * 1e9
    far = topology.network_latency_us * 1e-6, topology.network_bandwidth_gbs * 1e9
    if traffic.kind in ("Send", "Receive"):
        latency, bandwidth = near if inside == size else far
        return traffic.count * (latency + traffic.bytes / bandwidth) * (traffic.kind == "Send")

    def ring(n, size, latency, bandwidth):
        return (n - 1) * (latency + size / n / bandwidth) * (2 if traffic.kind == "AllReduce" else 1)

    return traffic.count * (ring(inside, traffic.bytes, *near) + ring(size // inside, traffic.bytes / inside, *far))


def fused(traffic: list[Traffic], plan: Plan) -> list[Traffic]:
    """Gradients and gathered weights in parcels of fusion_mb, the rest as it is: as MindSpore 2.10 compiles it.

    It cuts no tensors: one that is larger travels alone, and the smaller ones add up. Where weights are gathered it measures the
    rank's part. With a pipeline or micro-batches, whose graphs are several, it joins all of a kind, whatever fusion_mb says.
    """
    together = joined(plan)
    whole, small = [], Counter()
    for t in traffic:
        limit = parcel_bytes(t, plan)
        if t.when in ("gradients", "weights") and (together or t.bytes < limit):
            small[t.kind, t.group, t.when] += t.total
        else:
            whole.append(t)
    for (kind, group, when), total in small.items():
        parcel = Traffic(kind, group, 1, total, f"fused {when}", when)
        count = 1 if together else math.ceil(total / parcel_bytes(parcel, plan))
        whole.append(replace(parcel, count=count, bytes=total // count))
    return whole


def joined(plan: Plan) -> bool:
    """Whether fusion makes one transfer of all gradients, and one of all weights that are gathered."""
    return plan.fusion_mb > 0 and not plan.always_parcels and plan.mesh.pp * plan.num_micro_batches > 1


def parcel_bytes(t: Traffic, plan: Plan) -> int:
    """The largest parcel of a kind of transfer."""
    return plan.fusion_mb * 2**20 * (1 if t.kind == "AllReduce" else group_size(plan, t.group))


def overlap(parcels: list[Traffic], plan: Plan, topology: TopologyConfig, behind: float) -> Overlap:
    """What of them `behind` seconds of computation hide, which give out n parcels one after the other.

    The first is there after a n-th of that time, and the last, of which nothing is hidden, at its end: the longest, since on the
    first stage that is the token table's. Gathered weights are the same, backwards.
    """
    count, times = sum(t.count for t in parcels), [transfer_seconds(t, plan, topology) for t in parcels]
    last = max((seconds / t.count for seconds, t in zip(times, parcels, strict=True)), default=0.0)
    return Overlap(count, sum(times), max(last, sum(times) - behind * (1 - 1 / count)) if count else 0.0)


@dataclass(frozen=True)
class _Stage:
    """Seconds of one stage: a micro-batch's forward pass, backward pass and communication, and what of the step's own shows."""

    forward: float
    backward: float
    sums: float
    once: float
    overlap: Overlap
    transfers: dict[str, float]

    @property
    def micro_batch(self) -> float:
        return self.forward + self.backward + self.sums

    @property
    def shown(self) -> float:
        return self.once + self.overlap.shown


def _stage(sizes: Sizes, plan: Plan, topology: TopologyConfig, stage: int) -> _Stage:
    speed = topology.device_tflops * 1e12 * topology.compute_efficiency
    if plan.linear_bytes == 4:
        speed *= FLOAT32_SHARE
    forward, backward = (flops / speed for flops in stage_flops(sizes, plan, stage))
    when, transfers = Counter(), Counter()
    traffic = fused(communication(sizes, plan, stage), plan)
    for t in traffic:
        seconds = transfer_seconds(t, plan, topology)
        transfers[t.group] += seconds
        when["boundary" if t.group == "pp" and t.when == "micro-batch" else t.when] += seconds
    parts = [overlap([t for t in traffic if t.when == which], plan, topology, 0.0 if joined(plan) else behind)
             for which, behind in (("gradients", backward), ("weights", forward))]
    both = Overlap(*(sum(values) for values in zip(*(astuple(part) for part in parts), strict=True)))
    return _Stage(forward, backward, when["micro-batch"] / plan.num_micro_batches, when["step"], both, transfers)


def estimate(sizes: Sizes, plan: Plan, topology: TopologyConfig) -> Estimate:
    """The expected step. 1F1B: micro-batches * slowest stage + the other stages once, this divided by virtual_stages.

    With equal stages that is the bubble (pp - 1) / (v * micro-batches) of Narayanan et al., arXiv:2104.04473.
    """
    stages = [s for same in plan.kinds().values() for s in [_stage(sizes, plan, topology, same[0])] * len(same)]
    slowest = max(stages, key=lambda s: s.micro_batch)
    m = plan.num_micro_batches
    waiting = (sum(s.micro_batch for s in stages) - slowest.micro_batch) / plan.virtual_stages
    stream = plan.stream_rows(sizes) * sizes.hidden * plan.activation_bytes
    hops = Traffic("Send", "pp", 2 * (len(plan.stage_layers) - 1), stream, "filling and draining")
    computation = m * (slowest.forward + slowest.backward)
    exposed = m * slowest.sums + max(s.shown for s in stages) + transfer_seconds(hops, plan, topology)
    step = computation + exposed + waiting
    tokens = plan.mesh.dp * m * plan.rows(sizes)
    peak = topology.device_tflops * 1e12 * plan.mesh.world_size
    transfers = {group: max(s.transfers[group] for s in stages) for s in stages for group in s.transfers}
    return Estimate(step, computation, exposed, waiting, tokens / step, tokens * model_flops(sizes) / step / peak, transfers,
                    plan.fusion_mb, max((s.overlap for s in stages), key=lambda o: o.shown))


def best_fusion(sizes: Sizes, plan: Plan, topology: TopologyConfig) -> int:
    """MB of a parcel: small ones pay latency, of a large one the last shows and takes memory.

    Of the sizes with the shortest step the smallest with at least half the bandwidth of the quickest of them: Hockney's n 1/2.
    """
    if joined(replace(plan, fusion_mb=FUSION_MB[0])):
        return FUSION_MB[0]  # it is one parcel, whatever this says
    found = {mb: estimate(sizes, replace(plan, fusion_mb=mb), topology) for mb in FUSION_MB}
    shortest = min(e.step_seconds for e in found.values())
    equal = {mb: e.overlap.seconds for mb, e in found.items() if e.step_seconds <= shortest * (1 + EQUAL)}
    return next(mb for mb, seconds in equal.items() if seconds <= 2 * min(equal.values()))
