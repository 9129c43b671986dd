"""Two evaluations side by side: each figure's difference, how sure it is, and which side is better.

An interval needs the values of the single items: a list "items" beside a figure, [{"id": ..., fields}], with the same ids on both
sides; a group "all" without one takes those of the groups beside it but "tasks", which are measures of their own. ITEM_FIELDS
says which fields make a figure; another figure is the mean of the field of its own name. Items count only where they give the
figure that the report states, so an interval is never that of something else.
"""
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from eval.comparison.bootstrap import LEVEL, Interval, mean_difference_interval, ratio_difference_interval, same
from eval.comparison.reports import direction, is_condition, leaves, read_report, report_of_checkpoint, run_reports, series
from eval.comparison.trends import disagreement
from parallel.errors import UserError

# For fewer the intervals are too narrow (see eval.comparison.bootstrap).
FEWEST_ITEMS = 10
NAMED = 8  # of so many figures that one side alone has, each is named
ALONE = "no interval: no per-item values"  # what "by the figure alone" says already


def bits(nats: np.ndarray) -> np.ndarray:
    """Nats as bits."""
    return nats / math.log(2)


@dataclass(frozen=True)
class Estimate:
    """A figure made of items: the mean of a field, or transform(sum of one field / sum of another)."""

    numerator: str
    denominator: str | None = None
    transform: Callable[[np.ndarray], np.ndarray] = same

    def columns(self, items: dict[str, dict]) -> dict[str, tuple[float, float]]:
        """id -> (numerator, denominator) of the items that have both, the denominator positive (1 for a mean)."""
        found = {}
        for i, item in items.items():
            pair = item.get(self.numerator), item.get(self.denominator) if self.denominator else 1
            if all(map(_finite, pair)) and pair[1] > 0:
                found[i] = float(pair[0]), float(pair[1])
        return found

    def of(self, columns: np.ndarray) -> float:
        """The figure of columns float [items, 2]."""
        numerator, denominator = columns.sum(0)
        with np.errstate(over="ignore"):
            return float(self.transform(numerator / denominator))

    def difference_interval(self, a: np.ndarray, b: np.ndarray, seed: int) -> Interval:
        """95 % interval of b's figure less a's, columns of the same items."""
        if self.denominator is None:
            return mean_difference_interval(a[:, 0], b[:, 0], seed)
        return ratio_difference_interval(a.T, b.T, seed, self.transform)


ITEM_FIELDS = {
    "loss": (Estimate("loss_sum", "tokens"),),
    "perplexity": (Estimate("loss_sum", "tokens", np.exp),),
    "bits_per_byte": (Estimate("loss_sum", "bytes", bits),),
    "accuracy": (Estimate("hits", "tokens"), Estimate("correct")),
    "accuracy_norm": (Estimate("correct_norm"),),
    "item_accuracy": (Estimate("passed"),),
    "rule_accuracy": (Estimate("rules_passed", "rules"),),
    "pass_rate": (Estimate("passed"),),
}


@dataclass(frozen=True)
class Row:
    """One figure of both sides.

    Args:
        difference: b - a, over the items in common where there is an interval; None where it does not exist or says nothing.
        interval: 95 % interval of the difference; None: `note` says why there is none.
        verdict: what B is against A. "" for a figure of which neither more nor less is better.
    """

    metric: str
    a: float | None
    b: float | None
    difference: float | None
    interval: Interval | None
    note: str
    verdict: str


@dataclass(frozen=True)
class Comparison:
    """A row for each figure, and what to know about the whole."""

    rows: list[Row]
    notes: list[str]

    def text(self, everything: bool = False) -> str:
        """The table and the notes, to print: the figures that differ and have a better and a worse, or everything."""
        table = [("metric", "A", "B", "B - A", f"{LEVEL:.0%} interval", "B is", "")]
        shown = [r for r in self.rows if everything or r.verdict and r.difference != 0]
        for r in shown:
            interval = f"[{r.interval[0]:+.4g}, {r.interval[1]:+.4g}]" if r.interval else ""
            note = r.note if everything else r.note.removeprefix(ALONE)
            table.append((r.metric, _number(r.a), _number(r.b), "" if r.difference is None else f"{r.difference:+.5g}", interval,
                          r.verdict or "-", f"({note})" if note else ""))
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)).rstrip() for line in table]
        if more := len(self.rows) - len(shown):
            lines.append(f"{more} more are equal or have no better: --all shows them")
        return "\n".join([*lines, "", *self.notes])


