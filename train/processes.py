"""The processes of one job: found by a mark in their environment, ended together, guarded against the launcher's death.

The mark reaches every descendant, whatever its session or parent: scheduler, workers, and what they started.
Linux only: /proc, prctl. `python processes.py MARK` is the guard: it reads its standard input, a pipe that the launcher
holds; when that closes, because the launcher died in whatever way, it ends the job's processes.
"""
import contextlib
import ctypes
import os
import signal
import sys
import time

MARK = "MINDGPT_JOB"


def adopt_orphans() -> None:
    """Descendants whose parent ended become children of this process, which can then wait for them.

    prctl(PR_SET_CHILD_SUBREAPER), see prctl(2).
    """
    if ctypes.CDLL(None, use_errno=True).prctl(36, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def environment(pid: int) -> dict[str, str]:
    """The environment that a process started with; empty when it is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            pairs = file.read().split(b"\0")
    except OSError:
        return {}
    return dict(os.fsdecode(pair).split("=", 1) for pair in pairs if b"=" in pair)


def find(mark: str) -> list[int]:
    """Living processes that carry the mark, this one left out."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in sorted(pids) if pid != os.getpid() and environment(pid).get(MARK) == mark]


def send(pids: list[int], number: int) -> None:
    """Send a signal to each process that is still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def kill_all(mark: str, seconds: float = 10.0) -> list[int]:
    """SIGKILL until no process carries the mark; returns those that are still there after `seconds`."""
    end = time.monotonic() + seconds
    while (left := find(mark)) and time.monotonic() < end:
        send(left, signal.SIGKILL)
        time.sleep(0.05)
    return left


def children_of(pid: int) -> list[tuple[int, int]]:
    """(pid, session) of the direct children, zombies too, in the order in which they started. See proc_pid_stat(5)."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b") ")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:  # field 4 ppid, 6 session, 22 starttime; fields[0] is field 3
            found.append((int(fields[19]), int(name), int(fields[3])))
    return [(child, session) for _, child, session in sorted(found)]


def _guard(mark: str, grace: float) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    workers = [pid for pid in find(mark) if environment(pid).get("MS_ROLE") == "MS_WORKER"]
    send(workers, signal.SIGTERM)
    end = time.monotonic() + grace
    while set(workers) & set(find(mark)) and time.monotonic() < end:
        time.sleep(0.2)
    kill_all(mark)


if __name__ == "__main__":
    _guard(sys.argv[1], float(sys.argv[2]))
