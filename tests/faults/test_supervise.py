"""The supervisor against a launcher that ends in every way, and with real workers that are killed."""
import json
import os
import signal
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import psutil
import pytest
from mindspore.dataset import MindDataset

from ckpt import store
from parallel.errors import UserError
from tests.conftest import exact, metrics
from train.heartbeat import Heartbeat
from train.signs import path_of, read, slow_ranks
from train.supervise import STATE, Supervisor, status

ROOT = Path(__file__).parents[2]

# Does what the next line of the plan says: "<step> <what>".
LAUNCHER = """
import json, os, sys, time
from pathlib import Path
folder = Path(sys.argv[1])
plan = folder / "plan"
(first, *rest) = plan.read_text().splitlines()
plan.write_text("\\n".join(rest))
step, what = first.split(" ", 1)
(folder / "heartbeat").mkdir(exist_ok=True)
def sign(rank, late=0, host=0.01):
    text = json.dumps({"rank": rank, "pid": 1, "phase": "step", "step": int(step), "time": time.time() - late,
                       "memory_bytes": 1e9, "step_seconds": 1.0, "host_seconds": host})
    (folder / "heartbeat" / f"rank_{rank}.tmp").write_text(text)
    os.replace(folder / "heartbeat" / f"rank_{rank}.tmp", folder / "heartbeat" / f"rank_{rank}.json")
for rank in (0, 1):
    sign(rank, late=1e6 if what == "jump" else 0, host=0.6 if what == "slow" and rank else 0.01)
for _ in range(60 if what in ("hang", "wait") else 0):
    time.sleep(1)
    sign(0)
if what in ("jump", "slow"):
    time.sleep(2 if what == "jump" else 7)
    what = "0"
if what.isdigit():
    sys.exit(int(what))
print(f"train.launch: rank 1 failed first ({what}); all workers of this node are stopped.", file=sys.stderr)
print("  | Traceback\\n  | ValueError: the cause of " + what, file=sys.stderr)
sys.exit(1)
"""


@pytest.fixture
def supervised(tiny, tmp_path):
    """supervised(plan, *overrides) -> (exit code, supervise.json, the supervisor)."""
    def run(plan: list[str], *overrides: str, during=None):
        config = tiny("supervise.pause_seconds=0", *overrides)
        config.run.folder.mkdir(parents=True)
        (config.run.folder / "plan").write_text("\n".join(plan))
        (tmp_path / "launcher.py").write_text(LAUNCHER)
        supervisor = Supervisor(config, lambda restart: [sys.executable, str(tmp_path / "launcher.py"), str(config.run.folder)])
        if during:
            during(supervisor)
        code = supervisor.run()
        return code, json.loads((config.run.folder / STATE).read_text()), supervisor
    return run


def test_a_failed_job_is_started_again(supervised):
    code, found, _ = supervised(["5 exit code 1", "9 killed by SIGKILL", "20 0"])
    assert code == 0 and found["state"] == "done" and [s["step"] for s in found["starts"]] == [5, 9, 20]
    assert found["starts"][0]["reason"] == "rank 1 failed (exit code 1): ValueError: the cause of exit code 1"
    assert found["starts"][1]["rank"] == 1


def test_the_same_step_twice_in_the_same_way_is_enough(supervised, capfd):
    code, found, _ = supervised(["5 exit code 1", "7 exit code 1", "7 exit code 1", "20 0"])
    assert code == 1 and found["state"] == "given up" and len(found["starts"]) == 3
    assert "given up: the same step failed twice in the same way" in capfd.readouterr().err


def test_a_kill_from_outside_says_nothing_of_the_step(supervised):
    assert supervised(["7 killed by SIGKILL", "7 killed by SIGKILL", "20 0"])[0] == 0


def test_not_more_often_than_allowed(supervised, capfd):
    code, found, _ = supervised([f"{n} exit code 1" for n in range(9)], "supervise.max_restarts=2")
    assert code == 1 and len(found["starts"]) == 3 and "3 starts within 24 hours" in capfd.readouterr().err


