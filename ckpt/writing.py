"""Writing a checkpoint: whole or not at all, whatever happens on the way.

A folder `.tmp-step_N` is filled; the disk has each file, and what it has was read back and is right, before the folder gets its
name; then `latest` moves, then old ones go. Where several ranks write, each fills in its files and leaves a note of them;
the first waits for all notes before it goes on.
"""
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ckpt import store
from ckpt.tensors import Place, digest_of, pieces_of, write_pieces
from parallel.files import fsync_file, fsync_folder, replace_text, write_text

SPARE = 1 << 20  # bytes of a checkpoint that are not tensors, at most
NOTE = ".written-by-rank_{:05d}.json"
POLL = 0.05  # seconds


class SaveError(OSError):
    """A checkpoint could not be written; the one before it is untouched."""


def explained(root: Path, step: int, error: OSError) -> SaveError:
    """What the system said, and what a person needs to know with it."""
    if isinstance(error, SaveError):
        return error
    room = f"; {root} has {shutil.disk_usage(root).free / 1e6:,.1f} MB free" if root.is_dir() else ""
    return SaveError(f"the checkpoint of step {step} could not be written: {error}{room}. The one before it is untouched")


@dataclass(frozen=True)
class Part:
    """What one rank writes: {"model": ..., "optimizer": ...}; of what is part of a tensor, where it lies in the whole.

    layouts: how MindSpore cut the parameters, for who wants to know how this checkpoint came about; loading goes by `places`.
    """

    tensors: dict[str, Mapping[str, np.ndarray]]
    places: Mapping[str, Place] | None = None
    rank: int | None = None  # None: this part is all there is
    layouts: Mapping[str, list] | None = None

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for arrays in self.tensors.values() for a in arrays.values())


def temporary_of(root: Path, step: int, writer: str = "") -> Path:
    """Where the checkpoint of a step is filled in; writer: tells apart those that may write it at the same time."""
    return root / f".tmp-{store.folder_of(root, step).name}{writer and '.'}{writer}"


def begin(root: Path, step: int, nbytes: int, writer: str = "") -> Path:
    """An empty temporary folder for the checkpoint of a step, if the disk has room for `nbytes`. Raises SaveError, OSError."""
    root.mkdir(parents=True, exist_ok=True)
    temporary = temporary_of(root, step, writer)
    for left_over in (*root.glob(".tmp-step_*"), *root.glob(".old-step_*")):  # of a process that was killed
        shutil.rmtree(left_over)
    if (free := shutil.disk_usage(root).free) < nbytes + SPARE:
        raise SaveError(f"no room for the checkpoint of step {step}: it takes {nbytes / 1e6:,.1f} MB, {root} has "
                        f"{free / 1e6:,.1f} MB free. Make room, lower ckpt.keep_last, or choose another run.dir")
    temporary.mkdir()
    return temporary


def write_part(temporary: Path, part: Part) -> dict[str, dict]:
    """Write one rank's files and read them back; name -> {"bytes", "sha256"}. Raises SaveError, OSError."""
    files, digests = {}, {}
    with ThreadPoolExecutor(1) as hasher:  # beside the disk: first what is written, then what comes back
        for name, arrays in part.tensors.items():
            if arrays:
                path = temporary / store.file_of(name, part.rank)
                pieces = pieces_of(arrays, {n: place for n, place in (part.places or {}).items() if n in arrays})
                digests[path] = hasher.submit(digest_of, pieces)
                files[path] = write_pieces(path, pieces)
        found = [hasher.submit(lambda path: store.problem_of(path, files[path], digests[path].result()), path) for path in files]
        for path in files:
            fsync_file(path)
        if problems := [problem for one in found if (problem := one.result())]:
            raise SaveError(f"what was written does not come back: {'; '.join(problems)}")
    written = {path.name: {"bytes": size, "sha256": digests[path].result()} for path, size in files.items()}
    if part.layouts:
        name = store.LAYOUTS.format(part.rank)
        written[name] = write_text(temporary / name, json.dumps(part.layouts))
    return written


def leave_note(temporary: Path, rank: int, outcome: dict) -> None:
    """Tell the first rank that this one has written its files, {"files": ...}, or could not, {"error": ...}."""
    replace_text(temporary / NOTE.format(rank), json.dumps(outcome))


