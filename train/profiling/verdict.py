"""What a profile says: where the time goes, what is the bottleneck, which rank is slow. One dict, as it is written as JSON."""
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median, median_low

from parallel.config import TopologyConfig
from parallel.cost.flops import model_flops
from parallel.cost.sizes import Sizes
from train.profiling import memory
from train.profiling.figures import PARTS, Operator, RankProfile, StepTime, mean
from train.profiling.matrix import is_product

GOOD = (7, 2, 1)  # computation : communication : data, of ten
COMMUNICATION, DATA, HOST = 0.30, 0.20, 0.20  # shares from which on it is the bottleneck; the host's is taken as data's
NEAR, STOP = 0.70, 0.80  # of computation
SLOW = 1.10  # times the ranks' median
TOP = 10


@dataclass(frozen=True)
class Context:
    """What the run's config tells besides. device_tflops: None where nothing says what this device's peak is."""

    run: str
    sizes: Sizes
    tokens_per_step: int
    topology: TopologyConfig
    device_tflops: float | None
    settings: dict  # of the config, as advice reads them


def verdict(ranks: list[RankProfile], world_size: int, device: str, rows: list[dict], context: Context, window: Path) -> dict:
    """All figures but the advice (see advice.py); what could not be computed is None, and `problems` says why."""
    steps = [step for rank in ranks for step in rank.steps]
    seconds = mean(step.seconds for step in steps) or None
    shares = {part: mean(getattr(step, part) for step in steps) / seconds for part in PARTS} if seconds else None
    usual = usual_seconds(rows)
    speed = usual or seconds
    flops = context.tokens_per_step * model_flops(context.sizes)
    problems = list(dict.fromkeys(problem for rank in ranks for problem in rank.problems))
    return {
        "run": context.run, "window": window.name, "device": device, "world_size": world_size,
        "ranks": [rank.rank for rank in ranks], "steps": sorted({step.step for step in steps}),
        "step_seconds": seconds, "usual_step_seconds": usual,
        "tokens_per_second": context.tokens_per_step / speed if speed else None,
        "shares": shares,
        "bubble": mean(step.bubble for step in steps) / seconds if seconds else None,
        "ratio": ratio(shares) if shares else None,
        "bottleneck": bottleneck(shares) if shares else None,
        "operators": operators(ranks),
        "matrix_products": products(ranks),
        "communication": communication(ranks),
        "memory": {**memory.of_run(rows), "window": memory.of_window(fullest(ranks))},
        "stragglers": stragglers(ranks),
        "model_flops_per_second": flops / speed if speed else None,
        "mfu": flops / speed / (context.device_tflops * 1e12 * world_size) if speed and context.device_tflops else None,
        "utilisation": utilisation(shares["computation"]) if shares else None,
        "each_step": [{"rank": rank.rank, **asdict(step)} for rank in ranks for step in rank.steps],
        "problems": problems,
    }


def usual_seconds(rows: list[dict]) -> float | None:
    """The median step of metrics.jsonl: what a step takes without a profiler, which slows small operators down. None: unknown."""
    told = [row["step_seconds"] for row in rows if isinstance(row.get("step_seconds"), int | float)]
    return median(told) if told else None


def ratio(shares: dict[str, float]) -> str:
    """computation : communication : data : host, of ten."""
    return " : ".join(f"{10 * shares[part]:.1f}" for part in PARTS)


def bottleneck(shares: dict[str, float]) -> dict:
    """{"name", "share", "why"}; of several the one that is to be dealt with first: data, host, communication."""
    for name, limit, what in (("data", DATA, "waiting for batches takes"),
                              ("host", HOST, "gaps in which the device waits for the host take"),
                              ("communication", COMMUNICATION, "communication that nothing hides takes")):
        if shares[name] > limit:
            return {"name": name, "share": shares[name], "why": f"{what} {shares[name]:.0%} of the step, over {limit:.0%}"}
    return {"name": "computation", "share": shares["computation"],
            "why": f"communication is not over {COMMUNICATION:.0%} of the step, data not over {DATA:.0%}: operators decide"}


