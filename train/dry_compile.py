"""Compile the graphs of ranks with no device, and keep them: the same config and the same code are not compiled twice."""
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from parallel import config_file
from parallel.dry_run.pool import Outcome, compile_ranks
from parallel.files import cache_folder, keep_newest
from parallel.lockstep import mindir
from train.config import RunConfig
from train.sources import ROOT, contents

KEPT = 64  # compiled plans in the cache; the oldest go first


@dataclass(frozen=True)
class Compiled:
    """What MindSpore's compiler made for one rank (see train/compile_rank.py)."""

    rank: int
    program: mindir.Program
    parameters: dict[str, list]      # name -> how it is cut
    strategies: dict[str, list]      # operator -> into how many parts each axis of its inputs is cut


class CompileError(Exception):
    """MindSpore refused a plan, or a rank ran out of memory; says which and why."""


def compile_plan(config: RunConfig, world_size: int, ranks: Sequence[int], kinds: Sequence[str],
                 on_done: Callable[[Outcome], None] | None = None) -> Path:
    """The folder with the compiled graphs of `ranks`, from the cache where they are there already.

    Args:
        kinds: of train.compile_rank.CELLS.
        on_done: is told of each rank that had to be compiled.

    Raises CompileError, and UserError where this machine cannot do dry runs.
    """
    folder = cache_folder() / f"graphs-{_key(config, world_size)}"
    missing = [r for r in ranks if not all(_stem(folder, r, kind, ".json").exists() for kind in kinds)]
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.yaml").write_text(config_file.dump(config), encoding="utf-8")
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            jobs = [{"rank": r, "world_size": world_size, "config": str(folder / "config.yaml"), "kinds": list(kinds),
                     "out": str(folder), "scratch": scratch} for r in missing]
            failed = [o for o in compile_ranks("train.compile_rank:main", jobs, folder / "logs", on_done=on_done) if not o.ok]
        if failed:
            raise CompileError(f"rank {failed[0].rank} does not compile: {failed[0].error}\n  its log: {failed[0].log}")
    os.utime(folder)
    keep_newest(folder.parent.glob("graphs-*"), KEPT)
    return folder


def load(folder: Path, rank: int, kind: str) -> Compiled:
    """Read what `compile_plan` left for one rank."""
    found = json.loads(_stem(folder, rank, kind, ".json").read_text(encoding="utf-8"))
    program = mindir.read(_stem(folder, rank, kind, ".mindir").read_bytes())
    return Compiled(rank, program, found["parameters"], found["strategies"])


def _stem(folder: Path, rank: int, kind: str, suffix: str) -> Path:
    return folder / f"rank_{rank}.{kind}{suffix}"


def _key(config: RunConfig, world_size: int) -> str:
    """Of everything that the graphs depend on: the config, MindSpore's version, and the sources that a compilation imports."""
    content = hashlib.sha256(f"{version('mindspore')} {world_size}\n{config_file.dump(config)}".encode())
    for source in contents(ROOT / "train" / "compile_rank.py"):
        content.update(source)
    return content.hexdigest()[:20]
