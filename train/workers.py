"""Start the workers of one node through MindSpore's msrun, watch them, and leave no process behind.

msrun only starts them (`--join=False`): it then ends, and its children become ours (see train.processes), so that we
see each exit code ourselves. Its own watching misses a worker that exits 0 early, and hides which rank failed first.
"""
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from train import processes
from train.console import folded
from train.rank_log import set_aside

ROLLED_BACK = 5  # a health rule ended the run; it is to be started again, and goes on from a checkpoint before
AGREED = (0, 3, 4, ROLLED_BACK)  # codes that all ranks reach together: done, stopped by a health rule, interrupted and saved
POLL = 0.1  # seconds
NOISE = re.compile(rb"(?m)^\[INFO\] DISTRIBUTED\(.*\n?")  # MindSpore writes it at every end, whatever GLOG_v says


@dataclass(frozen=True)
class Topology:
    """The workers of this node (`local`), the nodes, and where the scheduler listens."""

    local: int
    port: int
    address: str = "127.0.0.1"
    nodes: int = 1
    node_rank: int = 0

    @property
    def ranks(self) -> range:
        return range(self.node_rank * self.local, (self.node_rank + 1) * self.local)


@dataclass
class Limits:
    """Seconds. `start`: until msrun has started the workers. `finish`: for the other ranks, once one has ended in
    agreement (exit code 0, 3, 4 or 5). `grace`: to save, after SIGINT or SIGTERM."""

    start: float = 300.0
    finish: float = 20.0
    grace: float = 30.0


@dataclass
class _Job:
    topology: Topology
    logs: Path
    pids: dict[int, int]  # rank -> pid
    scheduler: int | None
    codes: dict[int, int] = field(default_factory=dict)  # rank -> exit code, in the order in which they ended
    scheduler_code: int | None = None

    @property
    def running(self) -> list[int]:
        return [rank for rank in self.pids if rank not in self.codes]

    def log(self, rank: int) -> Path:
        return self.logs / f"rank_{rank}.log"

    def reap(self) -> None:
        ended = {rank: code for rank in self.running if (code := _exit_code(self.pids[rank])) is not None}
        for rank in sorted(ended, key=lambda rank: _modified(self.log(rank))):  # the cause wrote its last line first
            self.codes[rank] = ended[rank]
        if self.scheduler and self.scheduler_code is None:
            self.scheduler_code = _exit_code(self.scheduler)

    def failed(self) -> int | None:
        return next((rank for rank, code in self.codes.items() if code not in AGREED), None)


class _Signals:
    """SIGINT, SIGTERM and SIGHUP (unless ignored, as under nohup) are counted here, not acted upon; SIGUSR1 asks to save.

    Until `listen`, SIGUSR1 is ignored, and so it is by every process that is started meanwhile: until a worker trains there is
    nothing to save, and MindSpore's scheduler would die of it.
    """

    def __init__(self):
        self.received: list[int] = []
        self.save = False

    def listen(self) -> None:
        """Note SIGUSR1 from now on."""
        signal.signal(signal.SIGUSR1, self._note_save)

    def _note_save(self, *_) -> None:
        self.save = True

    @contextlib.contextmanager
    def caught(self) -> Iterator["_Signals"]:
        numbers = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
        old = {number: signal.signal(number, lambda n, _: self.received.append(n)) for number in numbers}
        old[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        try:
            yield self
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)


class _Tail:
    """Copies what a worker writes to our standard output; to a terminal in lines that fit it, of which a worker knows nothing."""

    def __init__(self, path: Path):
        self.path, self.file, self.over = path, None, False

    def copy(self) -> None:
        if self.over:  # the worker has taken a new file since the last look, and what it wrote into the old one meanwhile is read
            self._write()
            self.file.close()
            self.file = None
        if self.file is None and self.path.exists():
            self.file = self.path.open("rb")
        with contextlib.suppress(FileNotFoundError):
            self.over = self.file is not None and os.fstat(self.file.fileno()).st_ino != self.path.stat().st_ino
        self._write()

    def _write(self) -> None:
        if self.file and (data := self.file.read()):
            data = NOISE.sub(b"", data)
            if sys.stdout.isatty():
                lines = data.decode(errors="surrogateescape").split("\n")
                data = "\n".join(map(folded, lines)).encode(errors="surrogateescape")
            try:
                sys.stdout.buffer.write(data)
                sys.stdout.flush()
            except BrokenPipeError:  # nobody reads any more; the log has it
                self.copy = lambda: None


