"""The tier `health` in a run: its rows and pictures, and that it changes nothing."""
import math

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.conftest import exact, metrics
from train.callbacks.evaluate import REQUEST
from train.callbacks.health import clip_factor
from train.config import TrainConfig
from train.run import run
from train.schedule import learning_rate

QUICK = ("eval.stage.enabled=false", "eval.deep.enabled=false", "model.dropout=0.1")
WATCHED = ("health.every_steps=4", "health.probe_samples=2", *QUICK)


@pytest.fixture(scope="module")
def watched(tiny_yaml, tmp_path_factory):
    """The folder of a run that looks every 4 steps and has two skipped ones."""
    from train.config import load_config

    folder = tmp_path_factory.mktemp("watched")
    config = load_config(tiny_yaml, [f"run.dir={folder}", *WATCHED])
    run(config)
    return config


def looks(config) -> dict[int, dict]:
    """Step -> what health saw."""
    return {row["step"]: row["health"] for row in metrics(config.run.folder) if "health" in row}


def test_it_changes_nothing(watched, tiny, capsys):
    config = tiny("health.enabled=false", *QUICK)
    request = config.run.folder / REQUEST
    request.parent.mkdir()
    request.touch()
    run(config)
    assert not request.exists() and "request_deep_eval: declined, this run has no tier deep" in capsys.readouterr().out
    rows = metrics(config.run.folder)
    assert exact(rows) == exact(metrics(watched.run.folder)) and not any("health" in row for row in rows)


def test_rows(watched):
    seen, rows = looks(watched), {row["step"]: row for row in metrics(watched.run.folder)}
    assert list(seen) == [4, 8, 12, 16, 20]
    for step, health in seen.items():
        assert health["lr_expected"] == pytest.approx(rows[step]["lr"], rel=1e-5)
        assert list(health["layers"]) == ["embedding", "block_00", "block_01", "norm"]
        norms = [layer["grad_norm"] for layer in health["layers"].values()]
        assert math.hypot(*norms) == pytest.approx(rows[step]["grad_norm"], rel=1e-4)
        assert all(1e-5 < layer["update_ratio"] < 0.5 for layer in health["layers"].values())
        block = health["layers"]["block_01"]
        assert block["abs_max"] > block["std"] > 0 and 0.5 < block["attention_entropy_min"] <= block["attention_entropy"] < 1.001
        assert block["zeros"] == block["saturated"] == 0.0  # of these small weights
    losses = [rows[s]["loss"] for s in range(1, 9)]
    assert seen[8]["loss_mean"] == pytest.approx(np.mean(losses)) and seen[8]["loss_std"] == pytest.approx(np.std(losses))


def test_tensorboard_has_curves_and_histograms(watched):
    board = EventAccumulator(str(watched.run.folder / "tensorboard"), size_guidance={"histograms": 0})
    board.Reload()
    tags = board.Tags()
    assert {"health/loss_mean", "health_grad_norm/block_00", "health_update_ratio/norm", "health_attention_entropy/block_01"} \
        <= set(tags["scalars"])
    assert {"gradients/embedding", "gradients/norm", "activations/block_00"} <= set(tags["histograms"])
    for tag in tags["histograms"]:
        events = board.Histograms(tag)
        assert [e.step for e in events] == [4, 8, 12, 16, 20]
        for h in (e.histogram_value for e in events):
            assert sum(h.bucket) == h.num > 0 and h.min <= h.sum / h.num <= h.max
            assert h.bucket_limit[0] <= h.min or h.bucket[0]


def test_clipping_is_undone_and_the_schedule_is_followed(watched):
    clips = TrainConfig(clip_norm=2.0)
    assert clip_factor(4.0, clips) == pytest.approx(0.5, rel=1e-6)
    assert clip_factor(1.0, clips) == clip_factor(9.0, TrainConfig(clip_norm=None)) == 1.0
    assert clip_factor(9.0, TrainConfig(clip_by="value")) == clip_factor(9.0, TrainConfig(clip_by="norm")) == 1.0
    for row in metrics(watched.run.folder):
        assert learning_rate(watched.train, row["step"] - 1) == pytest.approx(row["lr"], rel=1e-5)


@pytest.mark.long
def test_a_resumed_run_looks_at_the_same_steps(watched, tiny):
    run(tiny("train.stop_at_step=10", *WATCHED))
    config = tiny(*WATCHED)
    run(config)
    again, first = looks(config), looks(watched)
    assert again == first  # the loss's window too
