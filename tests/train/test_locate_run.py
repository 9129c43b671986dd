"""A step that is not finite in a run: looked into while it trains, and on demand afterwards; the diagnosis of a streak."""
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ckpt import store, writing
from tests.conftest import metrics
from tests.train.sick_ranks import SICK, STAYING, planted
from train import locate_nan
from train.__main__ import main
from train.clock import Clock

QUICK = ("eval.stage.enabled=false", "eval.deep.enabled=false")
ROOT = Path(__file__).parents[2]
LAUNCH = """
import sys
from pathlib import Path
from train.launch import free_port
from train.workers import Topology, run_workers
sys.exit(run_workers(["-m", "tests.train.sick_ranks", *sys.argv[1:3]], Topology(2, free_port()), Path(sys.argv[2]) / "logs"))
"""


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def told(folder):
    return [json.loads(line) for line in (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()]


def faulty(patch, transient, staying=None):
    before, after = planted(transient, staying)
    patch.setattr(Clock, "on_train_step_begin", before)
    patch.setattr(Clock, "on_train_step_end", after)


@pytest.fixture(scope="module")
def sick(tiny_yaml, tmp_path_factory):
    """The folder of a run with both faults, and its exit code."""
    root = tmp_path_factory.mktemp("sick")
    with pytest.MonkeyPatch.context() as patch:
        faulty(patch, (3,), 8)
        code = main(["--config", str(tiny_yaml), "--set", f"run.dir={root}", *SICK])
    return root / "tiny", code


def test_a_fault_that_passes_is_of_the_hardware(sick):
    found = read(sick[0] / "nan_step_3.json")
    assert (found["verdict"], found["rank"], found["compiled"], found["forward"]) == ("transient", 0, [], None)
    assert found["loss"] is None and found["nonfinite_micro_batches"] == [] and len(found["cells"]) > 100
    assert "transient fault" in told(sick[0])[0]["message"] and told(sick[0])[0]["step"] == 3


def test_a_streak_ends_the_run_with_a_diagnosis(sick):  # N1, first
    folder, code = sick
    assert code == 3 and not (folder / "locate").exists()
    assert [(e["step"], e["rule"]) for e in told(folder) if e["rule"] in ("nonfinite_step", "overflow_streak")] == [
        (3, "nonfinite_step"), (10, "nonfinite_step"), (10, "overflow_streak")]
    found = read(folder / "nan_step_10.json")
    assert found["verdict"] == "weights" and [*found["weights"]] == [STAYING] and found["forward"]["cell"] == "gpt.norm.norm"
    report = read(folder / "diagnosis.json")
    assert report["since"] == 8 and report["located"]["step"] == 10 and STAYING in report["located"]["message"]
    assert report["gradients"][0] == "norm.weight" and "blocks.0.mlp.up.weight" in report["gradients"]
    assert report["layers"]["block_01"]["abs_max"] > 0 and report["layers"]["norm"]["nonfinite"] > 0
    assert report["loss_scale"] == [[1, 1024.0], [4, 512.0], [9, 256.0]]
    assert Path(report["last_good_checkpoint"]).name == "step_00000005"  # that of step 10 has the NaN
    assert [row["loss_scale"] for row in metrics(folder)] == [1024.0] * 3 + [512.0] * 5 + [256.0] * 2
    assert [row["step"] for row in metrics(folder) if row["overflow"]] == [3, 8, 9, 10]


def test_a_step_on_demand_after_the_steps_before_it(sick, tmp_path, capsys):
    """With a row that says that the run skipped it; its loss is that of a checkpoint two steps before, and these two steps."""
    folder, report = tmp_path / "tiny", tmp_path / "report.json"
    shutil.copytree(sick[0], folder)
    rows = metrics(folder)
    rows[6]["overflow"] = True
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    assert locate_nan.main(["--checkpoint", str(folder), "--step", "7", "--report", str(report)]) == 0
    found = read(report)
    assert found["verdict"] == "transient" and Path(found["checkpoint"]).name == "step_00000005" and found["compiled"] == []
    assert found["rerun_loss"] == pytest.approx(rows[6]["loss"], rel=1e-6)
    assert "the run skipped it, but it is finite: a transient fault" in capsys.readouterr().out


def test_a_checkpoint_with_a_weight_that_is_too_large(sick, tmp_path, capsys):
    checkpoint = store.load(sick[0] / "checkpoints" / "step_00000005")
    tensors = {part: dict(values) for part, values in checkpoint.tensors.items()}
    tensors["model"]["blocks.1.attention.output.weight"] = np.full((16, 16), 3e38, np.float32)
    writing.save(tmp_path / "checkpoints", store.Checkpoint(tensors, checkpoint.state, checkpoint.config), 1)
    assert locate_nan.main(["--checkpoint", str(tmp_path / "checkpoints"), "--report", str(tmp_path / "r.json")]) == 0
    found, out = read(tmp_path / "r.json"), capsys.readouterr().out
    assert found["step"] == 6 and found["forward"]["cell"] == "gpt.blocks.1.attention.output.affine"
    assert found["nonfinite_micro_batches"] == [0, 1] and found["ranks"] == [0]
    assert "blocks.1.attention.output.affine" in out and "gradients that are not finite, first in the backward pass first" in out


@pytest.mark.parametrize(("arguments", "says"), [
    (["--checkpoint", "/nowhere", "--step", "3"], "no such checkpoint folder"),
    (["--checkpoint", "{run}", "--step", "5"], "has no checkpoint before it, only of step 5, 10"),
    (["--checkpoint", "{run}/checkpoints/step_00000010", "--step", "7"], "has no checkpoint before it, only of step 10"),
    (["--checkpoint", "{run}", "--step", "21"], "the run ends at train.total_steps=20"),
    (["--checkpoint", "{run}", "--step", "7", "--set", "model.num_layers=3"], "missing: blocks.2"),
    (["--checkpoint", "{run}", "--step", "7", "--set", "train.lrr=3"], "train.lr"),
    (["--checkpoint", "{run}", "--step", "7", "--report", "/nowhere/r.json"], "give a file in a folder that exists"),
    (["--dump", "/nowhere"], "/nowhere"),
    (["--dump", "/nowhere", "--step", "7"], "leave --step, --set, --report away"),
])
def test_refusals(sick, capsys, arguments, says):
    assert locate_nan.main([a.format(run=sick[0]) for a in arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and says in error


@pytest.mark.long
def test_of_two_ranks_the_one_is_named(tiny_yaml, tmp_path):
    done = subprocess.run([sys.executable, "-c", LAUNCH, str(tiny_yaml), str(tmp_path)], cwd=ROOT, capture_output=True, text=True,
                          timeout=400)
    folder = tmp_path / "tiny"
    assert done.returncode == 3, done.stdout + done.stderr
    passed, stayed = read(folder / "nan_step_3.json"), read(folder / "nan_step_10.json")
    assert (passed["verdict"], passed["rank"], passed["verdicts"]) == ("transient", 1, ["other", "finite"]), passed["message"]
    assert (stayed["verdict"], stayed["rank"], stayed["verdicts"]) == ("weights", 0, ["weights", "other"]), stayed["message"]
    assert "rank 0: weights are not finite" in stayed["message"] and "weights are not equal" in stayed["message"]
    assert "step_00000005" in done.stderr + done.stdout and read(folder / "diagnosis.json")["since"] == 8


def test_a_scale_that_is_too_high_settles_and_grows_again_after_a_bad_time(tiny_yaml, tmp_path, monkeypatch):
    """N1, second and third, and a streak that nobody looks into: a scale under which the squares do not fit into float32, four
    bad steps, and in the end a weight that is NaN."""
    faulty(monkeypatch, (25, 26, 27, 28), 48)
    settings = ("precision.loss_scale.initial=6.6e21", "precision.loss_scale.max=6.6e21", "train.total_steps=80",
                "precision.loss_scale.growth_interval=10", "health.rules.overflow_streak.threshold=15", "health.locate_nan=false",
                "ckpt.every_steps=20")
    assert main(["--config", str(tiny_yaml), "--set", f"run.dir={tmp_path}", *QUICK, *settings]) == 3
    folder = tmp_path / "tiny"
    rows, report = metrics(folder), read(folder / "diagnosis.json")
    first = next(row["step"] for row in rows if not row["overflow"])
    skipped, scales = [row["step"] for row in rows if row["overflow"]], [row["loss_scale"] for row in rows]
    assert 5 < first < 15 and skipped[:first - 1] == [*range(1, first)], "it settles, and had to"
    assert {25, 26, 27, 28} <= set(skipped) and 29 not in skipped
    assert scales[28] == scales[24] / 16 and scales[38] == 2 * scales[28] and max(scales) == scales[0]
    assert rows[45]["loss"] < rows[first]["loss"] - 0.2
    assert report["since"] == 48 and report["located"] is None and Path(report["last_good_checkpoint"]).name == "step_00000040"
    assert not list(folder.glob("nan_step_*")) and "nonfinite_step" not in {e["rule"] for e in told(folder)}
