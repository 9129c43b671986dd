"""What is looked at before the first step: are all weights initialised, and how far do the blocks' outputs spread?"""
import json
from pathlib import Path

import numpy as np

from ckpt.cut import Cut
from parallel import collectives
from parallel.errors import UserError
from parallel.files import replace_text
from train.config import RunConfig
from train.console import say
from train.messages import message
from train.reports import INDENT
from train.state import has_rows
from train.step import TrainStep

SHOWN = 8  # blocks, and parameters, that one line names


def refuse_uninitialised(step: TrainStep, config: RunConfig, names: list[str], cut: Cut | None = None) -> None:
    """Raise UserError on every rank where a matrix or an embedding has one value everywhere, or one that is not finite.

    What model.init sets to zeros or ones is meant. What pads the token table does not count.

    Args:
        names: all parameters of the model, in the same order on all ranks.
    """
    place = {name: i for i, name in enumerate(names)}
    lowest, highest = np.full(len(names), np.inf), np.full(len(names), -np.inf)  # so for vectors and what other stages hold
    for p in step.weights:
        i, values = place[p.name], rows_that_count(p.name, p.asnumpy(), config.model.vocab_size, cut)
        if p.ndim > 1 and values.size:
            lowest[i], highest[i] = values.min(), values.max()
    of_ranks = collectives.gather(np.concatenate((lowest, highest)))
    lowest, highest = of_ranks[:, :len(names)].min(0), of_ranks[:, len(names):].max(0)
    broken, constant = [], []
    for name, low, high in zip(names, lowest, highest, strict=True):
        rule = config.model.init_rule(name)
        if not low > high and not np.isfinite((low, high)).all():
            broken.append(name)
        elif low == high and not (rule and rule.kind in ("zeros", "ones")):
            constant.append(f"{name} (all {low:g})")
    source = f"ckpt.init_from={config.ckpt.init_from}" if config.ckpt.init_from else "the initial weights"
    if broken:
        raise UserError(f"{source}: not finite in {listed(broken)}: take weights that are")
    if constant:
        raise UserError(f"{source}: left uninitialised, one value everywhere: {listed(constant)}; if that is meant, say so by "
                        "model.init=[{pattern: NAME, kind: zeros}] (or ones)")


def rows_that_count(name: str, values: np.ndarray, vocab_size: int, cut: Cut | None) -> np.ndarray:
    """Of this rank's part of a parameter what does not pad the token table."""
    first = cut.region(name)[0].start if cut else 0
    return values[:max(0, vocab_size - first)] if has_rows(name) else values


def listed(names: list[str]) -> str:
    """The first of them, and how many there are."""
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def report_outputs(figures: dict[str, dict], folder: Path) -> None:
    """Each block's output before the first step, as eval.health.probe gives it: a line on the console, and initial.json."""
    layers = {name: {**values, "variance": None if values["std"] is None else values["std"]**2}
              for name, values in figures.items()}
    replace_text(folder / "initial.json", json.dumps({"step": 0, "layers": layers}, indent=1, allow_nan=False) + "\n")
    names = list(layers)
    chosen = dict.fromkeys(names[round(i)] for i in np.linspace(0, len(names) - 1, min(SHOWN, len(names))))
    shown = "  ".join(f"{name} {'not finite' if (std := layers[name]['std']) is None else format(std, '.3g')}" for name in chosen)
    say(INDENT + message("outputs", shown=shown))
