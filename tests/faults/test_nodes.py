"""Several nodes that keep a run alive: a launcher that does as told, and real workers in network namespaces."""
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from ckpt import store, writing
from ckpt.saver import Saver
from ckpt.writing import Part, SaveError
from parallel.errors import UserError
from tests.conftest import exact, metrics
from train.metrics_log import MetricsLog
from train.nodes import FOLDER, NUMBER, Nodes, fence
from train.supervise import STATE

ROOT = Path(__file__).parents[2]

# Does what the next line of its node's plan says: fail, end, wait (until it is ended), or a number: the exit code.
LAUNCHER = """
import os, sys, time
from pathlib import Path
folder, node, restart = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
with open(folder / f"starts_{node}", "a") as f:
    f.write(f"{os.environ['MINDGPT_INCARNATION']} {restart}\\n")
plan = folder / f"plan_{node}"
first, *rest = plan.read_text().splitlines()
plan.write_text("\\n".join(rest))
time.sleep(60 if first == "wait" else 2)
if first == "fail":
    print(f"train.launch: rank {node} failed first (killed by SIGKILL); all workers of this node are stopped.", file=sys.stderr)
sys.exit(int(first) if first.isdigit() else first == "fail")
"""

SUPERVISOR = """
import sys
from train.config import load_config
from train.supervise import Supervisor
from train.workers import Topology
config, node = load_config(sys.argv[1], sys.argv[4:]), int(sys.argv[3])
command = lambda restart: [sys.executable, sys.argv[2], str(config.run.folder), str(node), str(restart)]
sys.exit(Supervisor(config, command, Topology(1, 0, nodes=2, node_rank=node)).run())
"""


class Cluster:
    """Two nodes with a plan each, the one's line the other's neighbour."""

    def __init__(self, yaml: Path, tmp_path: Path, *plans: str):
        self.folder, self.processes = tmp_path / "tiny", {}
        self.folder.mkdir()
        (tmp_path / "launcher.py").write_text(LAUNCHER)
        for node, plan in enumerate(plans):
            (self.folder / f"plan_{node}").write_text("\n".join(plan.split()))
        self.command = [sys.executable, "-c", SUPERVISOR, str(yaml), str(tmp_path / "launcher.py")]
        self.overrides = [f"run.dir={tmp_path}", "supervise.pause_seconds=0", "supervise.lease_seconds=3",
                          "supervise.node_minutes=0.5"]

    def start(self, node: int) -> None:
        self.processes[node] = subprocess.Popen([*self.command, str(node), *self.overrides], cwd=ROOT, text=True,
                                                stderr=subprocess.PIPE, start_new_session=True)

    def kill(self, node: int) -> None:
        """The node is gone: the supervisor and all that it started."""
        for process in (*psutil.Process(self.processes[node].pid).children(recursive=True), self.processes[node]):
            process.kill()
        self.processes[node].wait()

    def wait(self) -> dict[int, tuple[int, str]]:
        """node -> (exit code, what it said)."""
        said = {node: process.communicate(timeout=60)[1] for node, process in self.processes.items()}
        return {node: (self.processes[node].returncode, said[node]) for node in said}

    def starts(self, node: int) -> list[str]:
        path = self.folder / f"starts_{node}"
        return path.read_text().splitlines() if path.exists() else []

    def until(self, node: int, count: int) -> None:
        end = time.monotonic() + 40
        while len(self.starts(node)) < count:
            assert time.monotonic() < end, "it did not come to this start"
            time.sleep(0.1)


@pytest.fixture
def cluster(tiny_yaml, tmp_path):
    made = []

    def make(*plans):
        made.append(Cluster(tiny_yaml, tmp_path, *plans))
        return made[0]
    yield make
    for process in made[0].processes.values():
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def test_a_failure_on_one_node_ends_and_restarts_the_job_on_both(cluster):
    nodes = cluster("wait end", "fail end")
    nodes.start(1)
    time.sleep(1)  # whoever comes first waits for the other
    nodes.start(0)
    ends = nodes.wait()
    assert [code for code, _ in ends.values()] == [0, 0], ends
    assert nodes.starts(0) == nodes.starts(1) == ["1 False", "2 True"]
    found = json.loads((nodes.folder / STATE).read_text())
    assert found["state"] == "done" and found["starts"][0]["reason"] == "node 1: rank 1 failed (killed by SIGKILL)"


