"""The dry run: MindSpore's compiler for Ascend without a device, on this machine; real compilations, real processes."""
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from parallel.dry_run import stand_ins
from parallel.dry_run.cann import environment
from parallel.dry_run.pool import compile_ranks
from parallel.dry_run.server import essence, logged_errors
from parallel.errors import UserError

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def job(rank: int, do: str, folder: Path, world_size: int = 2, **more) -> dict:
    return {"rank": rank, "world_size": world_size, "do": do, "out": str(folder / f"out_{rank}"), **more}


def graph(path: Path) -> list[tuple[int, bytes]]:
    """The fields of a MindIR (ModelProto), without what differs from process to process.

    That is: addresses of objects, the time in the name of a phase, and the order in the table of primitives (field 12).
    """
    data, pos, fields = path.read_bytes(), 0, []

    def varint() -> int:
        nonlocal pos
        value = shift = 0
        while True:
            pos, byte = pos + 1, data[pos]
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while pos < len(data):
        number, kind = divmod(varint(), 8)
        value = varint()
        if kind == 2:  # length-delimited: a string or a message
            pos, value = pos + value, data[pos:pos + value]
        fields.append((number, re.sub(rb"0x[0-9a-f]{6,}|train\.\d+\.\d+\.\d", b"", value) if kind == 2 else b"%d" % value))
    return sorted(fields)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Two ranks of a data-parallel net and jobs that fail in every way, from another current folder."""
    folder, elsewhere = tmp_path_factory.mktemp("dry_run"), tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "parallel.py").write_text("raise ImportError('the current folder is not for import')")
    jobs = [job(2, "kill", folder, 8), job(0, "compile", folder), job(1, "compile", folder), job(3, "refuse", folder, 8),
            job(4, "bad strategy", folder, 8), job(5, "exit", folder, 8), job(6, "bad shape", folder, 8)]
    done = []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(elsewhere)
        patch.setenv("MS_ROLE", "MS_WORKER")  # as if a launcher had started this process
        patch.setenv("RANK_ID", "7")
        outcomes = compile_ranks("dry_run_jobs:many", jobs, folder / "logs", on_done=done.append)
    return folder, outcomes, done, elsewhere


def test_outcomes_come_in_the_order_of_the_jobs_and_all_are_told(compiled):
    folder, outcomes, done, _ = compiled
    assert [o.rank for o in outcomes] == [2, 0, 1, 3, 4, 5, 6]
    assert sorted(o.rank for o in done) == [0, 1, 2, 3, 4, 5, 6]
    assert [o.ok for o in outcomes] == [False, True, True, False, False, False, False]
    assert outcomes[1].peak_rss_bytes > 100e6 and outcomes[1].seconds > 0.1
    assert outcomes[1].log == folder / "logs" / "rank_0.log" and "job compile" in outcomes[1].log.read_text()


def test_the_compiled_graph_adds_up_gradients_over_both_ranks(compiled):
    folder, outcomes, *_ = compiled
    assert outcomes[1].error == outcomes[2].error == ""
    for rank in (0, 1):
        mindir = (folder / f"out_{rank}").read_bytes()
        nodes = set(re.findall(rb"(\w+)-Layer/Grad__MirrorOperator/AllReduce", mindir))
        assert nodes == {b"first", b"second"} and b"group_rank_ids" in mindir


def test_a_forked_rank_compiles_what_a_new_process_compiles(compiled):
    folder = compiled[0]
    request = json.dumps(job(1, "compile", folder / "fresh"))
    (folder / "fresh").mkdir()
    program = ("import json, sys, dry_run_jobs; from parallel.dry_run.cann import target_ascend; target_ascend(); "
               "dry_run_jobs.compile_net(json.loads(sys.argv[1]))")
    variables = {**os.environ, **environment(), "RANK_ID": "1", "RANK_SIZE": "2"}
    variables["PYTHONPATH"] = os.pathsep.join([variables.get("PYTHONPATH", ""), str(ROOT), str(HERE)])
    subprocess.run([sys.executable, "-c", program, request], env=variables, check=True, capture_output=True)
    assert graph(folder / "out_1") == graph(folder / "fresh" / "out_1")
    assert graph(folder / "out_1") != graph(folder / "out_0")


def test_failures_say_what_matters(compiled):
    killed, _, _, refused, bad, ended, _ = compiled[1]
    assert killed.error == "killed by signal 9: out of memory?"
    assert refused.error == "parallel.tp=3 does not divide 16"
    assert ended.error == "ended with exit code 7"
    lines = bad.error.splitlines()
    assert lines[0] == "RuntimeError: Failure:operator MatMul init failed"
    assert re.fullmatch(r"at .*/dry_run_jobs\.py:\d+", lines[1])
    assert "the strategy is ((3, 1), (1, 1))" in lines[2] and len(lines) <= 4
    assert "C++ Call Stack" in bad.log.read_text()


def test_reports_of_mindspore_are_with_the_logs(compiled):
    folder, outcomes, _, elsewhere = compiled
    assert re.fullmatch(r"ValueError: For 'MatMul' .* 17 and 'x2_row': 16\.\nat .*/dry_run_jobs\.py:\d+", outcomes[6].error)
    assert (folder / "logs" / "rank_6" / "om" / "analyze_fail.ir").is_file()
    assert [p.name for p in elsewhere.iterdir()] == ["parallel.py"]


def test_messages_are_cut_at_the_rules_of_dashes():
    rule = "-" * 52
    error = RuntimeError("Shapes differ: [2] and\n\n  [3]\n\n"
                         f"{rule}\n- C++ Call Stack: (For framework developers)\n{rule}\nx.cc:1 F\n\n"
                         f"{rule}\n- The Traceback of Net Construct Code:\n{rule}\n"
                         "# 0 In file /a/b.py:7~9, 4~8\n# 1 In file /a/c.py:5, 1~2\n")
    assert essence(error) == "RuntimeError: Shapes differ: [2] and\n  [3]\nat /a/c.py:5"
    log = "[ERROR] ME(1:2,Main):now [a.py:3] CheckFailed\n" + 2 * "[ERROR] CORE(1,2,python):now [a/b.cc:3] Check] Wrong: [2]\n"
    assert logged_errors(log) == ["Wrong: [2]"]


def test_an_entry_that_cannot_be_imported_is_shown(tmp_path):
    with pytest.raises(RuntimeError, match=r"did not start \(exit code 1\)[\s\S]*No module named 'no_such_module'"):
        compile_ranks("no_such_module:run", [job(0, "compile", tmp_path)], tmp_path)


def test_each_job_has_its_own_rank(tmp_path):
    for jobs in ([job(0, "exit", tmp_path)] * 2, [job(2, "exit", tmp_path)]):
        with pytest.raises(ValueError, match="each job"):
            compile_ranks("dry_run_jobs:many", jobs, tmp_path / "logs")
    assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_outlives_the_caller(tmp_path, number):
    jobs = [job(rank, "sleep", tmp_path) for rank in (0, 1)]
    program = ("import json, sys; from pathlib import Path; from parallel.dry_run.pool import compile_ranks; "
               "compile_ranks('dry_run_jobs:many', json.loads(sys.argv[1]), Path(sys.argv[2]), workers=2, memory_gb=8)")
    path = os.pathsep.join([str(ROOT), str(HERE), os.environ.get("PYTHONPATH", "")])
    caller = subprocess.Popen([sys.executable, "-c", program, json.dumps(jobs), str(tmp_path)], stderr=subprocess.DEVNULL,
                              env={**os.environ, "PYTHONPATH": path})
    written = [Path(j["out"]) for j in jobs]
    assert wait_for(lambda: all(p.exists() and p.read_text().count(" ") for p in written), 60)
    pids = {int(pid) for p in written for pid in p.read_text().split()}
    assert len(pids) == 3 and all(map(alive, pids))  # the server and two children
    caller.send_signal(number)
    caller.wait(10)
    assert wait_for(lambda: not any(map(alive, pids)), 10)


def wait_for(condition, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


SCHEDULE = """
import json, os, sys, time
from pathlib import Path
from parallel.dry_run.server import Scheduler
def grow(job):
    block = b"1" * job["bytes"]
    start, out = time.monotonic(), Path(job["out"])
    Path(f"{out}.began").touch()
    while time.monotonic() < start + job["patience"] and len([*out.parent.glob("*.began")]) < job["count"]:
        time.sleep(0.02)
    Path(job["out"]).write_text(f"{start} {time.monotonic()}")
