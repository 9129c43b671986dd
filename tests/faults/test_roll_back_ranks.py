"""Two real workers under the supervisor, of which one is given bad data: both pass over the batch, as if it had never been."""
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from ckpt import store
from tests.conftest import exact, metrics
from train.passed_over import FILE
from train.supervise import STATE, Supervisor

ROOT = Path(__file__).parents[2]
LAUNCH = """
import sys
from pathlib import Path
from train.launch import free_port
from train.workers import Topology, run_workers
sys.exit(run_workers(["-m", "tests.faults.bad_batch", *sys.argv[2:]], Topology(2, free_port()), Path(sys.argv[1])))
"""
QUICK = ("eval.stage.enabled=false", "eval.deep.enabled=false", "ckpt.every_steps=5", "ckpt.keep_last=9",
         "train.log_every_steps=4", "train.micro_batch_size=2", "train.total_steps=30", "train.lr=1e-3",
         "supervise.pause_seconds=0")
RULES = {name: (f"health.rules.{name}.level={level}", f"health.rules.{name}.threshold={threshold}")
         for name, level, threshold in (("gradient_explosion", "roll_back", 2.5), ("dominant_token", "skip", 0.9))}


def supervised(tiny, tiny_yaml, folder: Path, *overrides: str) -> Path:
    """The run's folder, once the supervisor has brought it to its end."""
    config = tiny(f"run.dir={folder}", *QUICK, *overrides)
    config.run.folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-c", LAUNCH, str(folder / "logs"), "--config", str(tiny_yaml), "--set", f"run.dir={folder}",
               *QUICK, *overrides]
    assert Supervisor(config, lambda restart: command).run() == 0
    return config.run.folder


@pytest.mark.long
@pytest.mark.parametrize("rule", RULES)
def test_both_ranks_pass_over_what_one_of_them_was_given(rule, tiny, tiny_yaml, tmp_path):
    sick = supervised(tiny, tiny_yaml, tmp_path / "sick", *RULES[rule])
    (entry,) = json.loads((sick / FILE).read_text())
    assert entry["rule"] == rule and entry["stop"] == 104 and entry["first"] == (96 if rule == "gradient_explosion" else 100)
    codes = [start["code"] for start in json.loads((sick / STATE).read_text())["starts"]]
    assert codes == ([5, 0] if rule == "gradient_explosion" else [0])
    (tmp_path / "never" / "tiny").mkdir(parents=True)
    (tmp_path / "never" / "tiny" / FILE).write_text(json.dumps([{"first": entry["first"], "stop": entry["stop"]}]))
    never = supervised(tiny, tiny_yaml, tmp_path / "never")
    assert exact(metrics(sick)) == exact(metrics(never)) and len(metrics(sick)) == 30
    a, b = (store.find(folder / "checkpoints")[0] for folder in (sick, never))
    for part in store.PARTS:
        assert all(np.array_equal(a.tensors[part][n], b.tensors[part][n]) for n in b.tensors[part])
