"""Compile many ranks: one server process imports MindSpore once and forks a child for each rank (see `server`)."""
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from parallel.dry_run import memory
from parallel.dry_run.cann import environment

# A dry run stands alone: what a launcher gives its workers would make init() look for the other ranks, or hold the wrong rank.
LAUNCHER = ("MS_ROLE", "MS_WORKER_NUM", "MS_SCHED_HOST", "MS_SCHED_PORT", "MS_NODE_ID", "RANK_TABLE_FILE", "RANK_ID", "RANK_SIZE",
            "DEVICE_ID")


@dataclass(frozen=True)
class Outcome:
    """How the compilation of one rank ended."""

    rank: int
    ok: bool
    seconds: float         # wall time, from the fork to the end
    peak_rss_bytes: int    # the child's, pages shared with the server included
    error: str             # "" if ok, else the few lines that matter
    log: Path              # all that the child printed


def compile_ranks(entry: str, jobs: Sequence[dict], folder: Path, workers: int | None = None, memory_gb: float | None = None,
                  on_done: Callable[[Outcome], None] | None = None) -> list[Outcome]:
    """Call a function once for each job, each call as another rank of a job of its own that has no device.

    The function finds RANK_ID and RANK_SIZE set, the device target at Ascend, and `folder` as its current folder, where also
    MindSpore's reports of failures land; it calls `mindspore.communication.init()`, builds, compiles, and writes what it wants
    to keep. It may be called a second time for a job, so it overwrites.

    Args:
        entry: "package.module:function"; the module is imported once, under this process's sys.path, before any rank is known.
        jobs: what the function is given: JSON-able, with at least `rank` (each once) and `world_size`.
        folder: gets `rank_<rank>.log` and `server.log`; made if it is not there.
        workers: ranks at a time; default: one for each core of this process.
        memory_gb: GB (10^9 bytes) that all of them may use; default: 80 % of what is available. A rank is started when there is
            room for one like the largest so far; when they grow beyond, the youngest is ended and waits. One always runs.
        on_done: is told each outcome as it comes.

    Returns the outcomes in the order of the jobs; one that failed or died does not stop the others. No process outlives the
    call, however it ends.
    Raises UserError where the machine cannot do dry runs (see `cann.environment`), RuntimeError when the server does not start.
    """
    if len({job["rank"] for job in jobs}) < len(jobs) or any(not 0 <= job["rank"] < job["world_size"] for job in jobs):
        raise ValueError("each job has another rank, from 0 to its world_size - 1")
    folder = folder.absolute()
    request = {"entry": entry, "jobs": list(jobs), "folder": str(folder), "workers": workers or len(os.sched_getaffinity(0)),
               "budget": int(memory_gb * 1e9) if memory_gb else int(0.8 * memory.available())}
    outcomes = {}
    with _server(request, folder) as replies:
        for reply in replies:
            outcome = Outcome(**{**reply, "log": Path(reply["log"])})
            outcomes[outcome.rank] = outcome
            if on_done:
                on_done(outcome)
    return [outcomes[job["rank"]] for job in jobs]


@contextlib.contextmanager
def _server(request: dict, folder: Path) -> Iterator[Iterator[dict]]:
    """Start the server; gives its replies, one for each job; ends it and its children."""
    inherited = {name: value for name, value in os.environ.items() if name not in LAUNCHER}
    # large pages: the compiler walks graphs of millions of small objects, and 12 % of its time went into looking up pages
    variables = {"GLOG_v": "3", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", **inherited, **environment()}
    # the entry may lie anywhere that this process can import from; -P below keeps the current folder out otherwise
    variables["PYTHONPATH"] = os.pathsep.join(
        [variables.get("PYTHONPATH", ""), *(path or os.getcwd() for path in sys.path)]).lstrip(os.pathsep)
    folder.mkdir(parents=True, exist_ok=True)
    read, write = os.pipe()
    with open(folder / "server.log", "wb") as log, open(read, encoding="utf-8") as replies:
        command = [sys.executable, "-P", "-m", "parallel.dry_run.server", str(os.getpid()), str(write)]
        # a session of its own: Ctrl-C reaches this process only, which then ends all
        process = subprocess.Popen(command, env=variables, stdin=subprocess.PIPE, stdout=log, stderr=log, pass_fds=[write],
                                   start_new_session=True, text=True)
        try:
            os.close(write)
            with contextlib.suppress(BrokenPipeError), process.stdin:  # a server that has died is reported below
                process.stdin.write(json.dumps(request))
            yield _replies(process, replies, len(request["jobs"]), folder / "server.log")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _replies(process: subprocess.Popen, replies: Iterator[str], count: int, log: Path) -> Iterator[dict]:
    ready, done = next(replies, None), 0
    while ready and done < count and (line := next(replies, None)):
        yield json.loads(line)
        done += 1
    if ready and done == count:
        return
    code = process.wait()
    how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines()
             if line and "_check_version.py" not in line]  # MindSpore misses CANN's Python packages, each time
    when = "ended before all ranks were compiled" if ready else "did not start"
    raise RuntimeError("\n".join([f"the dry run's server {when} ({how}); the end of {log}:", *lines[-8:]]))
