"""Checkpoints on disk.

    checkpoints/step_00000200/   model.safetensors  optimizer.safetensors  state.json  config.yaml  manifest.json
    checkpoints/latest           the name of the newest one, for people and scripts

A checkpoint is written to a `.tmp-` folder, its files and their SHA-256 sums reach the disk, then the folder gets its name, then
`latest` moves, then old ones go. Order is by the step in `state.json` alone: names and times of files may lie after a copy.

safetensors' own reader and writer are used, not MindSpore's: `mindspore.save_checkpoint` does no fsync, removes an existing
target before it writes, and its checksums are optional and unnoticed when missing.
"""
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from parallel.errors import UserError
from parallel.files import fsync_file, fsync_folder, replace_text, sha256

MODEL, OPTIMIZER, STATE, CONFIG, MANIFEST = "model", "optimizer", "state.json", "config.yaml", "manifest.json"
TENSOR_FILES = {MODEL: "model.safetensors", OPTIMIZER: "optimizer.safetensors"}


@dataclass(frozen=True)
class Checkpoint:
    """The full state of a run after `step` updates.

    tensors: {"model": name -> array, "optimizer": name -> array}; state: all that is not a tensor (step, consumed_samples, seed,
    hashes, versions ...), JSON; config: the resolved config as YAML.
    """

    tensors: dict[str, dict[str, np.ndarray]]
    state: dict
    config: str

    @property
    def step(self) -> int:
        """Updates done."""
        return self.state["step"]


class BrokenCheckpoint(Exception):
    """A folder that is no whole checkpoint; the text says what is wrong with it."""


