"""python -m train.locate_nan --checkpoint D --step N: which cell of a step is the first that is not finite.

The checkpoint before the step is loaded, the steps between are done again, and step N is run cell by cell with probes (see
train/locating/locate.py). A training that meets such a step does the same by itself, in a process of its own (--dump).
"""
import argparse
import sys
from pathlib import Path

from ckpt import store
from parallel.errors import UserError
from parallel.mesh import make_mesh, micro_batches
from train.config import ONE_CARD, RunConfig, load_config


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m train.locate_nan", description=__doc__.partition(": ")[2].partition("\n")[0])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--checkpoint", type=Path, metavar="D", help="a checkpoint's folder; or a run's, for the last before N")
    source.add_argument("--dump", type=Path, metavar="FOLDER", help="what a training left for this command")
    parser.add_argument("--step", type=int, metavar="N", help="the step to look into; default: the first after the checkpoint")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write everything as JSON")
    parser.add_argument("--set", dest="overrides", nargs="+", action="extend", default=[], metavar="KEY=VALUE",
                        help="other settings")
    options = parser.parse_args(arguments)
    try:
        if options.report and (options.report.is_dir() or not options.report.parent.is_dir()):
            raise UserError(f"--report {options.report}: give a file in a folder that exists")
        if options.dump:
            if options.step is not None or options.overrides or options.report:
                raise UserError("--dump: step, settings and report are those of the training; leave --step, --set, --report away")
            from train.locating.apart import rerun_dump  # late, here and below: a refusal does not wait for MindSpore
            rerun_dump(options.dump)
            return 0
        folder = checkpoint_before(options.checkpoint, options.step)
        checkpoint = store.load_given(folder)
        config, ranks = on_one_card(folder, checkpoint, options.overrides)
        step = options.step if options.step is not None else checkpoint.step + 1
        if step > config.train.total_steps:
            raise UserError(f"--step {step}: the run ends at train.total_steps={config.train.total_steps}")
        from train.locating.rerun import rerun_step
        rerun_step(config, checkpoint, folder, step, ranks, options.report)
        return 0
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def checkpoint_before(path: Path, step: int | None) -> Path:
    """The checkpoint's folder; of several the last before the step (None: the last). Raises UserError."""
    folder = store.given(path)
    if step is None:
        return folder
    folders = [folder] if (path / store.STATE).exists() else store.steps(folder.parent)
    found = {store.read_state(f)["step"]: f for f in folders}
    if not (earlier := [f for at, f in found.items() if at < step]):
        raise UserError(f"--step {step}: {path} has no checkpoint before it, only of step {', '.join(map(str, found))}; give a "
                        "later step, or another checkpoint")
    return earlier[-1]


def on_one_card(folder: Path, checkpoint: store.Checkpoint, overrides: list[str]) -> tuple[RunConfig, int]:
    """The checkpoint's config for one card, with the micro-batches that the run's ranks had; and how many ranks shared them."""
    config, mesh = load_config(folder / store.CONFIG), checkpoint.state.get("mesh", {"dp": 1, "tp": 1, "pp": 1})
    mesh = make_mesh(config.parallel, mesh["dp"] * mesh["tp"] * mesh["pp"], 0)
    batch = config.train.global_batch_size
    size = batch // mesh.dp // micro_batches(config.parallel, batch, config.train.micro_batch_size, mesh.dp)
    return load_config(folder / store.CONFIG, [*ONE_CARD, f"train.micro_batch_size={size}", *overrides]), mesh.dp


if __name__ == "__main__":
    sys.exit(main())
