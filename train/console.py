"""What a person sees: a header, one aligned line per interval, a summary. 80 columns."""
import math
import shlex
from pathlib import Path


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


def say(text: str = "") -> None:
    """Print at once."""
    print(text, flush=True)


def header(rows: list[tuple[str, str]]) -> None:
    """Names and values of a run, one pair a line."""
    for name, value in rows:
        say(f"{name:<12} {value}")


class Console:
    """A sink: prints one line for the rows of each interval."""

    COLUMNS = "    step  done    loss       lr   g.norm   scale   tok/s  wait   mem      eta"

    def __init__(self, total_steps: int):
        self.total, self.lines = total_steps, 0

    def write(self, rows: list[dict]) -> None:
        """The last row's step; the loss is the mean over the rows."""
        last = rows[-1]
        if self.lines % 20 == 0:
            say(self.COLUMNS)
        self.lines += 1
        step, seconds = last["step"], last["step_seconds"]
        eta = duration((self.total - step) * seconds) if seconds else "-"
        speed = size(last["tokens_per_second"]) if last["tokens_per_second"] else "-"
        wait = f"{last['data_wait']:.1%}" if last["data_wait"] is not None else "-"
        skipped = sum(r["overflow"] for r in rows)
        say(f"{step:8d} {step / self.total:5.0%} {mean_of_finite([r['loss'] for r in rows]):7.4f} {last['lr']:8.2e} "
            f"{last['grad_norm']:8.3f} {last['loss_scale']:7.6g} {speed:>7} {wait:>5} {size(last['memory_bytes']):>5} {eta:>8}"
            + (f"  {skipped} step(s) skipped: gradients not finite" if skipped else ""))

    def sync(self) -> None:
        """Nothing is buffered."""

    def close(self) -> None:
        """Nothing is open."""


def summary(report: dict, folder: Path) -> None:
    """The end of a run."""
    say()
    speed = f", {size(report['tokens_per_second'])} tokens/s" if report["tokens_per_second"] else ""
    say(f"done: {report['steps']} of {report['total_steps']} steps; this start: {duration(report['train_seconds'])} after "
        f"{report['compile_seconds']:.0f} s of compiling{speed}")
    if report["val_perplexity"]:
        at = "" if report["val_step"] == report["steps"] else f" at step {report['val_step']}"
        say(f"  validation   loss {report['val_loss']:.4f}, perplexity {report['val_perplexity']:.1f}, accuracy "
            f"{report['val_accuracy']:.1%}{at}  (a unigram model: perplexity {report['unigram_perplexity']:.0f})")
    say(f"  time         evaluation {report['eval_time_fraction']:.1%}, health {report['health_time_fraction']:.1%}, "
        f"waiting for data {report['data_wait_fraction']:.1%}, checkpoints {report['checkpoint_time_fraction']:.1%}")
    say(f"  memory       at most {report['peak_memory_bytes'] / 2**30:.2f} GiB on each of {report['world_size']} rank(s)")
    say(f"  written to   {shown(folder)}: report.json, metrics.jsonl, checkpoints/, eval/")
    say(f"  look         bash run_scripts/tensorboard.sh {shlex.quote(shown(folder))}")