def run_workers(command: list[str], topology: Topology, logs: Path, limits: Limits | None = None) -> int:
    """Run `python *command` as every worker of this node and as msrun's scheduler, until all have ended.

    Returns 0 when all ranks ended with 0; 2, 3, 4 or 5 when the first that failed, or all, ended so; 128 + number after a
    signal (4 when all workers saved); else 1. No process of the job is left, in every case. Logs: `logs`/rank_<n>.log,
    scheduler.log, msrun.log; those of earlier starts keep their content under rank_<n>.<k>.log (see train/rank_log.py).
    Standard output gets what the first rank of this node writes.
    """
    limits, mark = limits or Limits(), uuid.uuid4().hex
    processes.adopt_orphans()
    logs.mkdir(parents=True, exist_ok=True)
    own = ["scheduler"] if topology.node_rank == 0 else []
    for name in (*own, _msrun_log(topology), *(f"rank_{rank}" for rank in topology.ranks)):
        set_aside(logs / f"{name}.log")
    with _Signals().caught() as signals:
        guard = subprocess.Popen([sys.executable, processes.__file__, mark, str(limits.grace)], stdin=subprocess.PIPE,
                                 start_new_session=True)
        try:
            job = _start(command, topology, logs, mark, signals, limits)
            return _watch(job, signals, limits) if job else 128 + signals.received[0]
        except _StartError as e:
            _say(str(e))
            return 1
        finally:
            if left := processes.kill_all(mark):
                _say(f"could not end the processes {left}")
            guard.kill()
            guard.wait()


class _StartError(Exception):
    pass


def _start(command, topology, logs, mark, signals, limits) -> _Job | None:
    """None: two signals came before the workers had started."""
    log = logs / f"{_msrun_log(topology)}.log"
    before = {pid for pid, _ in processes.children_of(os.getpid())}
    with log.open("wb") as file:
        msrun = subprocess.Popen(
            [sys.executable, "-m", "mindspore.parallel.cluster.run", f"--worker_num={topology.local * topology.nodes}",
             f"--local_worker_num={topology.local}", f"--master_addr={topology.address}",
             f"--master_port={topology.port}", f"--node_rank={topology.node_rank}", f"--log_dir={logs}",
             "--worker_log_name=rank", "--join=False", _python_name(), *command],
            stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
            env=environment(topology.local) | {processes.MARK: mark})
    end = time.monotonic() + limits.start
    while msrun.poll() is None:
        if len(signals.received) > 1:  # a first one waits for the workers, so that they can save
            return None
        if time.monotonic() > end:
            raise _StartError(f"msrun did not start the workers within {limits.start:.0f} s; its output is in {log}")
        time.sleep(POLL)
    ours = [child for child in processes.children_of(os.getpid()) if child[0] not in before]
    workers = [pid for pid, session in ours if session == pid]  # msrun gives each worker its own session, in order
    scheduler = next((pid for pid, session in ours if session == msrun.pid), None)
    if msrun.returncode or len(workers) != topology.local:
        raise _StartError(f"msrun failed (exit code {msrun.returncode}). {_last_lines(log)}")
    return _Job(topology, logs, dict(zip(topology.ranks, workers, strict=True)), scheduler)


def _watch(job: _Job, signals: _Signals, limits: Limits) -> int:
    tail = _Tail(job.log(job.topology.ranks[0]))
    signals.listen()
    end = None
    told = False
    while True:
        job.reap()
        tail.copy()
        now = time.monotonic()
        if signals.save:
            signals.save = False
            processes.send([job.pids[rank] for rank in job.running[:1]], signal.SIGUSR1)  # one is enough: ranks agree
        if signals.received and not told:
            told, end = True, now + limits.grace
            _say(f"{signal.Signals(signals.received[0]).name}: asking the workers to end, for at most {limits.grace:.0f} s; "
                 "a second signal ends them at once")
            processes.send([job.pids[rank] for rank in job.running], signal.SIGTERM)
        elif end is None and job.codes:
            end = now + limits.finish
        elif end is None and job.scheduler_code:
            end = now + 3.0  # a worker that fails next is the better report
        failed = not told and job.failed() is not None
        if not job.running or failed or len(signals.received) > 1 or (end and now > end):
            break
        time.sleep(POLL)
    if job.topology.nodes > 1 and not (failed or told or job.running):
        _wait_for_scheduler(job, limits.finish)
    tail.copy()
    return _verdict(job, signals)


