"""What `train.locating.locate` finds, in words."""
from collections.abc import Iterable

LARGEST_SQUARE = 3.4e38  # that float32 can hold
SHOWN = 4  # names in a line


def verdict_of(found: dict) -> tuple[str, str]:
    """What was found, in a word and in a line: weights, forward, backward, gradient, norm, compiled or finite."""
    if found["nonfinite_micro_batches"]:
        if found["weights"]:
            return "weights", f"weights are not finite before the step begins: {listed(found['weights'])}"
        for direction in ("forward", "backward"):
            if passage := found[direction]:
                return direction, passage_line(passage)
        bad = [name for name, f in found["gradients"].items() if f["nonfinite"]]
        return "gradient", f"what every cell gives is finite, but not the gradient of {listed(bad)}"
    if found["norm"]**2 > LARGEST_SQUARE:
        return "norm", (f"every gradient is finite, but their squares add up to more than float32 can hold: the norm is up to "
                        f"{found['norm']:.3g}, times the loss scale. The largest is that of {found['largest_gradient']}")
    if found["compiled"]:
        return "compiled", ("cell by cell everything is finite, but as a compiled graph the gradient of "
                            f"{listed(found['compiled'])} is not: rounding at the edge of a number format")
    return "finite", "loss and gradients are finite, cell by cell and as a compiled graph"


def passage_line(passage: dict) -> str:
    """A passage in words."""
    made_by = passage["made_by"].removeprefix("gpt.") or "the network"
    way = "forward" if passage["direction"] == "forward" else "backward"
    cell = passage["cell"].removeprefix("gpt.")
    where = made_by if made_by == cell else f"an operator of {made_by}, seen in {cell}"
    came = "; ".join(f"{name} {shown_figures(f)}" for name, f in passage["inputs"].items())
    gave = "; ".join(shown_figures(f) for f in passage["outputs"].values() if f["nonfinite"])
    return f"{way}, the first that is not finite is {where}: in {came or 'no numbers'}; out {gave}"


def shown_figures(f: dict) -> str:
    """One tensor's figures."""
    size = "x".join(map(str, f["shape"])) or "scalar"
    values = "nothing finite" if f["abs_max"] is None else f"{f['min']:.3g} to {f['max']:.3g}"
    return f"{f['dtype']} {size}, {values}" + (f", {f['nonfinite']:.2%} not finite" if 0 < f["nonfinite"] < 1 else "")


def listed(names: Iterable[str]) -> str:
    """The first names, and how many there are."""
    names = [*names]
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def lines_of(found: dict) -> list[str]:
    """What was found, for a person."""
    lines = [f"step {found['step']}: {found['message']}"]
    if bad := found["nonfinite_micro_batches"]:
        lines.append(f"micro-batches that are not finite: {listed(map(str, bad))}")
    if found.get("ranks"):
        lines.append(f"on rank {listed(map(str, found['ranks']))}")
    if bad := [name for name, f in found["gradients"].items() if f["nonfinite"]]:
        lines.append(f"gradients that are not finite, first in the backward pass first: {listed(bad)}")
    return [*lines, f"largest activations: {activations(found['layers'])}"]


def activations(layers: dict[str, dict]) -> str:
    """The largest absolute value of each layer's output."""
    return ", ".join(f"{name} nothing finite" if f["abs_max"] is None else
                     f"{name} {f['abs_max']:.3g}{' (not all finite)' if f['nonfinite'] else ''}" for name, f in layers.items())
