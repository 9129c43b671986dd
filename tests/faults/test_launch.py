"""The launcher against workers that fail in every way (P2, and E2's third): real msrun, small programs as workers."""
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from parallel.errors import UserError
from train.config import load_config
from train.launch import count_workers, free_port, main, read_topology
from train.processes import MARK, environment, find

ROOT = Path(__file__).parents[2]

# Rank 1 does what argv says; rank 0 goes on; the scheduler stays, as MindSpore's does until all workers have ended.
WORKER = """
import os, signal, subprocess, sys, time
def save(*_):
    print("saved"); sys.exit(4)
def wait():
    time.sleep(60); sys.exit(1)
if os.environ["MS_ROLE"] == "MS_SCHED":
    wait()
rank, what = int(os.environ["RANK_ID"]), sys.argv[1]
if what == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if what == "save":
    signal.signal(signal.SIGTERM, save)
print("hello of rank", rank, "threads", os.environ["OMP_NUM_THREADS"], "of", os.environ["MINDGPT_LOCAL_WORKERS"])
print("[INFO] DISTRIBUTED(1,2,python):noise")
if rank == 0 or what in ("save", "stubborn", "plain"):
    if what == "ok":
        sys.exit(0)
    subprocess.Popen(["sleep", "60"], start_new_session=True)  # as a data worker would be
    print("ready of rank", rank)
    wait()
if what == "raise":
    raise RuntimeError("the true cause")
if what == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if what.isdigit():
    sys.exit(int(what))
"""

LAUNCHER = """
import sys
from pathlib import Path
from train.workers import Limits, Topology, run_workers
port, logs, program, what = sys.argv[1:]
finish = 30 if what == "ok" else 2  # of two that start side by side on a busy machine one may be seconds behind
sys.exit(run_workers([program, what], Topology(2, int(port)), Path(logs), Limits(finish=finish, grace=2)))
"""


class Launcher:
    """`run_workers` in a process of its own."""

    def __init__(self, folder: Path, what: str):
        (folder / "worker.py").write_text(WORKER)
        self.port, self.logs = free_port(), folder / "a run" / "logs"
        # A shell's background job ignores SIGINT, and hands that on to all that it starts, this test run for one.
        self.process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, str(self.port), str(self.logs), str(folder / "worker.py"), what],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))

    def marked(self) -> list[int]:
        """Processes of this job."""
        text = str(self.logs.parent.parent)
        workers = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and text in _command(pid)]
        marks = {environment(pid).get(MARK) for pid in workers} - {None}
        return [pid for mark in marks for pid in find(mark)]

    def wait_until_ready(self) -> list[int]:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            logs = [self.logs / f"rank_{rank}.log" for rank in (0, 1)]
            if all(log.exists() and "ready" in log.read_text() for log in logs):
                return self.marked()
            time.sleep(0.1)
        raise AssertionError("the workers did not start")

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err


