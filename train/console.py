"""What a person sees: a header, one aligned line per interval, a summary. 80 columns; colours on a terminal alone."""
import math
import os
import re
import shlex
import shutil
import sys
import unicodedata
from pathlib import Path

from parallel import progress
from train.messages import message

COLOURS = {"bold": "1", "red": "31", "green": "32", "yellow": "33"}
LEVELS = {"stop": "red", "roll_back": "red", "warn": "yellow", "skip": "yellow"}  # of events
PAINT = re.compile(r"\033\[\d*m")


def size(count: float) -> str:
    """4506240 -> 4.5M."""
    for unit, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(count) >= unit:
            return f"{count / unit:.1f}{name}"
    return f"{count:.0f}"


def mean_of_finite(values: list[float]) -> float:
    """The mean of the values that are finite; NaN if none is."""
    good = [v for v in values if math.isfinite(v)]
    return sum(good) / len(good) if good else math.nan


def duration(seconds: float) -> str:
    """75 -> 1:15; 3700 -> 1:01:40."""
    if not math.isfinite(seconds):
        return "-"
    minutes, s = divmod(int(seconds), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02d}:{s:02d}" if hours else f"{m}:{s:02d}"


def shown(path: Path) -> str:
    """A path as a person would type it here: relative where it lies below the current folder."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def width(text: str) -> int:
    """Columns that a text takes: Chinese characters take two, what colours it none."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else not unicodedata.combining(c) for c in PAINT.sub("", text))


def left(text: str, columns: int) -> str:
    """Filled up with spaces on the right."""
    return text + " " * (columns - width(text))


def right(text: str, columns: int) -> str:
    """Filled up with spaces on the left."""
    return " " * (columns - width(text)) + text


def cut(text: str, columns: int) -> str:
    """As much of a text's beginning as so many columns hold."""
    while width(text) > columns:
        text = text[:-1]
    return text


def painted(text: str, colour: str | None) -> str:
    """In a colour, or bold, if this is a terminal and neither NO_COLOR nor TERM forbid it."""
    plain = not colour or not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return text if plain else f"\033[{COLOURS[colour]}m{text}\033[0m"


def fitted(text: str, columns: int, hang: int) -> str:
    """In lines of at most so many columns, broken at spaces; all but the first begin with `hang` spaces."""
    lines, line = [], ""
    for word in re.findall(r"\s*\S+", text):
        if line.strip() and width(line + word) > columns:
            lines.append(line)
            line, word = " " * hang, word.lstrip()
        line += word
    return "\n".join([*lines, line])


def folded(text: str, hang: int = 16) -> str:
    """On a terminal in lines that fit it, in a log as one line."""
    columns = shutil.get_terminal_size().columns
    return fitted(text, columns, hang) if sys.stdout.isatty() and width(text) > columns > 2 * hang else text


def say(text: str = "", hang: int = 16) -> None:
    """Print at once, folded."""
    progress.clear()
    print(folded(text, hang), flush=True)


def header(rows: list[tuple[str, str]]) -> None:
    """Names and values of a run, one pair a line."""
    for name, value in rows:
        say(f"{painted(left(name, 12), 'bold')} {value}", hang=13)


class Console:
    """A sink: prints one line for the rows of each interval."""

    WIDTHS = {"step": 8, "done": 5, "loss": 7, "lr": 8, "grad_norm": 8, "loss_scale": 7, "speed": 7, "wait": 5, "memory": 5,
              "eta": 8}

    def __init__(self, total_steps: int):
        self.total, self.lines = total_steps, 0

    def write(self, rows: list[dict]) -> None:
        """The last row's step; the loss is the mean over the rows."""
        last = rows[-1]
        if self.lines % 20 == 0:
            say(painted(" ".join(right(message(f"column.{name}"), n) for name, n in self.WIDTHS.items()), "bold"))
        self.lines += 1
        step, seconds, scale = last["step"], last["step_seconds"], last["loss_scale"]
        figures = {
            "step": f"{step}", "done": f"{step / self.total:.0%}", "loss": f"{mean_of_finite([r['loss'] for r in rows]):.4f}",
            "lr": f"{last['lr']:.2e}", "grad_norm": f"{last['grad_norm']:.3f}",
            "loss_scale": size(scale) if scale >= 1e6 else f"{scale:.6g}",
            "speed": size(last["tokens_per_second"]) if last["tokens_per_second"] else "-",
            "wait": f"{last['data_wait']:.1%}" if last["data_wait"] is not None else "-", "memory": size(last["memory_bytes"]),
            "eta": duration((self.total - step) * seconds) if seconds else "-"}
        skipped = sum(r["overflow"] for r in rows)
        say(" ".join(right(figures[name], n) for name, n in self.WIDTHS.items())
            + (f"  {painted(message('skipped', count=skipped), 'yellow')}" if skipped else ""))

    def sync(self) -> None:
        """Nothing is buffered."""

    def close(self) -> None:
        """Nothing is open."""


def summary(report: dict, folder: Path) -> None:
    """The end of a run."""
    say()
    speed = message("done.speed", speed=size(report["tokens_per_second"])) if report["tokens_per_second"] else ""
    say(painted(message("done", steps=report["steps"], total=report["total_steps"], seconds=duration(report["train_seconds"]),
                        compiling=duration(report["compile_seconds"])) + speed, "green"))
    lines = []
    if report["val_perplexity"]:
        at = "" if report["val_step"] == report["steps"] else message("done.at", step=report["val_step"])
        lines.append(("done.validation", message("done.validation.value", loss=report["val_loss"],
                                                 perplexity=report["val_perplexity"], accuracy=report["val_accuracy"], at=at,
                                                 unigram=report["unigram_perplexity"])))
    lines += [
        ("done.time", message("done.time.value", evaluation=report["eval_time_fraction"], health=report["health_time_fraction"],
                              data=report["data_wait_fraction"], checkpoints=report["checkpoint_time_fraction"])),
        ("done.memory", message("done.memory.value", gib=report["peak_memory_bytes"] / 2**30, ranks=report["world_size"])),
        ("done.written", f"{shown(folder)}: report.html, metrics.jsonl, checkpoints/, eval/"),
        ("done.look", f"bash run_scripts/tensorboard.sh {shlex.quote(shown(folder))}")]
    for name, value in lines:
        say(f"  {left(message(name), 12)} {value}", hang=15)
