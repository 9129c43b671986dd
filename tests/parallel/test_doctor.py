"""The doctor with faked commands, a full disk, a port that is taken, and two nodes on this machine."""
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from parallel.doctor import ascend, machine, nodes
from parallel.doctor.result import FAILED, OK, WARNING

ROOT = Path(__file__).parents[2]
CARD = """+-------------------------------+-----------------+------------------------------------------------------+
| npu-smi 25.2.0                                       Version: 25.2.0                                   |
+-------------------------------+-----------------+------------------------------------------------------+
| NPU     Name                  | Health          | Power(W)     Temp(C)           Hugepages-Usage(page) |
| Chip    Device                | Bus-Id          | AICore(%)    Memory-Usage(MB)                        |
+===============================+=================+======================================================+
| 0       310B1                 | OK              | 10.4          66                15    / 15           |
| 0       0                     | NA              | 0            957   / 10810                           |
+===============================+=================+======================================================+
"""
A2 = """| npu-smi 24.1.0                   Version: 24.1.0                                               |
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B3               | OK            | 93.2        48                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          3374 / 65536         |
+===========================+===============+====================================================+
| 1     910B3               | {health:<13} | 90.0        46                0    / 0             |
| 0                         | 0000:C2:00.0  | 0           0    / 0          3374 / 65536         |
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
{process}
"""
FREE = "| No running processes found in NPU 0                                                            |"
TWO_CHIPS = """| 3     Ascend910           | OK            | 171.2       36                0    / 0             |
| 0     6                   | 0000:9D:00.0  | 0           0    / 0          2884 / 65536         |
| 3     Ascend910           | Alarm         | -           36                0    / 0             |
| 1     7                   | 0000:9F:00.0  | 0           0    / 0          2884 / 65536         |
| 3       1                 | 77            | python                   | 107                     |
"""


def test_npu_smi_is_read_in_its_documented_forms():
    assert ascend.parse(CARD) == ({0: ("310B1", "OK")}, {})
    found, used = ascend.parse(A2.format(health="Alarm", process="| 1       0     | 4711          | python        | 107  |"))
    assert found == {0: ("910B3", "OK"), 1: ("910B3", "Alarm")} and used == {1: "process 4711 (python)"}
    assert ascend.parse(TWO_CHIPS) == ({6: ("Ascend910", "OK"), 7: ("Ascend910", "Alarm")}, {7: "process 77 (python)"})
    assert ascend.parse("dcmi module initialize failed. ret is -8005") == ({}, {})


@pytest.fixture
def node(tmp_path):
    """A machine with two cards: node(health, process, **environment) -> its results by name."""
    home, dev, tools = (tmp_path / name for name in ("Ascend", "dev", "bin"))
    for folder in (home / "driver", home / "cann" / "compiler", dev, tools):
        folder.mkdir(parents=True)
    for name in ("davinci0", "davinci1", "davinci_manager", "null"):
        (dev / name).touch()
    (home / "driver" / "version.info").write_text("Version=25.2.0\nascendhal_version=7\n")
    (home / "cann" / "set_env.sh").touch()
    version = home / "cann" / "compiler" / "version.info"
    version.write_text("Version=8.5.0\n")
    cann = {"ASCEND_HOME_PATH": str(home / "cann"), "ASCEND_OPP_PATH": f"{home}/cann/opp",
            "LD_LIBRARY_PATH": f"{home}/cann/lib64", "PYTHONPATH": f"{home}/cann/opp/built-in/op_impl/ai_core/tbe"}

    def look(health="OK", process=FREE, code=0, text=None, **env):
        (tmp_path / "said").write_text(A2.format(health=health, process=process) if text is None else text)
        (tools / "npu-smi").write_text(f'#!/bin/sh\n[ "$*" = info ] || exit 9\ncat "{tmp_path}/said"\nexit {code}\n')
        (tools / "npu-smi").chmod(0o755)
        env = {**cann, "PATH": f"{tools}:{os.environ['PATH']}", **env}
        env = {name: value for name, value in env.items() if value is not None}
        return {result.check: result for result in ascend.checks(env, dev, home)}

    look.dev, look.home, look.version, look.tools = dev, home, version, tools
    return look