@dataclass(frozen=True)
class _Side:
    label: str
    path: Path
    report: dict
    steps: str

    def figures(self) -> dict[str, float | None]:
        return {name: figure for name, figure in leaves(self.report).items() if not is_condition(name)}

    def group(self, names: list[str]) -> dict:
        group = self.report
        for name in names:  # a name with a slash in it is not one of ours
            group = group.get(name, {}) if isinstance(group, dict) else {}
        return group


class _NoIntervalError(Exception):
    """Why a figure has no interval; `comparable`: whether the figures themselves can be held against each other."""

    def __init__(self, why: str, comparable: bool = True):
        super().__init__(why)
        self.comparable = comparable


def compare(a: Path, b: Path, seed: int = 0) -> Comparison:
    """Hold B against A, each a run's folder (each tier's last report counts), a checkpoint of one, or one report's file.

    UserError: a report is missing or broken, or the two have no figure in common.
    """
    sides = _side("A", a), _side("B", b)
    of_a, of_b = (side.figures() for side in sides)
    names = [name for name in of_a if name in of_b and (of_a[name], of_b[name]) != (None, None)]
    if not names:
        raise UserError(f"{a} and {b} have no figure in common; evaluate both with the same tiers")
    rows = [_row(name, (of_a[name], of_b[name]), sides, seed) for name in names]
    notes = [f"{side.label}: {side.path} ({side.steps})" for side in sides]
    only = {"A": of_a.keys() - of_b, "B": of_b.keys() - of_a}
    notes += [f"only in {label}: {_listed(found)}" for label, found in only.items() if found]
    if count := sum(row.interval is not None for row in rows):
        notes.append(f"{count} intervals of {LEVEL:.0%}: by chance one in {1 / (1 - LEVEL):.0f} shows a difference that is none")
    notes += [f"{side.label}: {words}" for side in sides if side.path.is_dir() and (words := disagreement(series(side.path)))]
    return Comparison(rows, notes)


def _listed(names: set[str]) -> str:
    """Figures by name, or where they are many the groups that they are of."""
    return ", ".join(sorted(names if len(names) <= NAMED else {name.rpartition("/")[0] or name for name in names}))


def _side(label: str, path: Path) -> _Side:
    if not path.exists():
        raise UserError(f"{path}: there is nothing here; give the folder of a run, or the file of a report")
    path = report_of_checkpoint(path) or path
    if not path.exists():
        raise UserError(f"{path}: this step was not evaluated; python -m eval --checkpoint D --report FILE does it")
    if path.is_file():
        report = read_report(path)
        return _Side(label, path, report, f"step {report.get('step', 'unknown')}")
    merged, steps = {}, {}
    for step, report in run_reports(path):
        merged.update({"not_computed": {}, **report})
        steps.update({tier: step for tier, value in report.items() if isinstance(value, dict | list) and tier != "not_computed"})
    return _Side(label, path, merged, ", ".join(f"{tier} of step {step}" for tier, step in steps.items()))


def _row(name: str, figures: tuple, sides: tuple[_Side, _Side], seed: int) -> Row:
    if None in figures:
        missing = [side.label + _why(side, name) for side, figure in zip(sides, figures, strict=True) if figure is None]
        return Row(name, *figures, None, None, f"not computed in {', '.join(missing)}", "not computed")
    try:
        difference, interval, note = _paired(name, figures, sides, seed)
    except _NoIntervalError as why:
        if not why.comparable:
            return Row(name, *figures, None, None, str(why), "not comparable")
        difference, interval, note = figures[1] - figures[0], None, f"no interval: {why}{_other_text(name, sides)}"
    return Row(name, *figures, difference, interval, note, _verdict(name, difference, interval))


