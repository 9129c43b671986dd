"""Weak scaling: the same work for each card, on more and more cards."""
from collections.abc import Iterable
from dataclasses import dataclass, replace

from parallel.config import TopologyConfig
from parallel.cost.advice import advise
from parallel.cost.estimate import Estimate, best_fusion, estimate
from parallel.cost.memory import budget, peak
from parallel.cost.sizes import Plan, Sizes
from parallel.errors import UserError


@dataclass(frozen=True)
class Scale:
    """What is expected on a number of cards."""

    cards: int
    plan: Plan
    estimate: Estimate
    memory_bytes: float  # of one rank of the fullest stage
    fits: bool
    efficiency: float  # tokens/s of a card, against the fewest cards of the list

    @property
    def global_batch_size(self) -> int:
        """Samples of one step."""
        return self.plan.mesh.dp * self.plan.micro_batch_size * self.plan.num_micro_batches


def weak_scaling(sizes: Sizes, plan: Plan, topology: TopologyConfig, cards: Iterable[int],
                 choose_fusion: bool = False) -> tuple[list[Scale], dict[int, str]]:
    """The plan with more data-parallel ranks, each with the same work: tp and pp stay.

    Args:
        choose_fusion: the parcels' size anew for each number of cards; else it stays too.

    Returns:
        What is expected, from few cards to many, and for the numbers of cards that the plan does not divide, why.
    """
    found, refused, width = [], {}, plan.mesh.tp * plan.mesh.pp
    for n in sorted(set(cards)):
        if n % width:
            refused[n] = f"tp={plan.mesh.tp} x pp={plan.mesh.pp} needs a multiple of {width} cards"
            continue
        found.append((n, replace(plan, mesh=replace(plan.mesh, dp=n // width))))
    return _scales(sizes, found, topology, choose_fusion), refused


def best_scaling(sizes: Sizes, samples_per_card: float, topology: TopologyConfig, cards: Iterable[int],
                 choose_fusion: bool = False, activation_bytes: int = 4) -> tuple[list[Scale], dict[int, str]]:
    """The fastest plan that fits (see advise) on each number of cards, as weak_scaling."""
    found, refused = [], {}
    for n in sorted(set(cards)):
        batch = n * samples_per_card
        try:
            if batch != int(batch):
                raise UserError(f"{samples_per_card:g} samples a card make no whole batch")
            found.append((n, advise(sizes, n, int(batch), topology, activation_bytes)[0].plan))
        except UserError as error:
            refused[n] = str(error)
    return _scales(sizes, found, topology, choose_fusion), refused


def _scales(sizes: Sizes, plans: list[tuple[int, Plan]], topology: TopologyConfig, choose_fusion: bool) -> list[Scale]:
    if choose_fusion:
        plans = [(n, replace(plan, fusion_mb=best_fusion(sizes, plan, topology))) for n, plan in plans]
    expected = [(n, plan, estimate(sizes, plan, topology), peak(sizes, plan)) for n, plan in plans]
    rates = [e.tokens_per_second / n for n, _, e, _ in expected]
    return [Scale(n, plan, e, size, size <= budget(topology), rate / rates[0])
            for (n, plan, e, size), rate in zip(expected, rates, strict=True)]
