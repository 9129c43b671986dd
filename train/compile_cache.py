"""MindSpore's cache of compiled graphs, in a folder of its own for all that a graph depends on.

MindSpore 2.10 goes by the source files alone: with other sizes, or another mesh, it takes the old graph without a word.
"""
import hashlib
import os
from importlib.metadata import version

from data.manifest import Manifest
from model.cpu import library
from parallel.files import cache_folder, keep_newest
from parallel.mesh import Mesh
from train.config import RunConfig
from train.sources import ROOT, contents

KEPT = 32  # folders, one for each rank of a plan
# What no graph depends on. All else counts, whether a graph depends on it or not.
APART = {"run": {"name", "dir", "language"}, "data": {"path", "valid_path", "prepared_dir"}, "ckpt": True, "supervise": True,
         "train": {"stop_at_step"}}


def use(config: RunConfig, mesh: Mesh, num_micro_batches: int, manifest: Manifest, device: str) -> None:
    """Have MindSpore look for this rank's graphs there, and leave them."""
    content = hashlib.sha256("\0".join((
        version("mindspore"), version("numpy"), device, repr(mesh), str(num_micro_batches), manifest.tokenizer.sha256,
        os.environ.get("CXX", ""), library.operator(""), library.problem(), config.model_dump_json(exclude=APART))).encode())
    for source in contents(ROOT / "train" / "run.py"):
        content.update(source)
    folder = cache_folder() / f"compiled-{content.hexdigest()[:20]}"
    folder.mkdir(parents=True, exist_ok=True)
    os.utime(folder)
    keep_newest(folder.parent.glob("compiled-*"), max(KEPT, 2 * mesh.world_size))  # other ranks' are in use
    os.environ |= {"MS_COMPILER_CACHE_ENABLE": "1", "MS_COMPILER_CACHE_PATH": str(folder)}