def _paired(name: str, figures: tuple, sides: tuple[_Side, _Side], seed: int) -> tuple[float, Interval, str]:
    """(difference, interval, note) over the items that both sides have."""
    *groups, last = name.split("/")
    items = [_items(side, groups) for side in sides]
    for estimate in ITEM_FIELDS.get(last, (Estimate(last),)):
        of_a, of_b = (estimate.columns(found) for found in items)
        if all(found and math.isclose(estimate.of(np.array([*found.values()])), figure, rel_tol=1e-6, abs_tol=1e-9)
               for found, figure in zip((of_a, of_b), figures, strict=True)):
            break
    else:
        raise _NoIntervalError("the items' values do not give this figure")
    common = [i for i in of_a if i in of_b]
    if len(common) < FEWEST_ITEMS:
        raise _NoIntervalError(f"{len(common)} items in common, it takes {FEWEST_ITEMS}")
    a, b = (np.array([found[i] for i in common]) for found in (of_a, of_b))
    if (a[:, 1] != b[:, 1]).any():
        raise _NoIntervalError(f"the same items have other numbers of {estimate.denominator}: another tokenizer or other texts; "
                               "bits_per_byte can be compared between tokenizers", comparable=False)
    all_items = len(common) == len(of_a) == len(of_b)
    note = "" if all_items else f"difference over the {len(common)} items in common, of {len(of_a)} and {len(of_b)}"
    return estimate.of(b) - estimate.of(a), estimate.difference_interval(a, b, seed), note


def _items(side: _Side, groups: list[str]) -> dict[str, dict]:
    """id -> item of the list beside a figure; of a group "all" without one: those of the groups beside it, with their names."""
    found = _item_list(side, groups)
    if not found and groups[-1:] == ["all"]:
        found = _lists_below(side, groups[:-1])
    if not found:
        raise _NoIntervalError("no per-item values")
    return found


def _lists_below(side: _Side, groups: list[str]) -> dict[str, dict]:
    found = {}
    for name, value in side.group(groups).items():
        if isinstance(value, dict) and name != "tasks":
            inner = [*groups, name]
            found.update({f"{name}/{i}": item for i, item in {**_lists_below(side, inner), **_item_list(side, inner)}.items()})
    return found


def _item_list(side: _Side, groups: list[str]) -> dict[str, dict]:
    items = side.group(groups).get("items")
    if not isinstance(items, list) or not all(isinstance(item, dict) and "id" in item for item in items):
        return {}
    found = {str(item["id"]): item for item in items}
    if len(found) < len(items):
        raise UserError(f"{side.path}: two items of {'/'.join(groups)} have one id; the report is broken, evaluate again")
    return found


def _verdict(name: str, difference: float, interval: Interval | None) -> str:
    if not (sign := direction(name)):
        return ""
    if difference == 0 or interval and interval[0] <= 0 <= interval[1]:
        return "no clear difference"
    return ("better" if difference * sign > 0 else "worse") + ("" if interval else ", by the figure alone")


def _other_text(name: str, sides: tuple[_Side, _Side]) -> str:
    a, b = (side.group(name.split("/")[:-1]).get("tokens") for side in sides)
    return f"; not the same text: A has {a} tokens, B {b}" if a != b else ""


def _why(side: _Side, name: str) -> str:
    """The reason that a report gives for not having computed a figure or a group around it."""
    parts = name.split("/")
    for depth in range(len(parts) - 1, -1, -1):
        reasons = side.group(parts[:depth]).get("not_computed")
        if isinstance(reasons, str):
            return f" ({reasons})"
        for key in (*parts[depth:], ".".join(parts[depth:]), "all") if isinstance(reasons, dict) else ():
            if key in reasons:
                return f" ({reasons[key]})"
    return ""


def _finite(value) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _number(value: float | None) -> str:
    return "not computed" if value is None else f"{value:.5g}"
