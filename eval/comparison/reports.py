"""Reads what evaluations wrote: the figures of a report by name, and those of a run over its steps."""
import json
import math
import re
from pathlib import Path

from parallel.errors import UserError

STEP_FILE = re.compile(r"step_(\d+)\.json")
# Figures that say how something was measured, not how well the model did.
CONDITION = re.compile(r"step|tokens(_in|_out)?|bytes|characters|samples|items|prompts|questions|rules|count|raters|empty|"
                       r"truncated|nonfinite|batches|num_batches|requests|cost|seed|(.+_)?seconds|(.+_)?budget|time_fraction|baseline|unigram_perplexity")
LOWER_IS_BETTER = re.compile(r"loss|perplexity|bits_per_byte|repetition.*|longest_repeat.*|self_bleu|"
                             r"(empty|leak|unsafe|over_refusal|attack_success)_rate")
HIGHER_IS_BETTER = re.compile(r".*accuracy.*|(pooled_)?distinct_\d|(pass|refusal)_rate|fluency|relevance|rating|(.+_)?score")


def report_of_checkpoint(folder: Path) -> Path | None:
    """The report of the step at which a run's checkpoint was written, None if the folder is no checkpoint."""
    step = re.fullmatch(r"step_(\d+)", folder.name)
    return folder.parent.parent / "eval" / f"step_{int(step[1]):08d}.json" if step and folder.is_dir() else None


def read_report(path: Path) -> dict:
    """One report. UserError: it cannot be read, or is no JSON object."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}: the report is not JSON ({error.msg}); evaluate again") from None
    except RecursionError:
        raise UserError(f"{path}: the report is not one of ours: it is nested too deeply") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: the report cannot be read ({error})") from None
    if not isinstance(report, dict):
        raise UserError(f"{path}: a report is a JSON object, this is a {type(report).__name__}")
    return report


def run_reports(run: Path) -> list[tuple[int, dict]]:
    """(step, report) of each evaluation of a run, by step. UserError: the folder holds none."""
    found = sorted((int(match[1]), path) for path in (run / "eval").glob("*") if (match := STEP_FILE.fullmatch(path.name)))
    if not found:
        raise UserError(f"{run}: no eval/step_XXXXXXXX.json here; give the folder of a run that has been evaluated, or a report "
                        f"(python -m eval --checkpoint D writes one)")
    return [(step, read_report(path)) for step, path in found]


def leaves(report: dict) -> dict[str, float | None]:
    """Every figure of a report by its path, such as "stage/all/loss"; None where it is null or not finite.

    Lists (items, samples), texts and truth values are no figures.
    """
    found = {}
    for key, value in report.items():
        if isinstance(value, dict):
            found.update({f"{key}/{name}": figure for name, figure in leaves(value).items()})
        elif value is None or isinstance(value, int | float) and not isinstance(value, bool):
            try:
                found[key] = None if value is None or not math.isfinite(value) else float(value)
            except OverflowError:  # a whole number beyond any float
                found[key] = None
    return found


def series(run: Path) -> dict[str, list[tuple[int, float | None]]]:
    """metric -> [(step, figure)] over the steps at which its tier ran: all figures but those that say how it was measured."""
    found: dict[str, list] = {}
    for step, report in run_reports(run):
        for name, figure in leaves(report).items():
            if not is_condition(name):
                found.setdefault(name, []).append((step, figure))
    return found


def is_condition(metric: str) -> bool:
    """Whether a figure says how something was measured (a count, a cost, a baseline) rather than what came out."""
    *groups, name = metric.split("/")
    return bool({"rejected", "counts", "seconds", "shares"} & set(groups)) or CONDITION.fullmatch(name) is not None


def direction(metric: str) -> int:
    """1: more is better; -1: less is; 0: neither, such as a length. The part of the name that stands last decides."""
    parts = metric.split("/")
    if any(part.startswith("own_") for part in parts):
        return 0  # a model that repeats itself finds its own text likely
    for part in reversed(parts):
        if LOWER_IS_BETTER.fullmatch(part):
            return -1
        if HIGHER_IS_BETTER.fullmatch(part):
            return 1
    return 0