Scheduler(grow, json.loads(sys.argv[1]), 1).run()
"""


def run_schedule(folder: Path, count: int, budget: int, patience: float = 0.4) -> list[tuple[float, float]]:
    """Jobs of 200 MB each; the times from when each had its memory to its end, in order.

    patience: seconds that each waits for the others to have theirs.
    """
    jobs = [job(rank, "grow", folder, count, bytes=200_000_000, count=count, patience=patience) for rank in range(count)]
    request = {"jobs": jobs, "folder": str(folder), "workers": 3, "budget": budget}
    result = subprocess.run([sys.executable, "-c", SCHEDULE, json.dumps(request)], cwd=ROOT, check=True, capture_output=True)
    outcomes = [json.loads(line) for line in result.stdout.splitlines()]
    assert [o["ok"] for o in outcomes] == [True] * count and all(o["peak_rss_bytes"] > 200e6 for o in outcomes)
    return sorted(tuple(map(float, Path(j["out"]).read_text().split())) for j in jobs)


def test_jobs_that_grow_beyond_the_memory_wait_for_each_other(tmp_path):
    times = run_schedule(tmp_path, count=3, budget=300_000_000)
    assert all(before[1] < after[0] for before, after in zip(times, times[1:], strict=False))


def test_jobs_run_together_where_there_is_memory(tmp_path):
    times = run_schedule(tmp_path, count=3, budget=2_000_000_000, patience=20.0)
    assert times[2][0] < times[0][1]


def test_one_job_runs_even_if_it_is_too_large(tmp_path):
    assert len(run_schedule(tmp_path, count=1, budget=1)) == 1


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """An own cache for stand-ins, which are built only where CANN is not installed."""
    if "LD_LIBRARY_PATH" not in environment():
        pytest.skip("CANN is installed here")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "mindgpt"


def test_missing_tools_are_named_and_nothing_is_written(cache, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"needs g\+\+ and nm .*apt install g\+\+ binutils"):
        environment()
    assert list(tmp_path.iterdir()) == []


def test_another_processor_is_refused(cache, monkeypatch, tmp_path):
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(UserError, match="possible on x86_64 and aarch64, not on riscv64"):
        environment()
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_refused(cache, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/cache")
    with pytest.raises(UserError, match="in /dev/null/cache/mindgpt .*set XDG_CACHE_HOME"):
        environment()


def test_stand_ins_are_built_once_and_never_used_in_parts(cache, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/mine::/opt/more")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    (cache / "cann-stub.building").mkdir(parents=True)  # as left by a builder that was killed
    (cache / "cann-stub.building" / "junk").write_text("")
    program = "from parallel.dry_run.cann import environment; print(environment()['PYTHONPATH'])"
    others = [subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    folders = {Path(other.communicate()[0].strip()).parent for other in others}
    variables = environment()
    assert folders == {Path(variables["PYTHONPATH"]).parent}
    (folder,) = folders
    assert {p.name for p in cache.iterdir()} == {folder.name, "cann-stub.lock"}
    assert variables["MS_SIMULATION_LEVEL"] == "0"
    assert variables["LD_LIBRARY_PATH"].split(":")[::2] == [str(folder / "cann"), "/opt/mine"]
    assert variables["LD_LIBRARY_PATH"].endswith("/plugin/ascend:/opt/mine:/opt/more")

    library = folder / "cann" / "libcann.so"
    built, number = library.read_bytes(), library.stat().st_ino
    with monkeypatch.context() as patch:
        patch.setenv("PATH", "")  # nothing could be built
        assert environment() == variables and library.stat().st_ino == number
        library.write_bytes(built[:1000])
        with pytest.raises(UserError, match="apt install"):
            environment()
    assert environment() == variables and library.read_bytes() == built
    # a process that runs under these variables needs no more of them: MindSpore's plugin loads as it is
    monkeypatch.setenv("LD_LIBRARY_PATH", variables["LD_LIBRARY_PATH"])
    assert environment() == {"MS_SIMULATION_LEVEL": "0"}


@pytest.mark.parametrize("machine, body", [("x86_64", "xorl %eax, %eax"), ("aarch64", "mov x0, #0")])
def test_assembly(machine, body, tmp_path):
    text = stand_ins.assembly(["aclInit", "HcclGetRank", stand_ins.STATUS_FACTORY], machine)
    for name in ("aclInit", "HcclGetRank"):
        assert f"\n.globl {name}\n.type {name}, %function\n{name}:\n" in text
    assert text.count(f"{body}\n ret\n") == 1
    assert stand_ins.STATUS_FACTORY not in text  # it is a real one, in C++
    assembler = "as" if machine == platform.machine() else f"{machine}-linux-gnu-as"
    if shutil.which(assembler):
        (tmp_path / "zero.s").write_text(text)
        subprocess.run([assembler, "-o", "zero.o", "zero.s"], cwd=tmp_path, check=True)