def folder_of(root: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return root / f"step_{step:08d}"


def save(root: Path, checkpoint: Checkpoint, keep_last: int) -> Path:
    """Write a checkpoint below `root`, make it `latest`, and remove older ones but for `keep_last` in all. Returns its folder."""
    folder = folder_of(root, checkpoint.step)
    for left_over in (*root.glob(".tmp-step_*"), *root.glob(".old-step_*")):  # of a process that was killed
        shutil.rmtree(left_over)
    write(folder, checkpoint)
    replace_text(root / "latest", folder.name + "\n")
    rotate(root, checkpoint.step, keep_last)
    return folder


def write(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint as `folder`, whole or not at all. What was there is replaced."""
    final = Path(os.path.abspath(folder))
    temporary, old = final.with_name(f".tmp-{final.name}"), final.with_name(f".old-{final.name}")
    temporary.mkdir(parents=True)
    for part, name in TENSOR_FILES.items():
        if part in checkpoint.tensors:
            save_file({n: np.ascontiguousarray(a) for n, a in checkpoint.tensors[part].items()}, temporary / name)
    (temporary / STATE).write_text(json.dumps(checkpoint.state, indent=1), encoding="utf-8")
    (temporary / CONFIG).write_text(checkpoint.config, encoding="utf-8")
    files = {f.name: {"bytes": f.stat().st_size, "sha256": sha256(f)} for f in sorted(temporary.iterdir())}
    (temporary / MANIFEST).write_text(json.dumps({"files": files}, indent=1), encoding="utf-8")
    for f in temporary.iterdir():
        fsync_file(f)
    fsync_folder(temporary)
    if final.exists():  # a broken one: a run that goes on from an earlier step writes it again
        final.rename(old)
    temporary.rename(final)
    fsync_folder(final.parent)
    if old.exists():
        shutil.rmtree(old)


def rotate(root: Path, step: int, keep_last: int) -> None:
    """Of the checkpoints up to `step`, remove all but the newest `keep_last`.

    What does not bear the name that `save` gives, a copy that somebody keeps for example, is left alone.
    """
    ours = [folder for folder in steps(root) if (s := read_state(folder)["step"]) <= step and folder == folder_of(root, s)]
    for folder in ours[:-keep_last]:
        shutil.rmtree(folder)


def steps(root: Path) -> list[Path]:
    """Folders below `root` that name themselves checkpoints (their state can be read), by ascending step."""
    found = []
    for folder in root.glob("*/") if root.is_dir() else ():
        if not folder.name.startswith("."):
            try:
                found.append((read_state(folder)["step"], folder.name, folder))
            except BrokenCheckpoint:
                continue  # not a checkpoint, or not a whole one: nothing of ours to order or to remove
    return [folder for *_, folder in sorted(found)]


def read_state(folder: Path) -> dict:
    """state.json of a checkpoint. Raises BrokenCheckpoint."""
    try:
        state = json.loads((folder / STATE).read_text(encoding="utf-8"))
        if type(state["step"]) is not int:
            raise BrokenCheckpoint(f"{folder / STATE}: step is not a number")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BrokenCheckpoint(f"{folder / STATE} cannot be read ({error})") from None
    return state


def problems_of(folder: Path) -> list[str]:
    """What is wrong with a checkpoint: files missing from its manifest or from the folder, of another size or SHA-256."""
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        expected = {name: (file["bytes"], file["sha256"]) for name, file in files.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return [f"{folder / MANIFEST} cannot be read ({error})"]
    problems = [f"{folder / MANIFEST} names no {name}" for name in (STATE, CONFIG, TENSOR_FILES[MODEL]) if name not in expected]
    for name, (size, digest) in expected.items():
        path = folder / name
        try:
            found = path.stat().st_size
            if found != size:
                problems.append(f"{path} has {found} bytes, not {size}")
            elif sha256(path) != digest:
                problems.append(f"{path} was altered: its SHA-256 is not the manifest's")
        except OSError as error:
            problems.append(f"{path} cannot be read ({error})")
    return problems


def verify(folder: Path) -> None:
    """Raise BrokenCheckpoint unless every file is there with the size and SHA-256 of the manifest."""
    if problems := problems_of(folder):
        raise BrokenCheckpoint("; ".join(problems))


def load(folder: Path) -> Checkpoint:
    """Read and verify a checkpoint. Raises BrokenCheckpoint."""
    verify(folder)
    try:
        tensors = {part: load_file(folder / name) for part, name in TENSOR_FILES.items() if (folder / name).exists()}
        config = (folder / CONFIG).read_text(encoding="utf-8")
    except (OSError, SafetensorError, ValueError) as error:
        raise BrokenCheckpoint(f"{folder}: {error}") from None
    return Checkpoint(tensors, read_state(folder), config)


def given(path: Path) -> Path:
    """The checkpoint that a user named: its folder, or a run or a folder of checkpoints (the newest). Raises UserError."""
    if not path.is_dir():
        raise UserError(f"{path}: no such checkpoint folder")
    root = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    folder = path if (path / STATE).exists() else (steps(root) or [None])[-1]
    if folder is None:
        raise UserError(f"{path}: neither a checkpoint (it has no {STATE}) nor a folder with one")
    return folder


def load_given(path: Path) -> Checkpoint:
    """Read the checkpoint that a user named, see `given`. Raises UserError."""
    try:
        return load(given(path))
    except BrokenCheckpoint as error:
        raise UserError(f"this checkpoint cannot be used: {error}") from None


def find(root: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest whole checkpoint below `root`, if any, and why newer ones were passed over."""
    passed_over = []
    for folder in reversed(steps(root)):
        try:
            return load(folder), passed_over
        except BrokenCheckpoint as error:
            passed_over.append(str(error))
    return None, passed_over


def differences(expected: dict[str, tuple[int, ...]], found: dict[str, tuple[int, ...]]) -> list[str]:
    """What keeps tensors `found` (name -> shape) from being loaded where `expected` is wanted; empty if nothing does."""
    lines = [f"missing: {name} {list(expected[name])}" for name in sorted(expected.keys() - found.keys())]
    lines += [f"unexpected: {name} {list(found[name])}" for name in sorted(found.keys() - expected.keys())]
    lines += [f"shape of {name}: {list(found[name])} in the file, {list(expected[name])} in the model"
              for name in sorted(expected.keys() & found.keys()) if tuple(expected[name]) != tuple(found[name])]
    return lines