def test_a_roll_back_is_no_failure(supervised, capfd):
    code, found, _ = supervised(["5 5", "5 5", "20 0"], "supervise.max_restarts=0")
    assert code == 0 and [s["code"] for s in found["starts"]] == [5, 5, 0]
    assert capfd.readouterr().err.count("a health rule rolled the run back at step 5: starting again") == 2


@pytest.mark.parametrize("code", [2, 3, 4])
def test_some_ends_are_final(supervised, code):
    found = supervised([f"5 {code}", "20 0"])
    assert found[0] == code and len(found[1]["starts"]) == 1


def test_a_hung_rank_is_named_and_the_job_ended(supervised):
    code, found, _ = supervised(["5 hang", "20 0"], "supervise.step_minutes=0.05")
    first = found["starts"][0]
    assert code == 0 and first["reason"] == "rank 1 hung" and first["ended"] - first["began"] < 20


def test_a_clock_that_jumps_is_no_hang(supervised):
    code, found, _ = supervised(["5 jump"], "supervise.step_minutes=0.1")
    assert code == 0 and len(found["starts"]) == 1


def test_a_signal_is_passed_on_and_ends_it(supervised):
    def soon(supervisor):
        pid = os.getpid()
        subprocess.Popen([sys.executable, "-c", f"import os, time; time.sleep(2); os.kill({pid}, {int(signal.SIGTERM)})"])

    code, found, _ = supervised(["5 wait", "20 0"], during=soon)
    assert code == 128 + signal.SIGTERM and len(found["starts"]) == 1 and found["state"] == "ended"


def test_status(supervised):
    _, _, supervisor = supervised(["5 exit code 1", "20 0"])
    text = status(supervisor.folder, supervisor.settings)
    assert "done, 2 start(s)" in text and "step 5: rank 1 failed" in text and "rank 0: step, step 20" in text
    with pytest.raises(UserError, match="was not started by python -m train.supervise"):
        status(supervisor.folder / "none", supervisor.settings)


def test_a_slow_rank_is_named_once(supervised, capfd):
    assert supervised(["5 slow"])[0] == 0
    assert capfd.readouterr().err.count("rank 1 is slow") == 1


def test_slow_ranks():
    signs = [{"rank": r, "host_seconds": h, "step_seconds": 1.0} for r, h in enumerate((0.01, 0.012, 0.4, 0.011))]
    assert slow_ranks(signs) == [2] and slow_ranks(signs[:2]) == [] and slow_ranks(signs[:1]) == []
    assert slow_ranks([{**s, "step_seconds": 100.0} for s in signs]) == []  # a trifle


def test_signs_of_life(tmp_path):
    clock = type("Clock", (), {"seconds": Counter()})()
    heart = Heartbeat(clock, tmp_path, 3, last_step=7)
    assert read(tmp_path)[0]["phase"] == "start" and path_of(tmp_path, 3).exists()
    clock.on_phase("eval")  # warming up is part of the start
    assert read(tmp_path)[0]["phase"] == "start"
    heart.on_train_step_begin(None)
    heart.on_train_step_end(None)
    for phase in ("step", "eval", "step", "ckpt"):
        clock.on_phase(phase)
        sign = read(tmp_path)[0]
        assert sign["phase"] == phase and sign["step"] == 8 and sign["pid"] == os.getpid() and time.time() - sign["time"] < 5
    path_of(tmp_path, 4).write_text("{")
    assert [s["rank"] for s in read(tmp_path)] == [3]


KILLS = int(os.environ.get("MINDGPT_KILLS", "2"))
STEPS = max(200, 60 * KILLS)  # seven epochs, and more than are done between so many kills