def _command(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _nothing_left(launcher: Launcher, pids: list[int] = ()) -> None:
    assert not launcher.marked()
    assert not [pid for pid in pids if "State:\tZ" not in _status(pid)]
    with socket.create_server(("", launcher.port)):
        pass


def _status(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return "State:\tZ"


@pytest.mark.parametrize("what, code, message", [
    ("raise", 1, "rank 1 failed first (exit code 1)"),
    ("kill", 1, "rank 1 failed first (killed by SIGKILL"),
    ("2", 2, "rank 1 failed first (exit code 2)"),
    ("0", 1, "rank 1 ended (exit code 0) while rank 0 went on"),
    ("3", 3, "rank 1 ended (exit code 3) while rank 0 went on"),
])
def test_one_rank_ends_the_job(tmp_path, what, code, message):
    launcher = Launcher(tmp_path, what)
    start = time.monotonic()
    got, out, err = launcher.end()
    assert time.monotonic() - start < 30
    assert got == code
    assert message in err and f"{launcher.logs}/rank_1.log" in err and "| hello of rank 1" in err
    assert "rank 0 failed" not in err and "noise" not in out + err
    assert "hello of rank 0" in out and "hello of rank 1" not in out
    if what == "raise":
        assert "| RuntimeError: the true cause" in err
    _nothing_left(launcher)


def test_all_end_well_and_earlier_logs_are_kept(tmp_path):
    share = max(1, len(os.sched_getaffinity(0)) // 2)
    for _ in range(2):
        launcher = Launcher(tmp_path, "ok")
        code, out, _ = launcher.end()
        assert code == 0
        assert re.search(r"hello of rank 0 threads \d+ of 2" if "OMP_NUM_THREADS" in os.environ
                         else rf"hello of rank 0 threads {share} of 2", out)
        _nothing_left(launcher)
    names = {"msrun", "rank_0", "rank_1", "scheduler"}
    assert {p.name for p in launcher.logs.iterdir()} == {f"{n}.log" for n in names} | {f"{n}.1.log" for n in names}
    assert "hello of rank 1" in (launcher.logs / "rank_1.1.log").read_text()


@pytest.mark.parametrize("what, number, code", [("save", signal.SIGTERM, 4), ("save", signal.SIGINT, 4),
                                                ("plain", signal.SIGTERM, 143), ("stubborn", signal.SIGINT, 130)])
def test_signals_let_the_workers_save(tmp_path, what, number, code):
    launcher = Launcher(tmp_path, what)
    pids = launcher.wait_until_ready()
    assert len(pids) >= 5  # scheduler, two workers, a child of each
    launcher.process.send_signal(number)
    got, out, err = launcher.end()
    assert got == code and signal.Signals(number).name in err
    assert ("saved" in out) == (what == "save")
    _nothing_left(launcher, pids)


def test_a_second_signal_ends_at_once(tmp_path):
    launcher = Launcher(tmp_path, "stubborn")
    pids = launcher.wait_until_ready()
    launcher.process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    start = time.monotonic()
    launcher.process.send_signal(signal.SIGTERM)
    assert launcher.end()[0] == 143
    assert time.monotonic() - start < 1.5  # the grace period is 2 s
    _nothing_left(launcher, pids)


def test_a_signal_before_the_workers_have_started(tmp_path):
    launcher = Launcher(tmp_path, "save")
    while not launcher.logs.exists():
        time.sleep(0.05)
    time.sleep(0.5)
    launcher.process.send_signal(signal.SIGTERM)
    assert launcher.end()[0] in (4, 143)  # the workers may have come as far as to save
    _nothing_left(launcher)


def test_the_launcher_itself_is_killed(tmp_path):
    launcher = Launcher(tmp_path, "save")
    pids = launcher.wait_until_ready()
    launcher.process.kill()
    launcher.process.communicate(timeout=10)
    end = time.monotonic() + 10
    while launcher.marked() and time.monotonic() < end:
        time.sleep(0.1)
    assert "saved" in (launcher.logs / "rank_1.log").read_text()
    _nothing_left(launcher, pids)


def test_a_busy_port_is_refused_with_its_number():
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(UserError, match=f"MASTER_PORT={port} cannot be used"):
            read_topology({"MASTER_PORT": str(port)}, 2)
    assert read_topology({"MASTER_PORT": str(port)}, 2).port == port


@pytest.mark.parametrize("env, message", [
    ({"MASTER_PORT": "http"}, "MASTER_PORT=http: expected a whole number from 1 to 65535"),
    ({"MASTER_PORT": "70000"}, "MASTER_PORT=70000: expected"),
    ({"NNODES": "0"}, "NNODES=0: expected"), ({"NNODES": "two"}, "NNODES=two: expected"),
    ({"NODE_RANK": "1"}, "NODE_RANK=1: expected a whole number from 0 to 0"),
    ({"NNODES": "2", "MASTER_PORT": "1"}, "NNODES=2 needs all of .*; missing: NODE_RANK, MASTER_ADDR"),
    ({"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}, "is an address of this"),
    ({"NNODES": "2", "NODE_RANK": "0", "MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "1"}, "is not an address of this"),
    ({"NNODES": "2", "NODE_RANK": "0", "MASTER_ADDR": "no.such.host.invalid", "MASTER_PORT": "1"}, "unknown host"),
    ({"ASCEND_RT_VISIBLE_DEVICES": "0-3"}, "ASCEND_RT_VISIBLE_DEVICES=0-3: expected device numbers"),
])
def test_refused_environments(env, message):
    with pytest.raises(UserError, match=message):
        read_topology(env)


def test_one_node_of_many():
    env = {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "8118"}
    topology = read_topology(env, 4)
    assert (topology.address, topology.port, topology.nodes) == ("192.0.2.1", 8118, 2)
    assert list(topology.ranks) == [4, 5, 6, 7]


def test_workers_are_the_visible_devices(tmp_path):
    assert count_workers({}, dev=tmp_path) == 2
    for name in ("davinci0", "davinci1", "davinci12", "davinci_manager", "null"):
        (tmp_path / name).touch()
    assert count_workers({}, dev=tmp_path) == 3
    assert count_workers({"ASCEND_RT_VISIBLE_DEVICES": "0, 1,5,7"}, dev=tmp_path) == 4
    assert count_workers({}, 2, dev=tmp_path) == 2
    for workers in (0, 4):
        with pytest.raises(UserError, match=f"--workers {workers}: expected a number from 1 to 3"):
            count_workers({}, workers, dev=tmp_path)


@pytest.mark.parametrize("overrides, name", [(["run.seed=1"], "first-standalone"), (["run.name=mine"], "mine")])
def test_standalone_becomes_the_training_under_a_name_of_its_own(tmp_path, monkeypatch, overrides, name):
    config = tmp_path / "c.yaml"
    config.write_text("run: {dir: runs, name: first}\ndata: {path: a.txt, prepared_dir: p}\n")
    monkeypatch.setattr(os, "execve", lambda *given: (_ for _ in ()).throw(SystemExit(given)))
    with pytest.raises(SystemExit) as caught:
        main(["--standalone", "--config", str(config), "--set", *overrides])
    program, arguments, env = caught.value.code
    assert arguments[:5] == [program, "-m", "train", "--config", str(config)] and arguments[5] == "--set"
    assert load_config(str(config), arguments[6:]).run.name == name
    assert env["MINDGPT_LOCAL_WORKERS"] == "1"


def test_a_wrong_config_starts_nothing(tmp_path, capsys):
    config = tmp_path / "c.yaml"
    config.write_text("run: {dir: runs}\ndata: {path: a.txt, prepared_dir: p}\ntrain: {lrr: 1}\n")
    for options, message in [(["train.lr=1"], "c.yaml:3: train.lrr: unknown key; did you mean train.lr?"),
                             (["foo"], "--set foo: expected key=value"),
                             (["train.lrr=1"], "--set train.lrr=1: train.lrr: unknown key")]:
        result = subprocess.run([sys.executable, "-m", "train.launch", "--config", str(config), "--set", *options],
                                capture_output=True, text=True, cwd=ROOT, timeout=60)
        assert result.returncode == 2 and message in result.stderr and not result.stdout
    config.write_text("run: {dir: runs}\ndata: {path: a.txt, prepared_dir: p}\ntrain: {global_batch_size: 9}\n")
    assert main(["--config", str(config)]) == 2
    assert "global_batch_size=9 must be a multiple of 2" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["c.yaml"]
