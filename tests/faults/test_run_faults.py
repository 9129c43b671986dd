"""What befalls a run: a clock that jumps, a folder that becomes read-only, a rank that is stopped, a scheduler that dies."""
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from ckpt import store
from tests.conftest import metrics
from train.run import run
from train.supervise import STATE
from train.tensorboard import TensorBoard

ROOT = Path(__file__).parents[2]


def test_a_clock_that_jumps_changes_nothing(tiny, monkeypatch):
    """A day forth and back each time that somebody looks at it."""
    real, jumps = time.time, [0]

    def jumping():
        jumps[0] += 1
        return real() + 86400 * (jumps[0] % 3 - 1)

    monkeypatch.setattr(time, "time", jumping)
    config = tiny("ckpt.every_minutes=10", "ckpt.every_steps=8", "eval.deep.enabled=false")
    assert run(config) is True and jumps[0] > 20
    rows = metrics(config.run.folder)
    assert [row["step"] for row in rows] == [*range(1, 21)]
    assert all(row["step_seconds"] > 0 for row in rows if row["step_seconds"] is not None)
    steps = [store.read_state(folder)["step"] for folder in store.steps(config.run.folder / "checkpoints")]
    assert steps == [8, 10, 16, 20]  # the two newest besides the milestones 10 and 20: the clock was no reason to save


def test_a_full_disk_is_noticed_by_tensorboard(tmp_path):
    board = TensorBoard(tmp_path, 0)
    with open("/dev/full", "wb", buffering=0) as full:
        board.writer._py_recordio_writer._writer = full
        with pytest.raises(OSError, match="No space left on device"):
            board.write([{"step": 1, "loss": 2.0}])


@pytest.mark.long
def test_a_folder_that_becomes_read_only_ends_the_run_in_one_line(tiny_yaml, tmp_path):
    root = tmp_path / "tiny" / "checkpoints"
    command = [sys.executable, "-m", "train", "--config", str(tiny_yaml), "--set", f"run.dir={tmp_path}",
               "train.total_steps=4000", "ckpt.every_steps=10", "eval.deep.enabled=false"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while len(store.steps(root)) < 2:
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    if os.system(f"mount -t tmpfs -o ro none '{root}' 2>/dev/null"):  # over it, since files in it are open
        process.kill()
        pytest.skip("no right to mount a file system here")
    try:
        _, err = process.communicate(timeout=60)
    finally:
        os.system(f"umount -l '{root}'")
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert process.returncode == 1 and len(lines) == 1 and "Traceback" not in err, err[-3000:]
    assert "Read-only file system" in lines[0] and "The one before it is untouched" in lines[0]
    assert store.find(root)[0] is not None


@pytest.mark.long
def test_a_rank_that_is_stopped_and_a_scheduler_that_dies_are_named_and_survived(tiny_yaml, tmp_path):
    folder = tmp_path / "tiny"
    command = [sys.executable, "-m", "train.supervise", "--config", str(tiny_yaml), "--set", f"run.dir={tmp_path}",
               "train.total_steps=400", "ckpt.every_steps=10", "eval.deep.enabled=false", "supervise.step_minutes=0.15",
               "supervise.pause_seconds=0"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def until(condition) -> None:
        end = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < end and process.poll() is None, process.communicate()[0]
            time.sleep(0.1)

    def starts() -> list[dict]:
        return json.loads((folder / STATE).read_text())["starts"] if (folder / STATE).exists() else []

    def done() -> int:
        return len(metrics(folder)) if (folder / "metrics.jsonl").exists() else 0

    def find(role: str) -> list[psutil.Process]:
        children = psutil.Process(process.pid).children(recursive=True)
        return [p for p in children if p.status() != psutil.STATUS_ZOMBIE and p.environ().get("MS_ROLE") == role]

    until(lambda: done() >= 20)
    stopped = next(p for p in find("MS_WORKER") if p.environ()["RANK_ID"] == "1")
    stopped.send_signal(signal.SIGSTOP)
    until(lambda: len(starts()) == 2)
    assert starts()[0]["reason"] == "rank 1 hung" and stopped.status() == psutil.STATUS_ZOMBIE or not stopped.is_running()
    before = done()
    until(lambda: done() >= before + 20)
    find("MS_SCHED")[0].kill()
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    assert "stopped by a signal" not in starts()[1]["reason"] and len(starts()) == 3, starts()
    assert "the scheduler failed (killed by SIGKILL" in out
    assert [row["step"] for row in metrics(folder)] == [*range(1, 401)]