def utilisation(share: float) -> dict:
    """{"share", "stop", "text"}: whether the next days are better spent on the model."""
    if share >= STOP:
        text = f"{share:.0%} of the step is computation. Stop: the next days are better spent on the model and its evaluation"
    elif share >= NEAR:
        text = f"{share:.0%} of the step is computation: from here to {STOP:.0%} takes weeks. Mind the model and its quality"
    else:
        text = f"{share:.0%} of the step is computation: up to {NEAR:.0%} tuning takes days, and pays"
    return {"share": share, "stop": share >= STOP, "near": share >= NEAR, "text": text}


def operators(ranks: list[RankProfile]) -> list[dict]:
    """The TOP types by time, over all ranks: {"type", "calls", "seconds", "share" of all operators' time, "flops_per_second"}."""
    found: dict[str, Operator] = {}
    for one in (operator for rank in ranks for operator in rank.operators):
        before = found.get(one.type, replace(one, calls=0, seconds=0.0, flops=0.0))
        known = one.flops is not None and before.flops is not None
        found[one.type] = Operator(one.type, before.calls + one.calls, before.seconds + one.seconds,
                                   before.flops + one.flops if known else None)
    total = sum(one.seconds for one in found.values())
    top = sorted(found.values(), key=lambda one: -one.seconds)[:TOP]
    return [{"type": one.type, "calls": one.calls, "seconds": one.seconds, "share": one.seconds / total if total else 0.0,
             "flops_per_second": one.flops / one.seconds if one.flops and one.seconds else None} for one in top]


def products(ranks: list[RankProfile]) -> float:
    """The share of matrix products in all operators' time."""
    total = sum(one.seconds for rank in ranks for one in rank.operators)
    return sum(one.seconds for rank in ranks for one in rank.operators if is_product(one.type)) / total if total else 0.0


def communication(ranks: list[RankProfile]) -> list[dict]:
    """{"name", "calls", "seconds", "wait_share", "gb_per_second"} of each kind and group, over all ranks, hidden or not."""
    sums: dict[str, Counter] = defaultdict(Counter)
    for one in (transfer for rank in ranks for transfer in rank.transfers):
        sums[one.name].update(calls=one.calls, seconds=one.seconds, wait=one.wait or 0.0, size=one.megabytes or 0.0,
                              told=one.wait is not None)
    return [{"name": name, "calls": s["calls"], "seconds": s["seconds"],
             "wait_share": s["wait"] / s["seconds"] if s["told"] and s["seconds"] else None,
             "gb_per_second": s["size"] * 1e-3 / moved if s["told"] and (moved := s["seconds"] - s["wait"]) > 0 else None}
            for name, s in sorted(sums.items(), key=lambda item: -item[1]["seconds"])]


def fullest(ranks: list[RankProfile]) -> list[tuple[float, float, float]]:
    """The memory curve of the rank that reserves most."""
    return max((rank.memory for rank in ranks), key=lambda points: max((p[2] for p in points), default=-1.0), default=[])


def own(step: StepTime) -> float:
    """Seconds that a rank itself takes: the others wait for it in these, it waits for them in the rest."""
    return step.computation + step.data + step.host


def stragglers(ranks: list[RankProfile]) -> dict | None:
    """{"own_seconds": by rank, "slow": [{"rank", "times" the median, "part" that takes longer}]}; None below two ranks.

    Of steps that all ranks have, the medians: a single late step makes no straggler.
    """
    told = [rank for rank in ranks if rank.steps]
    if len(told) < 2:
        return None
    common = set.intersection(*({step.step for step in rank.steps} for rank in told))
    kept = {rank.rank: [step for step in rank.steps if step.step in common] or rank.steps for rank in told}
    took = {number: median(own(step) for step in steps) for number, steps in kept.items()}
    usual = median_low(took.values())
    slow = []
    for number, seconds in took.items():
        if usual > 0 and seconds > SLOW * usual:
            over = {part: median(getattr(step, part) for step in kept[number])
                    - median_low([median(getattr(step, part) for step in steps) for steps in kept.values()])
                    for part in ("computation", "data", "host")}
            slow.append({"rank": number, "times": seconds / usual, "part": max(over, key=over.get)})
    return {"own_seconds": {str(number): seconds for number, seconds in took.items()}, "slow": slow}