def _wait_for_scheduler(job: _Job, seconds: float) -> None:
    """The workers of other nodes still need it to sign off."""
    end = time.monotonic() + seconds
    while job.scheduler and job.scheduler_code is None and time.monotonic() < end:
        time.sleep(POLL)
        job.reap()


def _verdict(job: _Job, signals: _Signals) -> int:
    if signals.received and (job.running or set(job.codes.values()) != {0}):  # else it came too late
        saved = not job.running and set(job.codes.values()) == {4}
        _say("interrupted; " + ("all workers have saved" if saved else f"exit codes of the ranks: {job.codes}"))
        return 4 if saved else 128 + signals.received[0]
    if (rank := job.failed()) is not None:
        if job.codes[rank] == 2 and rank == job.topology.ranks[0]:
            return 2  # its one line has been shown already
        _say(f"rank {rank} failed first ({_reason(job.codes[rank])}); all workers of this node are stopped. "
             f"{_last_lines(job.log(rank))}")
        return job.codes[rank] if job.codes[rank] == 2 else 1
    if job.running and not job.codes:
        _say(f"the scheduler failed ({_reason(job.scheduler_code)}). {_last_lines(job.logs / 'scheduler.log')}")
        return job.scheduler_code if job.scheduler_code == 2 else 1
    rank, code = next(((r, c) for r, c in job.codes.items() if c), next(iter(job.codes.items())))
    if job.running:
        _say(f"rank {rank} ended ({_reason(code)}) while rank {', '.join(map(str, job.running))} went on; all workers "
             f"of this node are stopped. {_last_lines(job.log(rank))}")
        return code or 1
    return code


def environment(workers: int) -> dict[str, str]:
    """Ours, plus: this Python first in PATH, a CPU worker's share of the cores, quiet logs. The user's values win."""
    share = str(max(1, len(os.sched_getaffinity(0)) // workers))
    quiet = "ignore::DeprecationWarning,ignore::SyntaxWarning,ignore::FutureWarning"
    defaults = {"GLOG_v": "3", "PYTHONWARNINGS": quiet,
                "OMP_NUM_THREADS": share, "OPENBLAS_NUM_THREADS": share, "MKL_NUM_THREADS": share}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return {**defaults, **os.environ, "PATH": path, "PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1",
            "MINDGPT_LOCAL_WORKERS": str(workers)}


def _python_name() -> str:
    """msrun takes its Python from PATH, by one of these names."""
    here = Path(sys.executable)
    for name in ("python", "python3"):
        if here.with_name(name).exists() and here.with_name(name).samefile(here):
            return name
    raise _StartError(f"there is no `python` beside {here}: msrun cannot start workers with this interpreter")


def _msrun_log(topology: Topology) -> str:
    return "msrun" if topology.nodes == 1 else f"msrun_node_{topology.node_rank}"


def _exit_code(pid: int) -> int | None:
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def _modified(path: Path) -> float:
    return path.stat().st_mtime if path.exists() else 0.0


def _reason(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    hint = "; often the system when memory runs out" if code == -signal.SIGKILL else ""
    return f"killed by {signal.Signals(-code).name}{hint}"


def _last_lines(log: Path, count: int = 30) -> str:
    with contextlib.suppress(OSError):
        lines = NOISE.sub(b"", log.read_bytes()[-65536:]).decode(errors="replace").splitlines()[-count:]
        if lines:
            return f"Last lines of {log}:\n" + "\n".join(f"  | {line}" for line in lines)
    return f"{log} is empty."


def _say(text: str) -> None:
    print(f"train.launch: {text}", file=sys.stderr, flush=True)
