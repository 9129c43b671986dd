"""Weak scaling: the same work for each card, on more and more cards."""
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

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
                 fusion_mb: int | Literal["auto"] = "auto") -> tuple[list[Scale], dict[int, str]]:
    """The plan with more data-parallel ranks, each with the same work: tp and pp stay.

    Args:
        fusion_mb: as in the config; auto: chosen anew for each number of cards.

    Returns:
        What is expected, from few cards to many; and for each number of cards that cannot be, why.
    """
    found, refused, width = [], {}, plan.mesh.tp * plan.mesh.pp
    for n in sorted(set(cards)):
        if n % width:
            refused[n] = f"tp={plan.mesh.tp} x pp={plan.mesh.pp} needs a multiple of {width} cards"
        else:
            found.append((n, replace(plan, mesh=replace(plan.mesh, dp=n // width))))
    return _scales(sizes, found, topology, fusion_mb), refused


def best_scaling(sizes: Sizes, work: Fraction, topology: TopologyConfig, cards: Iterable[int],
                 fusion_mb: int | Literal["auto"] = "auto", **given) -> tuple[list[Scale], dict[int, str]]:
    """The same, but on each number of cards the fastest plan that fits (see advise).

    Args:
        work: samples of one step for each card.
        given: see advise.
    """
    found, refused = [], {}
    for n in sorted(set(cards)):
        try:
            if (n * work).denominator > 1:
                raise UserError(f"{work} samples a card make no whole batch")
            found.append((n, advise(sizes, n, int(n * work), topology, fusion_mb, **given)[0].plan))
        except UserError as error:
            refused[n] = str(error)
    return _scales(sizes, found, topology, fusion_mb), refused


def _scales(sizes: Sizes, plans: list[tuple[int, Plan]], topology: TopologyConfig,
            fusion_mb: int | Literal["auto"]) -> list[Scale]:
    found, first = [], None
    for n, plan in plans:
        plan = replace(plan, fusion_mb=best_fusion(sizes, plan, topology) if fusion_mb == "auto" else fusion_mb)
        expected, size = estimate(sizes, plan, topology), peak(sizes, plan)
        rate = expected.tokens_per_second / n
        first = first or rate
        found.append(Scale(n, plan, expected, size, size <= budget(topology), rate / first))
    return found
