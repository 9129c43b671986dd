"""Checkpoints on disk: where they are, whether they are whole, what is in them. `ckpt.writing` writes them.

    checkpoints/step_00000200/   model.safetensors  optimizer.safetensors  state.json  config.yaml  manifest.json
    checkpoints/latest           the name of the newest one, for people and scripts

Where several ranks write, each has files of its own, model-rank_00003.safetensors, with the parts of tensors that it held, and
layouts-rank_00003.json, MindSpore's strategy for each; what is read is the same whatever wrote it. Order is by the step in
`state.json` alone: names and times of files may lie after a copy.

MindSpore's `save_checkpoint` is not used: it does no fsync, removes an existing target before it writes, and its checksums are
optional and unnoticed when missing.
"""
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ckpt.tensors import BrokenCheckpoint, Tensors
from parallel.errors import UserError
from parallel.files import sha256

MODEL, OPTIMIZER, STATE, CONFIG, MANIFEST, LATEST = "model", "optimizer", "state.json", "config.yaml", "manifest.json", "latest"
LAYOUTS = "layouts-rank_{:05d}.json"
PARTS = (MODEL, OPTIMIZER)
THREADS = 4  # files that are read at once; one does not reach what a disk gives


@dataclass(frozen=True)
class Checkpoint:
    """The full state of a run after `step` updates.

    tensors: {"model": name -> array, "optimizer": name -> array}; state: all that is not a tensor (step, consumed_samples, seed,
    hashes, versions ...), JSON; config: the resolved config as YAML.
    """

    tensors: dict[str, Mapping[str, np.ndarray]]
    state: dict
    config: str

    @property
    def step(self) -> int:
        """Updates done."""
        return self.state["step"]


def file_of(part: str, rank: int | None = None) -> str:
    """The name of a file of tensors; rank: of the one that writes it, where several do."""
    return f"{part}.safetensors" if rank is None else f"{part}-rank_{rank:05d}.safetensors"


def files_of(part: str, names: Mapping | list) -> list[str]:
    """Those of some files that hold tensors of a part."""
    return sorted(n for n in names if n.endswith(".safetensors") and n.removesuffix(".safetensors").partition("-")[0] == part)


def folder_of(root: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return root / f"step_{step:08d}"


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


def manifest_of(folder: Path) -> dict[str, tuple[int, str]]:
    """name -> (bytes, SHA-256) of every file of a checkpoint. Raises BrokenCheckpoint."""
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        return {name: (file["bytes"], file["sha256"]) for name, file in files.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BrokenCheckpoint(f"{folder / MANIFEST} cannot be read ({error})") from None


def problems_of(folder: Path, share: tuple[int, int] = (0, 1), looked: Callable[[int], None] = lambda size: None) -> list[str]:
    """What is wrong with a checkpoint: files missing from its manifest or from the folder, of another size or SHA-256.

    Args:
        share: (rank, count): of the SHA-256 sums only every count-th is looked at, so that ranks may share the work.
        looked: told the bytes of each file when it is done.
    """
    try:
        expected = manifest_of(folder)
    except BrokenCheckpoint as error:
        return [str(error)]
    problems = [f"{folder / MANIFEST} names no {name}" for name in (STATE, CONFIG) if name not in expected]
    if not files_of(MODEL, expected):
        problems.append(f"{folder / MANIFEST} names no {file_of(MODEL)}")
    with ThreadPoolExecutor(THREADS) as pool:
        found = [(size, pool.submit(problem_of, folder / name, size, digest if number % share[1] == share[0] else None))
                 for number, (name, (size, digest)) in enumerate(sorted(expected.items()))]
        for size, one in found:
            problems += [problem] if (problem := one.result()) else []
            looked(size)
    return problems


def problem_of(path: Path, size: int, digest: str | None) -> str | None:
    """What is wrong with a file of so many bytes and this SHA-256 (None: not looked at); None: nothing."""
    try:
        if (found := path.stat().st_size) != size:
            return f"{path} has {found} bytes, not {size}"
        if digest and sha256(path) != digest:
            return f"{path} was altered: its SHA-256 is not the manifest's"
    except OSError as error:
        return f"{path} cannot be read ({error})"
    return None


def verify(folder: Path) -> None:
    """Raise BrokenCheckpoint unless every file is there with the size and SHA-256 of the manifest."""
    if problems := problems_of(folder):
        raise BrokenCheckpoint("; ".join(problems))


def load(folder: Path) -> Checkpoint:
    """Verify a checkpoint and open it. Raises BrokenCheckpoint."""
    verify(folder)
    return opened(folder)


def opened(folder: Path) -> Checkpoint:
    """A checkpoint that has been verified. Raises BrokenCheckpoint."""
    names = manifest_of(folder)
    try:
        config = (folder / CONFIG).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise BrokenCheckpoint(f"{folder / CONFIG} cannot be read ({error})") from None
    tensors = {part: Tensors([folder / name for name in files]) for part in PARTS if (files := files_of(part, names))}
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


def find(root: Path, rank: int = 0, ranks: int = 1, gather: Callable[[list], np.ndarray] = lambda x: np.array([x]),
         refused: Callable[[dict], str] = lambda state: "") -> tuple[Checkpoint | None, list[str]]:
    """The newest whole checkpoint below `root`, if any, and why newer ones were passed over.

    With several ranks they agree on it: all see it, and each has found its share of the files to be right.

    Args:
        gather: numbers of this rank -> float64 [ranks, n] on every rank.
        refused: a checkpoint's state -> why it is not to be taken, "" if it is; such ones are no matter of damage, and not told.
    """
    passed_over, bound = [], np.inf
    while True:
        states = [(read_state(folder), folder) for folder in steps(root)]
        mine = [(state["step"], folder) for state, folder in states if not refused(state)]
        step, folder = max(((s, f) for s, f in mine if s < bound), default=(-1, None))
        newest = gather([step])[:, 0]
        bound = newest.max()
        if bound < 0:
            return None, passed_over
        if newest.min() < bound:
            blind = ", ".join(str(r) for r, s in enumerate(newest) if s < bound)
            passed_over.append(f"{folder_of(root, int(bound))}: rank {blind} does not see it")
            continue
        problems = problems_of(folder, (rank, ranks))
        bad = gather([len(problems)])[:, 0]
        if not bad.any():
            return opened(folder), passed_over
        others = ", ".join(str(r) for r, n in enumerate(bad) if n)
        passed_over.append("; ".join(problems) or f"{folder}: rank {others} found it damaged")


def differences(expected: dict[str, tuple[int, ...]], found: dict[str, tuple[int, ...]]) -> list[str]:
    """What keeps tensors `found` (name -> shape) from being loaded where `expected` is wanted; empty if nothing does."""
    lines = [f"missing: {name} {list(expected[name])}" for name in sorted(expected.keys() - found.keys())]
    lines += [f"unexpected: {name} {list(found[name])}" for name in sorted(found.keys() - expected.keys())]
    lines += [f"shape of {name}: {list(found[name])} in the file, {list(expected[name])} in the model"
              for name in sorted(expected.keys() & found.keys()) if tuple(expected[name]) != tuple(found[name])]
    return lines
