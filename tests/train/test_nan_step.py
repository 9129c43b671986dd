"""One step that is not finite spoils no average, and no validation the "best" (N2): in either format, on one rank and on two."""
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ckpt import store
from tests.conftest import metrics
from tests.train.sick_ranks import planted
from train.callbacks.evaluate import Evaluate, better
from train.clock import Clock
from train.run import run

LEVELS = {"float32": "precision.level=O0", "float16": "precision.level=O2"}
QUICK = ("train.total_steps=10", "train.log_every_steps=10", "eval.stage.enabled=false", "eval.deep.enabled=false",
         "health.locate_nan=false", "health.every_steps=10", "ckpt.every_steps=10", "ckpt.milestones=[]")
LAUNCH = """
import sys
from pathlib import Path
from train.launch import free_port
from train.workers import Topology, run_workers
sys.exit(run_workers(["-m", "tests.train.nan_rank", *sys.argv[2:]], Topology(2, free_port()), Path(sys.argv[1])))
"""


def check(folder: Path, output: str) -> None:
    """Step 5 alone was skipped; the window's mean is that of the other nine; everything that is JSON is valid."""
    rows = metrics(folder)
    assert [row["step"] for row in rows if row["overflow"]] == [5] and rows[4]["loss"] is None
    assert all(math.isfinite(row["loss"]) for row in rows if row["step"] != 5)
    (line,) = re.findall(r"^ +10 +100% .*", output, re.M)
    mean = sum(row["loss"] for row in rows if row["step"] != 5) / 9
    assert float(line.split()[2]) == pytest.approx(mean, abs=6e-5) and "1 step(s) skipped" in line
    assert rows[-1]["health"]["nonfinite_steps"] == 1
    curve = EventAccumulator(str(folder / "tensorboard")).Reload().Scalars("train/loss")
    assert [s.step for s in curve if math.isfinite(s.value)] == [s for s in range(1, 11) if s != 5]
    for text in (folder / "metrics.jsonl").read_text().splitlines() + [(folder / "report.json").read_text()]:
        json.loads(text, parse_constant=pytest.fail)


@pytest.mark.parametrize("level", LEVELS)
def test_one_rank(level, tiny, monkeypatch, capsys):
    before, after = planted(transient=(5,))
    monkeypatch.setattr(Clock, "on_train_step_begin", before)
    monkeypatch.setattr(Clock, "on_train_step_end", after)
    config = tiny(*QUICK, LEVELS[level])
    assert run(config)
    check(config.run.folder, capsys.readouterr().out)


@pytest.mark.long
@pytest.mark.parametrize("level", LEVELS)
def test_two_ranks_of_which_one_has_it(level, tiny_yaml, tmp_path):
    done = subprocess.run([sys.executable, "-c", LAUNCH, str(tmp_path / "logs"), "--config", str(tiny_yaml), "--set",
                           f"run.dir={tmp_path}", *QUICK, LEVELS[level]], cwd=Path(__file__).parents[2], capture_output=True,
                          text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    check(tmp_path / "tiny", done.stdout)


VALUES = [math.nan, 3.0, 2.5, math.nan, 2.7]


def test_a_nan_is_never_the_best_and_blocks_none():
    best, seen = None, []
    for step, loss in enumerate([None, *VALUES, math.inf]):
        best = better(best, step, loss)
        seen.append(best and best["loss"])
    assert seen == [None, None, 3.0, 2.5, 2.5, 2.5, 2.5] and best["step"] == 3


def test_the_best_checkpoint_is_saved_and_kept_also_by_a_resume(tiny, monkeypatch):
    values = dict(zip((4, 8, 12, 16, 20), VALUES, strict=True))
    monkeypatch.setattr(Evaluate, "evaluate_stage",
                        lambda self, step: {"all": {"loss": values[step]}, "corpora": {}, "tasks": {}, "not_computed": {}})
    monkeypatch.setattr("train.reports.show_stage", lambda stage, say: None)
    monkeypatch.setattr("train.reports.to_tensorboard", lambda report, board: None)
    keep = ("ckpt.keep_best=true", "ckpt.keep_last=1", "ckpt.milestones=[]", "ckpt.every_steps=5", "eval.stage.every_steps=4",
            "eval.deep.enabled=false", "health.enabled=false")
    first = tiny(*keep, "train.stop_at_step=14")
    assert run(first)
    root = first.run.folder / "checkpoints"
    assert [store.read_state(f)["step"] for f in store.steps(root)] == [12, 14]
    assert run(tiny(*keep))
    assert [store.read_state(f)["step"] for f in store.steps(root)] == [12, 20]
    report = json.loads((first.run.folder / "report.json").read_text(encoding="utf-8"))
    assert report["best_validation"] == {"step": 12, "loss": 2.5} and report["val_loss"] == 2.7
