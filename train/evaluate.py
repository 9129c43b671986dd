"""python -m eval: the tiers on a checkpoint, by the code that runs them in training."""
import argparse
import sys
from pathlib import Path

from ckpt import store
from parallel.errors import UserError
from train import reports
from train.config import load_config

# The weights in a checkpoint are whole, so the mesh need not be the one that they were trained under.
ONE_CARD = ["parallel.dp=auto", "parallel.tp=1", "parallel.pp=1", "parallel.num_micro_batches=auto", "parallel.virtual_stages=1",
            "parallel.stage_layers=auto", "parallel.sequence_parallel=false"]


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m eval", description=__doc__.partition(": ")[2])
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="D", help="a checkpoint's folder, or a run's")
    parser.add_argument("--tiers", default="stage,deep", help="stage, deep or both (default)")
    parser.add_argument("--full", action="store_true", help="the whole of the text and of the questions; default: as much as the "
                        "run itself evaluated at this step, or all if it did not")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the report as JSON")
    parser.add_argument("--set", dest="overrides", nargs="+", action="extend", default=[], metavar="KEY=VALUE",
                        help="other settings")
    options = parser.parse_args(arguments)
    try:
        if wrong := set(tiers := options.tiers.split(",")) - {"stage", "deep"}:
            raise UserError(f"--tiers {options.tiers}: there is no tier {min(wrong)}; allowed are stage, deep, or stage,deep")
        if options.report and (options.report.is_dir() or not options.report.parent.is_dir()):
            raise UserError(f"--report {options.report}: give a file in a folder that exists")
        evaluate(options.checkpoint, tiers, options.full, options.overrides, options.report)
        return 0
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def evaluate(path: Path, tiers: list[str], full: bool, overrides: list[str], target: Path | None) -> None:
    """Evaluate a checkpoint under its own config, by the ranks that there are; the report goes to `target`, if any."""
    folder = store.given(path)
    checkpoint = store.load_given(folder)
    config = load_config(folder / store.CONFIG, ONE_CARD + overrides)
    from train.evaluation import evaluate_checkpoint  # late: a refusal does not wait for MindSpore
    shares = (1.0, 1.0) if full else reports.shares(folder.parent.parent / "eval", checkpoint.step)
    evaluate_checkpoint(config, checkpoint, folder, tiers, shares, target)
