"""How a run's figures move over its steps: a plot, and in words where perplexity and generated text disagree."""
import math
from pathlib import Path

from parallel.errors import UserError

Series = dict[str, list[tuple[int, float | None]]]

PERPLEXITY = "stage/all/perplexity"
# Smaller moves are noise: repetition is a share in [0, 1], perplexity is taken relatively.
REPETITION_RISE = 0.05
PERPLEXITY_FALL = 0.01
COLUMNS = 3


def disagreement(series: Series, rise: float = REPETITION_RISE) -> str | None:
    """Says that perplexity falls while repetition rises by so much; None if it does not.

    From the step at which a repetition rate was lowest to its last: each metric whose name begins with "repetition". Figures that
    are None or not finite count as not measured. Perplexity is taken at the step nearest to those of the generated text. A model
    with random weights repeats little, so a rise that begins at the very start of training is no fault yet: the steps are named.
    """
    perplexity = _measured(series.get(PERPLEXITY, []))
    found = []
    for name, points in series.items():
        repetition = _measured(points)
        if not perplexity or not repetition or not name.split("/")[-1].startswith("repetition"):
            continue
        (last, high), (first, low) = repetition[-1], min(repetition, key=lambda point: point[1])
        (before, p0), (after, p1) = (min(perplexity, key=lambda point, step=step: abs(point[0] - step)) for step in (first, last))
        if high - low >= rise and before < after and p1 <= p0 * (1 - PERPLEXITY_FALL):
            found.append(f"perplexity falls from {p0:.4g} (step {before}) to {p1:.4g} (step {after}) while {name} rises from "
                         f"{low:.3f} (step {first}) to {high:.3f} (step {last})")
    return "; ".join(found) + ": better at predicting, worse at writing; read the samples" if found else None


def _measured(points: list[tuple[int, float | None]]) -> list[tuple[int, float]]:
    return sorted((step, figure) for step, figure in points if figure is not None and math.isfinite(figure))


def plot(series_a: Series, series_b: Series, path: Path, labels: tuple[str, str] = ("A", "B")) -> None:
    """Write a PNG with each metric of the tier `stage` over the steps; a figure that was not computed leaves a gap.

    UserError: there is no such metric, or matplotlib is missing.
    """
    names = sorted({name for name in (*series_a, *series_b) if name.startswith("stage/")})
    if not names:
        raise UserError("there is nothing to plot: neither run has stage figures; train with eval.stage.enabled=true")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("the plot needs matplotlib, which is not there: pip install 'mindgpt[plot]'") from None
    rows = math.ceil(len(names) / COLUMNS)
    figure = Figure(figsize=(5 * COLUMNS, 3.2 * rows), layout="constrained")
    for i, name in enumerate(names, 1):
        axes = figure.add_subplot(rows, COLUMNS, i, title=name.removeprefix("stage/"), xlabel="step")
        for label, series, marker in zip(labels, (series_a, series_b), "ox", strict=True):
            points = series.get(name, [])
            axes.plot([step for step, _ in points], [math.nan if value is None else value for _, value in points],
                      marker=marker, markersize=4, label=label)
        axes.legend()
        axes.grid(alpha=0.3)
    figure.savefig(path, format="png", dpi=100)