def test_killed_at_random_moments_the_run_ends_as_if_undisturbed(tiny, tiny_yaml, tmp_path):
    """A random rank, now and then: while it starts, saves, has just published (rotation comes next), or evaluates.

    MINDGPT_KILLS=100 is the long form.
    """
    common = (f"train.total_steps={STEPS}", "ckpt.every_steps=5", "eval.stage.every_steps=20", "eval.stage.time_budget=null",
              "eval.deep.enabled=false", "data.log_samples=true", "health.enabled=false")
    overrides = [f"run.dir={tmp_path}", "supervise.pause_seconds=0", "supervise.max_restarts=1000", *common]
    command = [sys.executable, "-m", "train.supervise", "--config", str(tiny_yaml), "--set", *overrides]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    drain = threading.Thread(target=lambda: output.append(process.stdout.read()))
    output, rng, folder, killed, had = [], np.random.RandomState(0), tmp_path / "tiny", Counter(), False
    drain.start()
    root = folder / "checkpoints"

    def latest() -> str:
        return (root / store.LATEST).read_text() if (root / store.LATEST).exists() else ""

    def phases() -> set[str]:
        return {sign["phase"] for sign in read(folder)}

    def started() -> list[dict]:
        return json.loads((folder / STATE).read_text())["starts"] if (folder / STATE).exists() else []

    moments = {"any": lambda: False, "start": lambda: False, "save": lambda: any(root.glob(".tmp-*")),
               "rotation": lambda: latest() != before, "evaluation": lambda: "eval" in phases()}

    def wait(seconds: float, until=lambda: False) -> bool:
        end = time.monotonic() + seconds
        while time.monotonic() < end and process.poll() is None:
            if until():
                return True
            time.sleep(0.002)
        return False

    while killed.total() < KILLS and process.poll() is None:
        wanted, seconds, starts = rng.choice([*moments]), rng.random_sample(), len(started())
        if wanted == "start":
            wait(25 * seconds)
        else:  # it does some steps first
            wait(120, lambda starts=starts: "step" in phases())
            before = latest()
            wait(5 * seconds if wanted == "any" else 30, moments[wanted])
        workers = [p for p in psutil.Process(process.pid).children(recursive=True) if "MS_WORKER" in environ(p)]
        if workers:
            workers[rng.randint(len(workers))].kill()
            killed[wanted] += 1
            good = [f for f in store.steps(root) if not store.problems_of(f)]
            assert good or not had  # never fewer than one, once there is one
            had = bool(good)
            wait(60, lambda starts=starts: len(started()) > starts)
    process.wait(timeout=500 + STEPS)
    drain.join()
    assert process.returncode == 0 and killed.total() == KILLS, output[0][-3000:]
    print(f"killed: {dict(killed)}")
    whole = tmp_path / "undisturbed"
    command = [sys.executable, "-m", "train.launch", "--config", str(tiny_yaml), "--set", f"run.dir={whole}", *common]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    assert exact(metrics(folder)) == exact(metrics(whole / "tiny"))
    a, b = (store.find(f / "tiny" / "checkpoints")[0] for f in (tmp_path, whole))
    assert a.step == b.step == STEPS
    for part in store.PARTS:
        assert all(np.array_equal(a.tensors[part][n], b.tensors[part][n]) for n in b.tensors[part])
    assert all(not store.problems_of(folder) for folder in root.glob("*/"))
    assert not list(root.glob(".*")) and len(json.loads((folder / STATE).read_text())["starts"]) > 1
    each_sample_once_an_epoch(tiny(*common), folder)


def each_sample_once_an_epoch(config, folder: Path) -> None:
    """From the ranks' logs, against the samples as they lie in the MindRecord files."""
    files = sorted(str(f) for f in (config.data.prepared_dir / "train").glob("*.mindrecord"))
    stored = Counter(zlib.crc32(tokens.tobytes()) for tokens, in MindDataset(files, ["tokens"], num_parallel_workers=1)
                     .create_tuple_iterator(num_epochs=1, output_numpy=True))
    logs = [[json.loads(line) for line in path.read_text().splitlines()] for path in sorted((folder / "samples").glob("*"))]
    assert len(logs) == 2 and all([row["step"] for row in log] == [*range(1, STEPS + 1)] for log in logs)
    consumed = [sample for rows in zip(*logs, strict=True) for row in rows for sample in row["samples"]]
    size = stored.total()
    assert len(consumed) == 4 * STEPS > 7 * size
    for epoch in range(len(consumed) // size):
        assert Counter(consumed[epoch * size:(epoch + 1) * size]) == stored
    assert consumed[:size] != consumed[size:2 * size]


def environ(process: psutil.Process) -> str:
    """What it was started with; "" once it is gone."""
    try:
        return process.environ().get("MS_ROLE", "")
    except psutil.Error:
        return ""