def test_a_node_that_is_lost_is_waited_for_and_joins_the_next_start(cluster):
    nodes = cluster("wait end", "wait end")
    nodes.start(0)
    nodes.start(1)
    nodes.until(1, 1)
    nodes.kill(1)
    time.sleep(5)  # longer than its lease
    assert json.loads((nodes.folder / FOLDER / "incarnation.json").read_text())["stop"].startswith("node 1 is lost")
    nodes.start(1)
    ends = nodes.wait()
    assert [code for code, _ in ends.values()] == [0, 0] and "node 1 is lost" in ends[0][1], ends
    assert nodes.starts(0) == nodes.starts(1) == ["1 False", "2 True"]


def test_node_0_may_be_lost_too(cluster):
    nodes = cluster("wait end", "wait end")
    nodes.start(0)
    nodes.start(1)
    nodes.until(0, 1)
    nodes.kill(0)
    time.sleep(1)  # it comes back before its lease is over
    nodes.start(0)
    ends = nodes.wait()
    assert [code for code, _ in ends.values()] == [0, 0], ends
    assert nodes.starts(0) == ["1 False", "2 False"] and nodes.starts(1) == ["1 False", "2 False"]


def test_a_node_that_does_not_come_back_ends_it_all(cluster):
    nodes = cluster("wait", "wait")
    nodes.overrides.append("supervise.node_minutes=0.05")
    nodes.start(0)
    (code, said), = nodes.wait().values()
    assert code == 1 and "given up: node 1 has not come within 0.05 minutes" in said and not nodes.starts(0)


@pytest.mark.parametrize("code", [2, 3, 4])
def test_ends_that_are_final_are_final_on_all_nodes(cluster, code):
    """2: wrong input, seen by one node; 3 and 4: stopped by a health rule, interrupted; saved, and agreed by all ranks."""
    nodes = cluster("wait" if code == 2 else f"{code}", f"{code}")
    nodes.start(0)
    nodes.start(1)
    assert [end for end, _ in nodes.wait().values()] == [code, code]
    assert len(nodes.starts(0)) == 1


def test_a_second_supervisor_is_refused_and_the_first_goes_on(tmp_path):
    with Nodes(tmp_path, 0, 1, 30.0) as first:
        assert first.begin(restart=False) == 1
        with pytest.raises(UserError, match="another train.supervise keeps .* alive on node 0"), Nodes(tmp_path, 0, 1, 30.0):
            pass
        assert first.current()["number"] == 1
    with Nodes(tmp_path, 0, 1, 30.0) as second:
        assert second.begin(restart=False) == 2


def test_a_process_of_an_earlier_start_writes_no_more(tmp_path, monkeypatch):
    """It wakes up in the midst of writing, while the next start fills in the same step, and later."""
    root, part = tmp_path / "checkpoints", Part({"model": {"w": np.arange(1000, dtype=np.float32)}})
    state = {"step": 20, "run_id": "x"}
    with Nodes(tmp_path, 0, 1, 30.0) as nodes:
        savers = []
        for number in (1, 2):
            assert nodes.begin(restart=number > 1) == number
            monkeypatch.setenv(NUMBER, str(number))
            savers.append((Saver(root, 2, fence=fence(tmp_path), writer=str(number)), fence(tmp_path)))
            if number == 1:
                old = writing.begin(root, 20, part.nbytes, "1")
                files = writing.write_part(old, part)
                log = MetricsLog(tmp_path / "metrics.jsonl", 0, savers[0][1])
                log.write([{"step": 1}])
        new = writing.begin(root, 20, part.nbytes, "2")
        assert new != old and not old.exists()
        with pytest.raises(FileNotFoundError):  # even if it had looked at its number just before
            writing.publish(root, old, state, "{}\n", files, 2)
        assert new.exists() and not store.folder_of(root, 20).exists()
        for write in (lambda: savers[0][0].start(part, part.nbytes, state, "{}\n"), lambda: log.write([{"step": 2}])):
            with pytest.raises(SaveError, match="this process belongs to start 1 of the run, and the current one is 2"):
                write()
        assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 1
        savers[1][0].start(part, part.nbytes, state, "{}\n")
        savers[1][0].wait()
    assert [f.name for f in store.steps(root)] == ["step_00000020"] and not list(root.glob(".*"))


