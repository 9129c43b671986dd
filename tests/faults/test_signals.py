"""Reasons to save that come from outside (K3): signals in a step, in evaluation, twice; SIGUSR1; a file; the clock."""
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from ckpt import store
from tests.conftest import exact, metrics
from train.callbacks.evaluate import Evaluate
from train.run import run
from train.triggers import REQUEST, Interrupted, Triggers

ROOT = Path(__file__).parents[2]
LONG = ("train.total_steps=4000", "train.log_every_steps=1", "ckpt.every_steps=100000", "eval.stage.every=1.0",
        "eval.deep.enabled=false", "model.dropout=0.1")


def start(module: str, tiny_yaml: Path, folder: Path, *overrides: str) -> subprocess.Popen:
    command = [sys.executable, "-m", module, "--config", str(tiny_yaml), "--set", f"run.dir={folder}", *LONG, *overrides]
    # A shell's background job ignores SIGINT, and hands that on to all that it starts, this test run for one.
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))


def wait_for(process: subprocess.Popen, condition) -> None:
    """Until it holds, or the process has ended, which fails."""
    while not condition():
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.01)


def steps_done(folder: Path) -> int:
    """By metrics.jsonl."""
    path = folder / "tiny" / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def saved(folder: Path) -> list[int]:
    """Steps of the whole checkpoints; none is half written."""
    root = folder / "tiny" / "checkpoints"
    assert not list(root.glob(".tmp-*"))
    return [store.load(f).step for f in store.steps(root)]


@pytest.mark.parametrize(("module", "number"), [
    pytest.param("train", signal.SIGTERM, marks=pytest.mark.long), ("train.launch", signal.SIGINT)])
def test_a_signal_saves_the_last_step_and_the_run_goes_on_from_there(tiny_yaml, tiny, tmp_path, module, number):
    process = start(module, tiny_yaml, tmp_path)
    wait_for(process, lambda: steps_done(tmp_path) >= 20)
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 4, out
    (step,) = saved(tmp_path)
    assert f"interrupted: step {step} is saved" in out and len(metrics(tmp_path / "tiny")) == step >= 20
    if module == "train":  # what two workers resume is tests/end_to_end's
        for folder in (tmp_path, tmp_path / "whole"):
            run(tiny(f"run.dir={folder}", *LONG, f"train.stop_at_step={step + 5}"))
        assert exact(metrics(tmp_path / "tiny")) == exact(metrics(tmp_path / "whole" / "tiny"))


def test_a_file_and_sigusr1_save_and_the_run_goes_on(tiny_yaml, tmp_path):
    process = start("train.launch", tiny_yaml, tmp_path)
    root = tmp_path / "tiny" / "checkpoints"
    wait_for(process, lambda: (tmp_path / "tiny" / "logs" / "rank_1.log").exists())
    for each in (psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)):
        each.send_signal(signal.SIGUSR1)  # while it starts there is nothing to save, and nobody dies of it
    wait_for(process, lambda: steps_done(tmp_path) >= 5)
    (tmp_path / "tiny" / REQUEST).touch()
    wait_for(process, lambda: (root / store.LATEST).exists())
    assert not (tmp_path / "tiny" / REQUEST).exists()
    first, done = (root / store.LATEST).read_text(), steps_done(tmp_path)
    wait_for(process, lambda: steps_done(tmp_path) > done)
    workers = [p for p in psutil.Process(process.pid).children(recursive=True) if p.environ().get("MS_ROLE") == "MS_WORKER"]
    workers[1].send_signal(signal.SIGUSR1)  # not rank 0, which writes
    wait_for(process, lambda: (root / store.LATEST).read_text() != first)
    first, done = (root / store.LATEST).read_text(), steps_done(tmp_path)
    wait_for(process, lambda: steps_done(tmp_path) > done)
    process.send_signal(signal.SIGUSR1)  # the launcher hands it on
    wait_for(process, lambda: (root / store.LATEST).read_text() != first)
    workers[1].send_signal(signal.SIGTERM)
    wait_for(process, lambda: "interrupted: step" in (tmp_path / "tiny" / "logs" / "rank_0.log").read_text())
    with contextlib.suppress(psutil.NoSuchProcess):
        workers[0].send_signal(signal.SIGTERM)  # as another node's launcher may, late
    assert process.wait(timeout=60) == 4
    assert len(saved(tmp_path)) >= 2


def test_a_signal_in_evaluation_does_not_wait_for_its_end(tiny, monkeypatch):
    """Sent between two batches of the last evaluation, which is then left undone; and a second one ends at once."""
    sent = []

    def slow(self):
        if not sent:
            sent.append(os.kill(os.getpid(), signal.SIGTERM))
        original(self)

    original = Triggers.pulse
    monkeypatch.setattr(Triggers, "pulse", slow)
    evaluated = []
    monkeypatch.setattr(Evaluate, "evaluate", lambda self, *args, f=Evaluate.evaluate: (f(self, *args), evaluated.append(args)))
    config = tiny("eval.stage.every=0.25", "ckpt.every_steps=1000")
    assert run(config) is False
    assert evaluated == [] and store.find(config.run.folder / "checkpoints")[0].step == 5 == len(metrics(config.run.folder))
    assert run(config) is True and len(metrics(config.run.folder)) == 20


def test_the_clock(tmp_path):
    triggers = Triggers(tmp_path, 30.0, 0)
    assert not triggers.agreed().save
    triggers.since -= 30 * 60
    assert triggers.agreed().save and not triggers.agreed().stop
    triggers.saved()
    assert not triggers.agreed().save and not Triggers(tmp_path, None, 0).agreed().save


def test_wishes_are_noted_and_handlers_come_back(tmp_path):
    before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)]
    triggers = Triggers(tmp_path, None, 0)
    with triggers.caught():
        os.kill(os.getpid(), signal.SIGUSR1)
        assert triggers.agreed().save and not triggers.agreed().save
        triggers.pulse()
        os.kill(os.getpid(), signal.SIGINT)
        assert triggers.agreed().stop and triggers.agreed().stop
        with pytest.raises(Interrupted):
            triggers.pulse()
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)] == before


def test_a_second_signal_ends_at_once():
    program = """
import time
from pathlib import Path
from train.triggers import Triggers
with Triggers(Path("."), None, 0).caught():
    print("ready", flush=True)
    time.sleep(60)  # goes on after the first signal
"""
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=10) == 128 + signal.SIGTERM
