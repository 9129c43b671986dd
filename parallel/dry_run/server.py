"""The process that imports MindSpore and the entry once, then forks a child for each rank: run by `pool`, not by hand.

    python -m parallel.dry_run.server PARENT_PID REPLY_FD < request.json

Writes to REPLY_FD "ready", then one JSON object for each job as it ends. Forking after the import is safe: MindSpore has not
started a thread yet (the others are OpenBLAS's, which knows about forks), and it reads which rank it is in `init()`.
"""
import ctypes
import gc
import importlib
import json
import os
import re
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from parallel.dry_run import memory
from parallel.dry_run.cann import target_ascend
from parallel.errors import UserError

PR_SET_PDEATHSIG = 1  # prctl(2)
ERROR_LINES, ERROR_LENGTH, LOGGED_ERRORS = 6, 1200, 2


def main() -> None:
    parent, replies = int(sys.argv[1]), int(sys.argv[2])
    _die_with(parent)
    request = json.load(sys.stdin)
    module, _, function = request["entry"].partition(":")
    entry = getattr(importlib.import_module(module), function)
    target_ascend()
    gc.freeze()  # the collector would write to every object, and so copy pages that children share
    _reply(replies, "ready")
    Scheduler(entry, request, replies).run()


def _die_with(parent: int) -> None:
    """SIGKILL for this process when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the call above
        os._exit(1)


def _reply(descriptor: int, value: object) -> None:
    os.write(descriptor, json.dumps(value).encode() + b"\n")


@dataclass
class _Child:
    job: dict
    pid: int
    errors: int  # descriptor from which its error is read
    log: Path
    start: float
    now: int = 0
    peak: int = 0


class Scheduler:
    """Keeps as many children running as workers and memory allow."""

    def __init__(self, entry: Callable[[dict], None], request: dict, replies: int):
        self._entry, self._replies = entry, replies
        self._folder, self._workers, self._budget = Path(request["folder"]), request["workers"], request["budget"]
        self._waiting = deque(request["jobs"])
        self._running: list[_Child] = []
        self._largest = 0  # bytes, the largest peak of any child so far

    def run(self) -> None:
        while self._waiting or self._running:
            while self._waiting and self._has_room():
                self._running.append(_start(self._entry, self._waiting.popleft(), self._folder))
            time.sleep(0.05)
            self._reap()
            self._measure()

    def _has_room(self) -> bool:
        """Whether one more may start: each running one may still grow to the largest so far."""
        if not self._running:
            return True
        return len(self._running) < self._workers and (len(self._running) + 1) * self._largest <= self._budget

    def _reap(self) -> None:
        for child in list(self._running):
            pid, status, usage = os.wait4(child.pid, os.WNOHANG)
            if pid:
                self._running.remove(child)
                child.peak = max(child.peak, usage.ru_maxrss * 1024)
                self._largest = max(self._largest, child.peak)
                _reply(self._replies, _outcome(child, status))

    def _measure(self) -> None:
        for child in self._running:
            child.now, child.peak = memory.resident(child.pid)
            self._largest = max(self._largest, child.peak)
        # none was known to be so large when they were started: the youngest gives way, and starts again when there is room
        if len(self._running) > 1 and sum(child.now for child in self._running) > self._budget:
            child = self._running.pop()
            os.kill(child.pid, signal.SIGKILL)
            os.waitpid(child.pid, 0)
            os.close(child.errors)
            self._waiting.appendleft(child.job)


def _start(entry: Callable[[dict], None], job: dict, folder: Path) -> _Child:
    log = folder / f"rank_{job['rank']}.log"
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    read, write = os.pipe()
    server = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        try:
            _die_with(server)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.chdir(folder)  # where MindSpore leaves its own reports of a failure
            _call(entry, job, write)
        finally:
            os._exit(1)  # whatever happens: never back into the server's code
    os.close(write)
    os.close(output)
    return _Child(job, pid, read, log, time.monotonic())


def _call(entry: Callable[[dict], None], job: dict, errors: int) -> None:
    """In the child: run the entry, tell its error, end without MindSpore's teardown."""
    os.environ["RANK_ID"], os.environ["RANK_SIZE"] = str(job["rank"]), str(job["world_size"])
    code = 1
    try:
        entry(job)
        code = 0
    except BaseException as error:  # the process ends here, whatever it was
        traceback.print_exc()
        os.write(errors, essence(error).encode())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def essence(error: BaseException) -> str:
    """The lines of an error that say what is wrong, and the place in the network if MindSpore tells it.

    MindSpore's messages go on under rules of dashes with the C++ stack and the whole way through the network's code.
    """
    text = str(error)
    message = re.split(r"^\s*-{20,}\s*$", text, maxsplit=1, flags=re.MULTILINE)[0]
    lines = [line.rstrip() for line in message.splitlines() if line.strip()][:ERROR_LINES]
    places = re.findall(r"^# (?:\d+ )?In file (.+?:\d+)", text, flags=re.MULTILINE)
    kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
    return (kind + "\n".join(lines))[:ERROR_LENGTH] + (f"\nat {places[-1]}" if places else "")


def logged_errors(log: str) -> list[str]:
    """What MindSpore's compiler logged as errors, each once: often the cause, where the exception says only "init failed"."""
    # [ERROR] PARALLEL(pid,thread,python):time [file.cc:line] Function] text; those of its Python part (ME) are about CANN
    found = re.findall(r"^\[ERROR\] (?!ME\()[^\[]*\[[^\]]*\] \w+\] (.+)$", log, flags=re.MULTILINE)
    return [line[:ERROR_LENGTH] for line in dict.fromkeys(found)][:LOGGED_ERRORS]


def _outcome(child: _Child, status: int) -> dict:
    with open(child.errors, encoding="utf-8", errors="replace") as file:
        error = file.read()
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        error = f"killed by signal {-code}: " + ("out of memory?" if code == -signal.SIGKILL else signal.strsignal(-code))
    elif code and not error:
        error = f"ended with exit code {code}"
    if code:
        said = error.splitlines()[0].partition(": ")[2] or error
        logged = logged_errors(child.log.read_text(encoding="utf-8", errors="replace"))
        error = "\n".join([error, *(line for line in logged if said not in line)])
    return {"rank": child.job["rank"], "ok": code == 0, "seconds": time.monotonic() - child.start, "peak_rss_bytes": child.peak,
            "error": error, "log": str(child.log)}


if __name__ == "__main__":
    main()