def test_healthy_cards(node):
    found = node()
    assert found["cards"].state == OK and found["cards"].found == "2 of 2 card(s) (910B3), all healthy and free"
    assert (found["driver"].state, found["cann"].state) == (OK, OK) and "25.2.0" in found["driver"].found
    assert found["env"].state == FAILED and "CANN's package te" in found["env"].found  # which this Python has not
    assert node(ASCEND_RT_VISIBLE_DEVICES="1")["cards"].found.startswith("1 of 2")


@pytest.mark.parametrize("change, check, state, said", [
    ({"health": "Alarm"}, "cards", FAILED, "card 1 is in state Alarm"),
    ({"health": "Warning"}, "cards", WARNING, "card 1 is in state Warning"),
    ({"process": "| 1  0 | 4711 | python | 107 |"}, "cards", WARNING, "card 1 is used by process 4711 (python)"),
    ({"ASCEND_RT_VISIBLE_DEVICES": "0,5"}, "cards", FAILED, "there is no card 5 among 0, 1"),
    ({"code": 1, "text": "dcmi module initialize failed. ret is -8005\n"}, "cards", FAILED, "dcmi module initialize failed"),
    ({"ASCEND_HOME_PATH": None}, "cann", FAILED, "ASCEND_HOME_PATH is not set"),
    ({"ASCEND_HOME_PATH": "/nowhere"}, "cann", WARNING, "/nowhere/compiler/version.info does not say"),
    ({"LD_LIBRARY_PATH": None, "PYTHONPATH": "/x"}, "env", FAILED, "LD_LIBRARY_PATH, PYTHONPATH do(es) not lead to CANN"),
])
def test_what_is_wrong_with_cards_is_said(node, change, check, state, said):
    result = node(**change)[check]
    assert result.state == state and said in result.found and result.advice
    if check == "env":
        assert f"source {node.home}/cann/set_env.sh" in result.advice


def test_a_sick_card_that_is_not_taken_does_no_harm(node):
    assert node(health="Critical", ASCEND_RT_VISIBLE_DEVICES="0")["cards"].state == OK


def test_versions_and_parts_that_are_not_there(node):
    node.version.write_text("Version=7.0.0\n")
    assert node()["cann"].state == FAILED and "7.0.0" in node()["cann"].found
    (node.home / "driver" / "version.info").unlink()
    assert node()["driver"].state == WARNING
    for name in ("davinci0", "davinci1"):
        (node.dev / name).unlink()
    assert "there is no /dev/davinci*" in node()["cards"].found
    (node.tools / "npu-smi").unlink()
    assert [(r.check, r.state) for r in ascend.checks({"PATH": str(node.tools)}, node.dev, node.home)] == [("cards", OK)]
    (node.dev / "davinci0").touch()
    assert ascend.cards({"PATH": ""}, [0], None).state == FAILED


@pytest.mark.parametrize("version, wanted, fits", [
    ("2.10.0", "==2.10.0", True), ("2.10", "==2.10.0", True), ("2.9.0", "==2.10.0", False), ("1.26.4", ">=1.26,<2", True),
    ("2.0.1", ">=1.26,<2", False), ("2.0.0rc1", ">=1.26,<2", False), ("3.9.1", ">=3.11,<3.13", False),
    ("0.2.3", ">=0.2,<0.3", True)])
def test_versions_are_compared_as_numbers(version, wanted, fits):
    assert machine.meets(version, wanted) == fits


def test_packages_are_held_against_pyproject():
    python, wanted = machine.project()
    assert python == ">=3.11,<3.13" and wanted["mindspore"] == "==2.10.0" and wanted["numpy"] == ">=1.26,<2" and len(wanted) == 6
    assert {r.state for r in machine.packages(wanted)} == {OK}
    wrong, absent = machine.packages({"numpy": "<1", "no-such-package": ">=1"})
    assert wrong.state == FAILED and wrong.advice == "pip install 'numpy<1'"
    assert absent.state == WARNING and "no-such-package" in absent.found


