"""python -m eval: the tiers on a checkpoint, by the code that runs them in training."""
import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from ckpt import store
from parallel.errors import UserError
from train import reports
from train.config import ONE_CARD, load_config
from train.launch import free_port
from train.workers import Topology, run_workers


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m eval", description=__doc__.partition(": ")[2])
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="D", help="a checkpoint's folder, or a run's")
    parser.add_argument("--tiers", default="stage,deep", help="stage, deep or both (default)")
    parser.add_argument("--full", action="store_true", help="the whole of the text and of the questions; default: as much as the "
                        "run itself evaluated at this step, or all if it did not")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes that share the work (default 1)")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the report as JSON")
    parser.add_argument("--set", dest="overrides", nargs="+", action="extend", default=[], metavar="KEY=VALUE",
                        help="other settings")
    options = parser.parse_args(arguments)
    try:
        if options.workers < 1:
            raise UserError(f"--workers {options.workers}: give 1 or more")
        if wrong := set(tiers := options.tiers.split(",")) - {"stage", "deep"}:
            raise UserError(f"--tiers {options.tiers}: there is no tier {min(wrong)}; allowed are stage, deep, or stage,deep")
        if options.report and (options.report.is_dir() or not options.report.parent.is_dir()):
            raise UserError(f"--report {options.report}: give a file in a folder that exists")
        if options.workers > 1 and "RANK_SIZE" not in os.environ:
            return by_workers(options.workers, sys.argv[1:] if arguments is None else arguments)
        evaluate(options.checkpoint, tiers, options.full, options.overrides, options.report)
        return 0
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def by_workers(count: int, arguments: list[str]) -> int:
    """The same command as `count` processes of this machine. Returns the exit code; what they wrote stays if it is not 0."""
    logs = Path(tempfile.mkdtemp(prefix="mindgpt-eval-"))
    code = run_workers(["-m", "eval", *arguments], Topology(count, free_port()), logs)
    if code:
        print(f"what the workers wrote: {logs}", file=sys.stderr)
    else:
        shutil.rmtree(logs)
    return code


def evaluate(path: Path, tiers: list[str], full: bool, overrides: list[str], target: Path | None) -> None:
    """Evaluate a checkpoint under its own config, by the ranks that there are; the report goes to `target`, if any."""
    folder = store.given(path)
    checkpoint = store.load_given(folder)
    config = load_config(folder / store.CONFIG, ONE_CARD + overrides)
    from train.evaluation import evaluate_checkpoint  # late: a refusal does not wait for MindSpore
    shares = (1.0, 1.0) if full else reports.shares(folder.parent.parent / "eval", checkpoint.step)
    evaluate_checkpoint(config, checkpoint, folder, tiers, shares, target)
