"""python -m train.show_schedule --config C: the learning rate of a run's next steps, printed or drawn."""
import argparse
import sys
from pathlib import Path

from ckpt import store
from parallel import config_file
from parallel.errors import UserError
from train.config import load_config


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m train.show_schedule", description=__doc__.partition(": ")[2])
    config_file.add_arguments(parser)
    parser.add_argument("--steps", type=int, default=1000, metavar="N", help="how many; default: 1000")
    parser.add_argument("--from-step", type=int, metavar="N", help="after so many; default: the run's newest checkpoint, or 0")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw it instead (needs the extra `plot`)")
    options = parser.parse_args(arguments)
    try:
        config = load_config(options.config, options.overrides)
        if options.steps < 1 or (options.from_step or 0) < 0:
            raise UserError(f"--steps {options.steps}, --from-step {options.from_step}: give 1 or more, and 0 or more")
        if (first := options.from_step) is None:
            first = max((store.read_state(f)["step"] for f in store.steps(config.run.folder / "checkpoints")), default=0)
        from train.schedule import learning_rate  # late: it loads MindSpore
        steps = range(first, min(first + options.steps, config.train.total_steps))
        if not steps:
            raise UserError(f"the run ends at train.total_steps={config.train.total_steps}: there is no step after {first}")
        rates = [learning_rate(config.train, step) for step in steps]
        if options.plot:
            draw(options.plot, [step + 1 for step in steps], rates)
        else:
            print("\n".join(f"{step + 1:8} {rate:.6e}" for step, rate in zip(steps, rates, strict=True)))
        return 0
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def draw(path: Path, steps: list[int], rates: list[float]) -> None:
    """Write a PNG. Raises UserError without matplotlib, or where it cannot be written."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("the plot needs matplotlib, which is not there: pip install 'mindgpt[plot]'") from None
    axes = (figure := Figure(figsize=(8, 4), layout="constrained")).add_subplot(xlabel="step", ylabel="learning rate")
    axes.plot(steps, rates)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    try:
        figure.savefig(path, format="png", dpi=100)
    except OSError as error:
        raise UserError(f"--plot {path} cannot be written ({error.strerror})") from None


if __name__ == "__main__":
    sys.exit(main())