def test_disk(tmp_path):
    fine = machine.disk("runs", tmp_path / "not" / "yet", 0.001, megabytes=1)
    assert fine.state in (OK, WARNING) and str(tmp_path) in fine.found and not list(tmp_path.iterdir())
    assert machine.disk("runs", tmp_path, 1e9).state == FAILED
    assert machine.disk("runs", Path("/proc/1"), 0.0).state == FAILED


def test_a_place_that_keeps_others_out_is_no_traceback(tmp_path, monkeypatch):
    def is_dir(path, of=Path.is_dir):
        if path.is_relative_to(tmp_path / "private") and path != tmp_path / "private":
            raise PermissionError
        return of(path)
    (tmp_path / "private").mkdir()
    monkeypatch.setattr(Path, "is_dir", is_dir)
    assert machine.existing(tmp_path / "private" / "x" / "runs") == tmp_path / "private"


def test_memory_limits_and_clock(tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       200000000 kB\nMemAvailable:   100000000 kB\n")
    assert machine.memory(meminfo=meminfo, cgroup=tmp_path).found == "102.4 GB available of 204.8 GB"
    for name, value in (("memory.max", "8000000000"), ("memory.current", "7000000000")):
        (tmp_path / name).write_text(value)
    tight = machine.memory(meminfo=meminfo, cgroup=tmp_path)
    assert tight.state == WARNING and tight.found == "1.0 GB available of the 8.0 GB that the container may use"
    (tmp_path / "memory.stat").write_text("anon 1000\ninactive_file 6000000000\nactive_file 0\n")  # pages of files give way
    assert machine.memory(meminfo=meminfo, cgroup=tmp_path).found.startswith("7.0 GB available of the 8.0 GB")
    (tmp_path / "memory.stat").unlink()
    assert machine.shared_memory(tmp_path / "shm").state == FAILED and machine.shared_memory(tmp_path, 1e9).state == WARNING
    assert machine.limits(10).state == OK
    assert machine.clock(tmp_path).state == OK and machine.clock(tmp_path, -1.0).state == WARNING


def test_a_port_that_is_taken_is_named():
    with socket.create_server(("", 0)) as server:
        env = {"MASTER_PORT": str(server.getsockname()[1])}
        assert machine.port(env).state == FAILED and env["MASTER_PORT"] in machine.port(env).found
        assert machine.port({**env, "NODE_RANK": "1"}).state == OK
    assert (machine.port(env).state, machine.port({}).state, machine.port({"MASTER_PORT": "x"}).state) == (OK, OK, FAILED)


def test_a_compiler_that_is_not_there_is_a_warning():
    assert machine.compiler({"CXX": "no-such-compiler -O2"}).state == WARNING


NODE = """
import sys
from pathlib import Path
from parallel.doctor import nodes
rank, port, folder, seconds, cards = sys.argv[1:]
nodes._is_here = lambda address: rank == "0"  # both "nodes" are this machine
env = {"NNODES": "2", "NODE_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
print(*nodes.checks(env, Path(folder), float(seconds), {"cards": cards}), sep="\\n")
"""


def free_port() -> int:
    with socket.create_server(("", 0)) as server:
        return server.getsockname()[1]


def two_nodes(tmp_path, seconds=30.0, folders=("runs", "runs"), cards=("8", "8"), ranks=(0, 1)) -> list[str]:
    port = str(free_port())
    arguments = [[str(rank), port, str(tmp_path / folders[rank]), str(seconds), cards[rank]] for rank in ranks]
    processes = [subprocess.Popen([sys.executable, "-c", NODE, *words], cwd=ROOT, stdout=subprocess.PIPE, text=True)
                 for words in arguments]
    return [process.communicate(timeout=60)[0] for process in processes]


def test_two_nodes_see_each_other(tmp_path):
    (tmp_path / "runs" / nodes.FOLDER).mkdir(parents=True)
    stale = {"session": "old", "beat": 5, "all": True, "host": "x", "time": 0, "same": {}}
    (tmp_path / "runs" / nodes.FOLDER / "node_1.json").write_text(json.dumps(stale))  # an earlier doctor was killed
    zero, one = two_nodes(tmp_path)
    assert "is here" in zero and "is reached" in one
    for said in (zero, one):
        lines = said.splitlines()
        assert [line.split()[:2] for line in lines] == [["ok", name] for name in ("master", "shared", "equal", "clocks")], said
    assert not list((tmp_path / "runs").iterdir())


def test_nodes_that_differ_or_do_not_share_the_folder(tmp_path):
    for said, here, there in zip(two_nodes(tmp_path, cards=("8", "7")), "87", "78", strict=True):
        assert f"failed   equal      cards: {here} here, {there} on node" in said
    for said, other in zip(two_nodes(tmp_path, 2.0, folders=("runs", "elsewhere")), "10", strict=True):
        assert f"failed   shared     node {other} left no mark" in said


def test_a_master_that_is_not_there(tmp_path):
    said, = two_nodes(tmp_path, 1.0, ranks=(1,))
    assert "failed   master     127.0.0.1:" in said and "is not reached from this node" in said


@pytest.mark.parametrize("env, said", [
    ({"NNODES": "two"}, "NNODES=two: expected a whole number"),
    ({"NNODES": "2"}, "missing: NODE_RANK, MASTER_ADDR, MASTER_PORT"),
    ({"NNODES": "2", "NODE_RANK": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, "NODE_RANK=2: expected a whole number from 0"),
    ({"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}, ": an address of this machine, but"),
    ({"NNODES": "2", "NODE_RANK": "0", "MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "1"}, "not an address of this machine, but"),
])
def test_contradictions_of_the_environment(tmp_path, env, said):
    result, = nodes.checks(env, tmp_path, 0.1, {})
    assert result.state == FAILED and said in result.found
    assert nodes.checks({}, tmp_path, 0.1, {}) == []


def doctor(folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess:
    inherited = {k: v for k, v in os.environ.items() if k not in ("NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")}
    command = ["bash", str(ROOT / "run_scripts" / "doctor.sh"), "--runs", str(folder), "--data", str(folder), *arguments]
    env = {**inherited, "MINDGPT_NO_VENV": "1", **env}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=60)


def test_the_command(tmp_path):
    here = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = doctor(tmp_path, "--json", PATH=here)
    results = {r["check"]: r for r in json.loads(done.stdout)}
    assert results["mindspore"]["state"] == "ok" and set(results["runs"]) == {"check", "state", "found", "advice"}
    assert done.returncode == any(r["state"] == "failed" for r in results.values()), done.stdout
    (tmp_path / "npu-smi").write_text(f"#!/bin/sh\ncat <<'E'\n{CARD}E\n")
    (tmp_path / "npu-smi").chmod(0o755)
    done = doctor(tmp_path, "--min-free-gb", "1e9", PATH=f"{tmp_path}:{here}")
    assert done.returncode == 1 and not done.stderr
    lines = done.stdout.splitlines()
    assert f"failed   runs       {tmp_path} has " in done.stdout and lines[-1].endswith("failed")
    assert any(line.startswith("failed   cards      npu-smi shows 1 card(s), but there is no /dev/davinci*") for line in lines)
    assert all(line.split()[0] in (OK, WARNING, FAILED) for line in lines[:-1])


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.13", "3.7"])
def test_an_old_python_is_told_not_a_traceback(tmp_path, version):
    """An interpreter of that version, where there is one."""
    places = [*filter(None, [shutil.which(f"python{version}")]), *Path.home().glob(f".pyenv/versions/{version}.*/bin/python")]
    places = [place for place in places if not subprocess.run([place, "--version"], capture_output=True).returncode]
    if not places:
        pytest.skip(f"no Python {version} here")
    done = doctor(tmp_path, PYTHON=str(places[0]))
    assert done.returncode == 1 and "failed   python" in done.stdout and "MindSpore needs >=3.11,<3.13" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