NETWORK = """
ip netns add gptnode0 && ip netns add gptnode1 &&
ip link add gptnode0 netns gptnode0 type veth peer name gptnode1 netns gptnode1 &&
for n in 0 1; do ip -n gptnode$n addr add 10.77.0.$((n + 1))/24 dev gptnode$n &&
ip -n gptnode$n link set gptnode$n up && ip -n gptnode$n link set lo up || exit 1; done
"""


@pytest.fixture
def network():
    """Two network namespaces with an address each, as two machines have."""
    clear = "ip netns del gptnode0; ip netns del gptnode1"
    if not shutil.which("ip") or subprocess.run(f"{clear}; {NETWORK}", shell=True, capture_output=True).returncode:
        pytest.skip("it takes root and the command ip (iproute2) to make network namespaces")
    yield lambda node: ["ip", "netns", "exec", f"gptnode{node}"]
    subprocess.run(clear, shell=True, capture_output=True)


@pytest.mark.long
def test_two_nodes_train_on_when_a_worker_and_when_a_node_is_killed(network, tiny_yaml, tmp_path):
    """Real workers on two addresses: a worker is killed, then all of node 1. To the bit as if undisturbed."""
    common = ("train.total_steps=120", "ckpt.every_steps=5", "eval.stage.every=0.25", "eval.deep.enabled=false",
              "supervise.pause_seconds=0", "supervise.lease_seconds=5")

    def start(module: str, node: int, folder: Path, port: int) -> subprocess.Popen:
        command = [*network(node), sys.executable, "-m", module, "--config", str(tiny_yaml), "--workers", "1", "--set",
                   f"run.dir={folder}", *common]
        environment = os.environ | {"NNODES": "2", "NODE_RANK": str(node), "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": str(port)}
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def worker(process: subprocess.Popen) -> psutil.Process | None:
        found = psutil.Process(process.pid).children(recursive=True)
        return next((p for p in found if p.status() != psutil.STATUS_ZOMBIE and p.environ().get("MS_ROLE") == "MS_WORKER"), None)

    def until(step: int, processes) -> None:
        end = time.monotonic() + 150
        while not (tmp_path / "tiny" / "metrics.jsonl").exists() or len(metrics(tmp_path / "tiny")) < step:
            assert time.monotonic() < end and all(p.poll() is None for p in processes), [p.communicate()[0] for p in processes]
            time.sleep(0.2)

    nodes = [start("train.supervise", n, tmp_path, 8118) for n in (0, 1)]
    until(10, nodes)
    worker(nodes[1]).kill()
    time.sleep(10)  # the first start is over
    until(40, nodes)
    for process in (*psutil.Process(nodes[1].pid).children(recursive=True), nodes[1]):
        process.kill()
    nodes[1].wait()
    nodes[1] = start("train.supervise", 1, tmp_path, 8118)
    said = [process.communicate(timeout=400)[0] for process in nodes]
    assert [process.returncode for process in nodes] == [0, 0], said
    reasons = [s["reason"] for s in json.loads((tmp_path / "tiny" / STATE).read_text())["starts"]]
    assert len(reasons) == 3 and reasons[0].startswith("node 1: rank 1 failed (killed by SIGKILL"), reasons
    assert "node 1" in reasons[1], reasons
    whole = [start("train.launch", n, tmp_path / "whole", 8119) for n in (0, 1)]
    assert [(process.communicate(timeout=300), process.returncode)[1] for process in whole] == [0, 0]
    assert exact(metrics(tmp_path / "tiny")) == exact(metrics(tmp_path / "whole" / "tiny"))
    a, b = (store.find(f / "tiny" / "checkpoints")[0] for f in (tmp_path, tmp_path / "whole"))
    for part in store.PARTS:
        assert all(np.array_equal(a.tensors[part][n], b.tensors[part][n]) for n in b.tensors[part])
