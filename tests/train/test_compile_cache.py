"""MindSpore's compile cache, one folder for all that a graph depends on."""
import os
import subprocess
import sys
from pathlib import Path

import pytest

from data.manifest import load_manifest
from parallel.mesh import Mesh
from tests.conftest import exact, metrics
from train import compile_cache

ROOT = Path(__file__).parents[2]


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("MS_COMPILER_CACHE_ENABLE", "MS_COMPILER_CACHE_PATH"):
        monkeypatch.setenv(name, "")  # so that both are as they were, afterwards
    return tmp_path / "cache" / "mindgpt"


def test_what_a_graph_may_depend_on_has_a_folder_of_its_own(tiny, cache, monkeypatch):
    manifest, one = load_manifest(tiny().data), Mesh(1, 1, 1)

    def folder(*overrides: str, mesh=one, count=1, device="CPU") -> str:
        compile_cache.use(tiny(*overrides), mesh, count, manifest, device)
        return os.environ["MS_COMPILER_CACHE_PATH"]

    first = folder()
    assert os.environ["MS_COMPILER_CACHE_ENABLE"] == "1" and Path(first).parent == cache and Path(first).is_dir()
    assert folder("run.name=other", "ckpt.every_steps=7", "train.stop_at_step=3", "supervise.max_restarts=9") == first
    others = [folder("model.num_heads=4"), folder("train.lr=0.02"), folder("run.seed=5"), folder("precision.level=O2"),
              folder(mesh=Mesh(2, 1, 1)), folder(mesh=Mesh(2, 1, 1, 1)), folder(count=2), folder(device="Ascend")]
    monkeypatch.setattr(compile_cache, "contents", lambda source: [b"other code"])
    assert len({first, *others, folder()}) == len(others) + 2
    monkeypatch.setattr(compile_cache, "KEPT", 3)
    folder()
    assert len([*cache.iterdir()]) <= 4 and Path(folder()).is_dir()


@pytest.mark.long
def test_from_the_cache_a_run_is_the_same_to_the_bit_and_another_config_is_another(tiny_yaml, tmp_path, cache):
    def run(name: str, *overrides: str) -> list:
        command = [sys.executable, "-m", "train", "--config", str(tiny_yaml), "--set", f"run.dir={tmp_path}", f"run.name={name}",
                   "eval.deep.enabled=false", *overrides]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        return exact(metrics(tmp_path / name))

    without = run("without")
    assert run("filled", "run.compile_cache=true") == without
    assert any(file.stat().st_size for file in cache.rglob("compiled-*/**/*") if file.is_file())
    assert run("used", "run.compile_cache=true") == without
    other = run("other", "model.num_heads=1")
    assert other != without and run("cached", "run.compile_cache=true", "model.num_heads=1") == other
