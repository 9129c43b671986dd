"""python -m data prepare|inspect|tune --config C [--set data.x=y ...]"""
import argparse
import sys

from data.config import DataConfig
from parallel.config_file import add_arguments, load_section
from parallel.errors import UserError


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0: done; 2: the user's input is wrong and nothing was written."""
    parser = argparse.ArgumentParser(prog="python -m data", description="Text to MindRecord, and a look at it.")
    commands = parser.add_subparsers(dest="command", required=True)
    prepare_parser = commands.add_parser("prepare", help="text to tokenizer, MindRecord files and a manifest")
    inspect_parser = commands.add_parser("inspect", help="show prepared samples as text")
    tune_parser = commands.add_parser("tune", help="measure how fast prepared data is read here, and name the best setting")
    for command in (prepare_parser, inspect_parser, tune_parser):
        add_arguments(command)
    inspect_parser.add_argument("--set-name", default="train", help="train or valid_<corpus> (default: %(default)s)")
    inspect_parser.add_argument("--start", type=int, default=0, help="number of the first sample (default: %(default)s)")
    inspect_parser.add_argument("--count", type=int, default=3, help="how many samples (default: %(default)s)")
    inspect_parser.add_argument("--pieces", action="store_true", help="mark the cuts between tokens")
    tune_parser.add_argument("--batch-size", type=int, default=8, help="samples of a step on one rank (default: %(default)s)")
    tune_parser.add_argument("--seconds", type=float, default=2.0, help="for each setting in each round (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        run(options)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def run(options: argparse.Namespace) -> None:
    config = load_section(options.config, options.overrides, "data", DataConfig)
    if options.command == "prepare":
        from data.prepare import prepare  # mistakes in the config are told before slow imports

        prepare(config)
    elif options.command == "tune":
        from data.manifest import load_manifest
        from data.tune import tune

        manifest = load_manifest(config)
        samples = manifest.sets["train"].samples
        if not 0 < options.batch_size <= samples:
            raise UserError(f"--batch-size {options.batch_size}: 1 to {samples} samples, as many as the training set has")
        if options.seconds <= 0:
            raise UserError(f"--seconds {options.seconds:g}: more than 0")
        tune(manifest, config, options.batch_size, options.seconds)
    else:
        from data.inspect_samples import show_samples
        from data.manifest import load_manifest

        show_samples(load_manifest(config), config, options.set_name, options.start, options.count, options.pieces)


if __name__ == "__main__":
    sys.exit(main())
