"""What can be refused before any worker is started. No MindSpore here, so that a refusal takes no time."""
import fcntl
import glob
from pathlib import Path
from typing import TextIO

from ckpt import store
from data.manifest import changed, read_manifest
from parallel.errors import UserError
from parallel.mesh import Mesh, make_mesh, micro_batches
from train.config import RunConfig


def plan(config: RunConfig, world_size: int, rank: int) -> tuple[Mesh, int]:
    """The mesh and the number of micro-batches. Raises UserError where sizes do not fit, or the run's folder is in use."""
    p, has_cards = config.parallel, bool(glob.glob("/dev/davinci[0-9]*"))
    if p.tp * p.pp > 1 and not has_cards:  # before the number of ranks, which is not what is wrong
        raise UserError(f"parallel: tp={p.tp} pp={p.pp} need Ascend cards, and there is none: on CPU set both to 1, or "
                        "prove the plan without devices: python -m train.preflight, python -m train.rehearse")
    if p.recompute == "full" and config.model.dropout > 0 and not has_cards:
        raise UserError("parallel.recompute=full with model.dropout: on CPU MindSpore 2.10.0 makes a graph with a cycle of it; "
                        "set recompute to selective or none, or dropout to 0")
    refuse_bfloat16(config)
    mesh = make_mesh(p, world_size, rank)
    if config.profile.ranks != "all" and (absent := [r for r in config.profile.ranks if r >= world_size]):
        raise UserError(f"profile.ranks={list(config.profile.ranks)}: there is no rank {absent[0]}, allowed are 0 to "
                        f"{world_size - 1}, or all")
    count = micro_batches(p, config.train.global_batch_size, config.train.micro_batch_size, mesh.dp)
    if config.ckpt.resume == "none" and (config.run.folder / "metrics.jsonl").exists():
        raise UserError(f"ckpt.resume=none, but {config.run.folder} holds a run: choose another run.name, remove the folder, "
                        "or go on with ckpt.resume=auto")
    refuse_paths(config)
    return mesh, count


def refuse_bfloat16(config: RunConfig) -> None:
    """Raise UserError for a model in bfloat16 where only a CPU could compute it."""
    if config.precision.level != "O0" and config.precision.dtype == "bfloat16" and not glob.glob("/dev/davinci[0-9]*"):
        raise UserError("precision.dtype=bfloat16: MindSpore has no CPU kernels for it (MatMul, Gather and others), and there is "
                        "no Ascend card: set float16, or precision.level=O0, or prove the plan without devices: python -m "
                        "train.preflight, python -m train.rehearse")


def refuse_paths(config: RunConfig) -> None:
    """Raise UserError for a run folder that cannot be one, and for checkpoints that are not there."""
    folder = config.run.folder
    for place in (folder / "checkpoints", folder, *folder.parents):
        if place.exists() and not place.is_dir():
            raise UserError(f"run.dir / run.name: {place} is a file, not a folder: choose another place, or move it away")
    for key, path in (("ckpt.resume", config.ckpt.resume), ("ckpt.init_from", config.ckpt.init_from)):
        if isinstance(path, Path):
            try:
                store.given(path)
            except UserError as error:
                raise UserError(f"{key}: {error}") from None


def refuse_to_replace_data(config: RunConfig) -> None:
    """Raise UserError where preparing would replace the data that this run goes on with, which then could not be told or read."""
    root = config.run.folder / "checkpoints"
    manifest = read_manifest(config.data.prepared_dir)
    if config.ckpt.resume != "auto" or manifest is None or not root.is_dir() or not (found := store.steps(root)):
        return
    try:
        identity = store.read_state(found[-1])["identity"]
    except (store.BrokenCheckpoint, KeyError):
        return
    ours = (identity.get("tokenizer"), identity.get("samples")) == (manifest.tokenizer.sha256, manifest.sets["train"].sha256)
    if ours and (problem := changed(manifest, config.data)):
        raise UserError(f"{config.data.prepared_dir}: {problem}; preparing again would replace what {config.run.folder} has been "
                        "trained on: give another run.name and data.prepared_dir, or what it was prepared with")


def lock(folder: Path) -> TextIO:
    """An open file that holds the run's folder for this process, until it is closed or the process ends.

    Raises UserError if another process holds it.
    """
    file = open(folder / ".lock", "a")  # noqa: SIM115  open for the whole run
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(f"another process is training in {folder}: wait for it, or choose another run.name") from None
    return file


def refuse_busy(folder: Path) -> None:
    """Raise UserError where another process trains in a run's folder, before anything there is touched."""
    if (folder / ".lock").exists():
        lock(folder).close()
