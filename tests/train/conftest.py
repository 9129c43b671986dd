"""A small plan for preflight and rehearsal, whose compiled graphs the tests of a session share."""
from pathlib import Path

import pytest
import yaml

# With the sizes that `train.scaled` gives a plan of this mesh, so that preflight and rehearsal compile the same.
PLAN = {
    "run": {"name": "plan", "dir": "runs"},
    "data": {"path": {"en": "en.txt"}, "valid_path": {"en": "en.txt"}, "prepared_dir": "prepared", "seq_length": 16},
    "model": {"vocab_size": 61, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "seq_length": 16},
    "parallel": {"dp": 2, "tp": 2, "pp": 2, "stage_layers": [1, 1], "optimizer_sharding_threshold_kb": 0},
    "train": {"global_batch_size": 16, "micro_batch_size": 2, "lr": 1e-2, "eps": 1e-5, "schedule": "constant", "total_steps": 100,
              "clip_norm": 0.25},
    "precision": {"loss_scale": {"dynamic": True, "initial": 1024.0}},
}


@pytest.fixture(scope="session")
def plan_yaml(tmp_path_factory) -> Path:
    """Its file."""
    path = tmp_path_factory.mktemp("plan") / "plan.yaml"
    path.write_text(yaml.safe_dump(PLAN), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """A folder for compiled graphs that is this session's own: what is tested is what was compiled just now."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder / "mindgpt"