def gather_notes(temporary: Path, ranks: range, given_up: Callable[[], bool] = lambda: False) -> dict[str, dict]:
    """Wait for the files of all ranks, and remove their notes. Raises SaveError where one could not write."""
    files: dict[str, dict] = {}
    for rank in ranks:
        note = temporary / NOTE.format(rank)
        while not note.exists():
            if given_up():
                raise SaveError(f"the checkpoint was given up: rank {rank} has not written its part yet")
            time.sleep(POLL)
        outcome = json.loads(note.read_text(encoding="utf-8"))
        if "error" in outcome:
            raise SaveError(f"rank {rank} could not write its part: {outcome['error']}")
        files |= outcome["files"]
    for rank in ranks:
        (temporary / NOTE.format(rank)).unlink()
    return files


def publish(root: Path, temporary: Path, state: dict, config: str, files: dict[str, dict], keep_last: int) -> Path:
    """Give a filled folder its name, make it `latest`, and rotate. Returns the checkpoint's folder."""
    finish(temporary, store.folder_of(root, state["step"]), state, config, files)
    replace_text(root / store.LATEST, store.folder_of(root, state["step"]).name + "\n")
    rotate(root, state, keep_last)
    return store.folder_of(root, state["step"])


def finish(temporary: Path, final: Path, state: dict, config: str, files: dict[str, dict]) -> None:
    """Add what is not tensors, and give the folder its name. What was there is replaced."""
    for name, text in ((store.STATE, json.dumps(state, indent=1)), (store.CONFIG, config)):
        files = files | {name: write_text(temporary / name, text)}
    write_text(temporary / store.MANIFEST, json.dumps({"files": files}, indent=1))
    fsync_folder(temporary)
    old = final.with_name(f".old-{final.name}")
    if final.exists():  # of a run that has gone on from an earlier step
        os.rename(final, old)
    os.rename(temporary, final)
    fsync_folder(final.parent)
    if old.exists():
        shutil.rmtree(old)


def rotate(root: Path, state: dict, keep_last: int) -> None:
    """Of this run's checkpoints up to this one's step, remove all but the newest `keep_last`.

    Milestones stay, the one at the step of the best validation, and what does not bear the name that a step's checkpoint has (a
    copy that somebody keeps), or is of another run.
    """
    ours, best = [], (state.get("best_validation") or {}).get("step")
    for folder in store.steps(root):
        found = store.read_state(folder)
        if found["step"] <= state["step"] and folder == store.folder_of(root, found["step"]) and not found.get("milestone") \
                and found["step"] != best and found.get("run_id") == state.get("run_id"):
            ours.append(folder)
    remove(ours[:-keep_last])


def remove(folders: list[Path]) -> None:
    """Remove checkpoints; one that is removed in part bears no name of a checkpoint."""
    for folder in folders:
        gone = folder.with_name(f".old-{folder.name}")
        os.rename(folder, gone)
        shutil.rmtree(gone)


def discard(root: Path, folders: list[Path]) -> None:
    """Remove checkpoints that must not be taken any more; `latest` names the newest that stays."""
    if left := [folder for folder in store.steps(root) if folder not in folders]:
        replace_text(root / store.LATEST, left[-1].name + "\n")
    else:
        (root / store.LATEST).unlink(missing_ok=True)
    remove(folders)


def save(root: Path, checkpoint: store.Checkpoint, keep_last: int) -> Path:
    """Write a checkpoint below `root` from this process alone. Returns its folder. Raises SaveError, OSError."""
    part = Part(checkpoint.tensors)
    temporary = begin(root, checkpoint.step, part.nbytes)
    return publish(root, temporary, checkpoint.state, checkpoint.config, write_part(temporary, part), keep_last)


def write(folder: Path, checkpoint: store.Checkpoint) -> None:
    """Write a checkpoint as a folder of any name, which must not exist or be empty. Raises OSError."""
    final = Path(os.path.abspath(folder))
    temporary = final.with_name(f".tmp-{final.name}")
    temporary.mkdir(parents=True)
    if final.exists():
        final.rmdir()
    finish(temporary, final, checkpoint.state, checkpoint.config, write_part(temporary, Part(checkpoint.tensors)))
