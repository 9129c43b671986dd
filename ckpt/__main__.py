"""python -m ckpt list | verify | diff | reshard | import-hf | export-hf"""
import argparse
import sys
from pathlib import Path

from ckpt import hf, store
from ckpt.reshard import differences, reshard
from parallel.errors import UserError
from parallel.progress import Progress


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0: done; 1: a broken checkpoint (verify), or two that differ (diff); 2: wrong input, nothing was written."""
    parser = argparse.ArgumentParser(prog="python -m ckpt", description="Look at checkpoints, and convert them.")
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", help="the checkpoints of a run")
    listing.add_argument("folder", type=Path, metavar="RUN_OR_FOLDER", help="a run, or a folder of checkpoints")
    verifying = commands.add_parser("verify", help="hold every file against the manifest's sizes and SHA-256 sums")
    verifying.add_argument("folder", type=Path, metavar="CHECKPOINT", help="one checkpoint, or a run or folder of them: all")
    comparing = commands.add_parser("diff", help="what differs between two checkpoints")
    for name in ("a", "b"):
        comparing.add_argument(name, type=Path, metavar=name.upper(), help="one checkpoint, or a folder of them: the newest")
    cutting = commands.add_parser("reshard", help="write a checkpoint as the ranks of another mesh would")
    importing = commands.add_parser("import-hf", help="a GPT-2 of transformers (safetensors) to a checkpoint for ckpt.init_from")
    exporting = commands.add_parser("export-hf", help="a checkpoint to a folder for transformers' from_pretrained")
    importing.add_argument("source", type=Path, metavar="SRC", help="folder with config.json and model.safetensors")
    exporting.add_argument("source", type=Path, metavar="CHECKPOINT", help="one checkpoint, or a folder of them: the newest")
    cutting.add_argument("source", type=Path, metavar="SRC", help="one checkpoint, or a folder of them: the newest")
    for command in (importing, exporting, cutting):
        command.add_argument("target", type=Path, metavar="DST", help="folder to make; must not exist, or be empty")
    for axis in ("dp", "tp", "pp"):
        cutting.add_argument(f"--{axis}", type=int, default=1, metavar="N", help="of the other mesh (default 1)")
    options = parser.parse_args(arguments)
    try:
        return run(options)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def run(options: argparse.Namespace) -> int:
    if options.command == "list":
        print("\n".join(table(options.folder)))
    elif options.command == "verify":
        return verify(options.folder)
    elif options.command == "diff":
        lines = differences(options.a, options.b)
        print("\n".join(lines or ["the same tensors, state and config"]))
        return 1 if lines else 0
    elif options.command == "reshard":
        if min(options.dp, options.tp, options.pp) < 1:
            raise UserError("--dp, --tp and --pp are numbers of ranks: give 1 or more")
        print(f"{reshard(options.source, options.target, options.dp, options.tp, options.pp)}: for dp {options.dp} x tp "
              f"{options.tp} x pp {options.pp}")
    elif options.command == "import-hf":
        model = hf.import_hf(options.source, options.target)
        print(f"{options.target}: weights for ckpt.init_from, of a run with\n  model:")
        print("\n".join(f"    {key}: {value}" for key, value in model.items()))
    else:
        checkpoint = hf.export_hf(options.source, options.target)
        print(f"{options.target}: the weights after step {checkpoint.step}, for transformers' from_pretrained")
    return 0


def table(folder: Path) -> list[str]:
    """A line for each checkpoint of a run or folder, by step: its path, step, samples read, size, what it holds."""
    root = folder / "checkpoints" if (folder / "checkpoints").is_dir() else folder
    if not root.is_dir():
        raise UserError(f"{root}: no such folder")
    if not (found := store.steps(root)):
        raise UserError(f"{root}: no checkpoint there")
    lines = []
    for path in found:
        state = store.read_state(path)
        size = sum(f.stat().st_size for f in path.iterdir())
        parts = [part for part in store.PARTS if store.files_of(part, [f.name for f in path.iterdir()])]
        lines.append(f"{path}  step {state['step']}  samples {state.get('consumed_samples', 0)}  {size / 1e6:.1f} MB  "
                     f"{' + '.join(parts)}")
    return lines


def verify(folder: Path) -> int:
    """Print what is wrong with each checkpoint, or that nothing is. Returns the exit code."""
    root = folder / "checkpoints" if (folder / "checkpoints").is_dir() else folder
    marks = (store.MANIFEST, store.STATE)
    found = [f for f in (root, *sorted(root.glob("*/"))) if not f.name.startswith(".") and any((f / m).exists() for m in marks)]
    if not found:
        raise UserError(f"{folder}: no checkpoint there, which would have a {store.MANIFEST}")
    sizes = [sum(f.stat().st_size for f in checkpoint.iterdir()) for checkpoint in found]
    problems = []
    with Progress("verify", sum(sizes), "MB", scale=1e6) as progress:
        for checkpoint in found:
            problems.append(store.problems_of(checkpoint, looked=progress.advance))
    for checkpoint, wrong in zip(found, problems, strict=True):
        print("\n".join(wrong or [f"{checkpoint}: whole"]))
    return 1 if any(problems) else 0


if __name__ == "__main__":
    sys.exit(main())
