"""The launcher with two real workers: equal to one card, resumed and killed without a trace, and ended when a rank fails."""
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ckpt import store
from tests.conftest import exact, metrics
from train.run import run

ROOT = Path(__file__).parents[2]


def start(tiny_yaml, folder, *overrides) -> subprocess.Popen:
    command = [sys.executable, "-m", "train.launch", "--config", str(tiny_yaml), "--set", f"run.dir={folder}", *overrides]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def launch(tiny_yaml, folder, *overrides, code=0) -> str:
    process = start(tiny_yaml, folder, *overrides)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == code, out
    return out


@pytest.fixture(scope="module")
def whole(tiny_yaml, tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    out = launch(tiny_yaml, folder, "train.total_steps=60", "ckpt.every_steps=4", "eval.stage.every=0.1")
    assert "dp 2 x tp 1 x pp 1" in out and "done: 60 of 60 steps" in out
    return folder / "tiny"


@pytest.mark.long
def test_one_rank_writes_tensorboard(whole):  # P3, third
    assert len(list((whole / "tensorboard").glob("events.*"))) == 1
    events = EventAccumulator(str(whole / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    assert [s.step for s in events.Scalars("train/loss")] == list(range(1, 61))


def weights(folder) -> dict:
    return {f"{part}.{name}": array for part, tensors in store.find(folder / "checkpoints")[0].tensors.items()
            for name, array in tensors.items()}


def same_run(a, b) -> None:
    assert exact(metrics(a)) == exact(metrics(b))
    assert all(np.array_equal(weights(a)[n], value) for n, value in weights(b).items())
    reports = [json.loads((f / "report.json").read_text()) for f in (a, b)]
    assert all(reports[0][k] == reports[1][k] for k in ("loss", "val_loss", "val_perplexity", "unigram_perplexity"))


def test_two_workers_train_what_one_does(whole, tiny):
    run(tiny("train.total_steps=60", "eval.stage.every=0.1"))
    one, two = metrics(tiny().run.folder), metrics(whole)
    assert [r["tokens"] for r in one] == [r["tokens"] for r in two]
    np.testing.assert_allclose([r["loss"] for r in one], [r["loss"] for r in two], rtol=2e-3)
    np.testing.assert_allclose([r["loss"] for r in one][:10], [r["loss"] for r in two][:10], rtol=1e-5)
    reports = [json.loads((f / "report.json").read_text()) for f in (tiny().run.folder, whole)]
    assert reports[0]["unigram_perplexity"] == pytest.approx(reports[1]["unigram_perplexity"], rel=1e-9)  # the same samples
    assert reports[0]["val_loss"] == pytest.approx(reports[1]["val_loss"], rel=2e-3)
    assert reports[1]["world_size"] == 2 and reports[1]["mesh"] == {"dp": 2, "tp": 1, "pp": 1}


@pytest.mark.long
def test_stopping_and_resuming_with_two_workers(whole, tiny_yaml, tmp_path):
    common = ("train.total_steps=60", "ckpt.every_steps=4", "eval.stage.every=0.1")
    launch(tiny_yaml, tmp_path, *common, "train.stop_at_step=30")
    assert "resumed from" in launch(tiny_yaml, tmp_path, *common)
    same_run(whole, tmp_path / "tiny")


@pytest.mark.long
def test_killing_both_workers_changes_nothing(whole, tiny_yaml, tmp_path):
    common = ("train.total_steps=60", "ckpt.every_steps=4", "eval.stage.every=0.1")
    process = start(tiny_yaml, tmp_path, *common)
    latest = tmp_path / "tiny" / "checkpoints" / "latest"
    while not latest.exists():
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.02)
    workers = [p for p in psutil.Process(process.pid).children(recursive=True) if p.environ().get("MS_ROLE") == "MS_WORKER"]
    assert len(workers) == 2
    for worker in workers:
        worker.send_signal(signal.SIGKILL)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 1 and "SIGKILL" in out
    assert len(metrics(tmp_path / "tiny")) < 60
    launch(tiny_yaml, tmp_path, *common)
    same_run(whole, tmp_path / "tiny")
    assert (tmp_path / "tiny" / "logs" / "rank_0.1.log").exists()  # the log of the killed worker


def test_a_rank_that_fails_in_evaluation_ends_the_job(tiny_yaml, tmp_path):  # E2, third
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "eval").write_text("not a folder")  # rank 0 alone writes there
    out = launch(tiny_yaml, tmp_path, code=1)
    assert "rank 0 failed first" in out and "FileExistsError" in out
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(tmp_path) in " ".join(p.info["cmdline"] or ())
                and p.pid != os.getpid()]


def test_a_wrong_config_starts_nothing(tiny_yaml, tmp_path):
    out = launch(tiny_yaml, tmp_path, "train.lrr=1", code=2)
    assert "train.lrr" in out and "train.lr" in out and not (tmp_path / "tiny").exists()
    out = launch(tiny_yaml, tmp_path, "train.global_batch_size=3", code=2)
    assert "train.global_batch_size=3 must be a multiple of 2" in out and not (tmp_path / "tiny").exists()
