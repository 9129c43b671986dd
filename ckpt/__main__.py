"""python -m ckpt list | verify | import-hf | export-hf"""
import argparse
import sys
from pathlib import Path

from ckpt import hf, store
from parallel.errors import UserError


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0: done; 1: a broken checkpoint (verify); 2: the user's input is wrong and nothing was written."""
    parser = argparse.ArgumentParser(prog="python -m ckpt", description="Look at checkpoints, and convert them.")
    commands = parser.add_subparsers(dest="command", required=True)
    listing = commands.add_parser("list", help="the checkpoints of a run")
    listing.add_argument("folder", type=Path, metavar="RUN_OR_FOLDER", help="a run, or a folder of checkpoints")
    verifying = commands.add_parser("verify", help="hold every file against the manifest's sizes and SHA-256 sums")
    verifying.add_argument("folder", type=Path, metavar="CHECKPOINT", help="one checkpoint, or a run or folder of them: all")
    importing = commands.add_parser("import-hf", help="a GPT-2 of transformers (safetensors) to a checkpoint for ckpt.init_from")
    exporting = commands.add_parser("export-hf", help="a checkpoint to a folder for GPT2LMHeadModel.from_pretrained")
    importing.add_argument("source", type=Path, metavar="SRC", help="folder with config.json and model.safetensors")
    exporting.add_argument("source", type=Path, metavar="CHECKPOINT", help="one checkpoint, or a folder of them: the newest")
    for command in (importing, exporting):
        command.add_argument("target", type=Path, metavar="DST", help="folder to make; must not exist, or be empty")
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
    elif options.command == "import-hf":
        model = hf.import_hf(options.source, options.target)
        print(f"{options.target}: weights for ckpt.init_from, of a run with\n  model:")
        print("\n".join(f"    {key}: {value}" for key, value in model.items()))
    else:
        checkpoint = hf.export_hf(options.source, options.target)
        print(f"{options.target}: the weights after step {checkpoint.step}, for GPT2LMHeadModel.from_pretrained")
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
        parts = [part for part, name in store.TENSOR_FILES.items() if (path / name).exists()]
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
    code = 0
    for checkpoint in found:
        problems = store.problems_of(checkpoint)
        print("\n".join(problems or [f"{checkpoint}: whole"]))
        code = 1 if problems else code
    return code


if __name__ == "__main__":
    sys.exit(main())
