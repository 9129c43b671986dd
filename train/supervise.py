"""python -m train.supervise --config C: keep a run alive; with several nodes the same command on each (see train/nodes.py).

Starts `train.launch`, looks at the ranks' signs of life (train/heartbeat.py), and starts again from the newest good checkpoint
when a rank fails, is lost, or hangs: after growing pauses, so often within so many hours, and not when the same step fails in the
same way once more. What happened is in runs/<name>/supervise.json; `--status` prints it.

Exit codes: those of the training (0 done, 2 wrong input, 3 stopped by a health rule, 4 interrupted and saved); 1: given up.
"""
import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from parallel import config_file
from parallel.errors import UserError
from parallel.files import replace_text
from train.checks import plan
from train.config import RunConfig, SuperviseConfig, load_config
from train.launch import read_topology
from train.nodes import NUMBER, Nodes
from train.signs import RankWatch, read, slow_ranks
from train.workers import AGREED, ROLLED_BACK, Topology

STATE = "supervise.json"
FINAL = (0, 2, 3, 4)  # exit codes after which nothing is started again
POLL = 0.5  # seconds
GRACE = 60.0  # seconds for the launcher to end its workers
FAILED = re.compile(r"rank (\d+) (?:failed first|ended) \((.+?)\)")
FROM_OUTSIDE = ("SIGKILL", "SIGTERM", "is lost", "was started anew")  # such an end says nothing of the step at which it came


@dataclass
class Start:
    """One start of the job: when (seconds since 1970), and how it ended."""

    began: float
    clock: float = 0.0  # of this machine, which does not jump
    ended: float | None = None
    code: int | None = None
    rank: int | None = None
    step: int | None = None
    reason: str = ""
    last_lines: list[str] = field(default_factory=list)

    def same_as(self, other: "Start") -> bool:
        """Whether both failed at the same step in the same way."""
        key = (self.rank, self.step, self.reason)
        return key == (other.rank, other.step, other.reason) and not any(name in self.reason for name in FROM_OUTSIDE)


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m train.supervise", description="Keep a run alive.")
    config_file.add_arguments(parser)
    parser.add_argument("--workers", type=int, metavar="N", help="processes on this node (default: all cards; CPU: 2)")
    parser.add_argument("--status", action="store_true", help="show what has happened, and what the ranks are doing")
    options = parser.parse_args(arguments)
    try:
        config = load_config(options.config, options.overrides)
        if options.status:
            print(status(config.run.folder, config.supervise))
            return 0
        topology = read_topology(os.environ, options.workers)
        plan(config, topology.local * topology.nodes, 0)
        return Supervisor(config, lambda restart: launcher(options, restart), topology).run()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {config.run.folder} cannot be used: {error}", file=sys.stderr)
        return 1


def launcher(options: argparse.Namespace, restart: bool) -> list[str]:
    """The command that starts the job; a restart goes on from this run's newest checkpoint, whatever the first start did."""
    overrides = [o for o in options.overrides if not (restart and o.partition("=")[0].strip() == "ckpt.resume")]
    overrides += ["ckpt.resume=auto"] * restart
    return [sys.executable, "-m", "train.launch", "--config", options.config, *(["--set", *overrides] if overrides else []),
            *(["--workers", str(options.workers)] if options.workers is not None else [])]


class Supervisor:
    """Starts a command again and again, until it is done or there is no use in it; with other nodes, when node 0 says so.

    Args:
        command: gives the launcher's, of the first start or of a restart; it writes to this process's output.
        topology: the nodes, and the ranks of this one; None: one node, which has all ranks.
    """

    def __init__(self, config: RunConfig, command: Callable[[bool], list[str]], topology: Topology | None = None):
        self.folder, self.settings, self.command = config.run.folder, config.supervise, command
        self.watch = RankWatch(self.folder, self.settings, topology.ranks if topology else None)
        self.nodes = Nodes(self.folder, *((topology.node_rank, topology.nodes) if topology else (0, 1)),
                           config.supervise.lease_seconds)
        self.starts: list[Start] = []
        self.signals: list[int] = []
        self.save = False  # somebody asked for a checkpoint, by SIGUSR1
        self.written: tuple[str, float] = "", 0.0

    def run(self) -> int:
        """Until the end. Returns the exit code."""
        caught = (signal.SIGINT, signal.SIGTERM)
        old = {number: signal.signal(number, lambda n, _: self.signals.append(n)) for number in caught}
        old[signal.SIGUSR1] = signal.signal(signal.SIGUSR1, self._note_save)
        try:
            with self.nodes:
                return self.decide() if self.nodes.node == 0 else self.follow()
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)

    def _note_save(self, *_) -> None:
        self.save = True

    def decide(self) -> int:
        """Node 0: start until it is done, or there is no use in it."""
        while True:
            if why := self.wait_for(lambda: not self.nodes.missing(), lambda: f"node {self.nodes.missing()[0]}"):
                return self.finish("ended" if self.signals else "given up", 1, why)
            start = self.once(self.nodes.begin(restart=bool(self.starts)))
            self.gather(start)
            self.write("running")
            if start.code in FINAL or self.signals:
                return self.finish("done" if start.code == 0 else "ended", start.code if start.code in FINAL else 1)
            if start.code == ROLLED_BACK:  # no failure; health.max_passed_over sets an end to it
                _say(f"a health rule rolled the run back at step {start.step}: starting again")
                continue
            _say(f"{start.reason}, at step {start.step}")
            if why := self.hopeless():
                return self.finish("given up", 1, "\n".join([f"{why}. Its last lines:", *start.last_lines[-20:]]))
            if not self.pause():
                return self.finish("ended", 1)

    def finish(self, state: str, code: int, why: str = "") -> int:
        """The run is over on all nodes. Returns the exit code."""
        self.write(state)
        if why:
            _say(f"{state}: {why}")
        self.nodes.finish(code, why)
        return 128 + self.signals[0] if self.signals and code not in FINAL else code

    def follow(self) -> int:
        """Other nodes: start when node 0 does, until it says that the run is over."""
        began = self.nodes.current()
        while True:
            if why := self.wait_for(lambda: self.nodes.over(began) or self.nodes.follow(), lambda: "node 0"):
                _say(why)
                return 128 + self.signals[0] if self.signals else 1
            if self.nodes.over(began):
                return self.nodes.current()["code"]
            start = self.once(self.nodes.mine["incarnation"])
            self.nodes.ended({"code": start.code, "reason": start.reason, "rank": start.rank, "step": start.step})
            if self.signals:
                return start.code if start.code in FINAL else 128 + self.signals[0]

    def wait_for(self, met: Callable[[], bool], whom: Callable[[], str]) -> str:
        """Wait until a condition is met. Returns why it was not, "" if it was."""
        end, told = time.monotonic() + 60 * self.settings.node_minutes, False
        while not met():
            if self.signals:
                return "a signal came"
            if time.monotonic() > end:
                return f"{whom()} has not come within {self.settings.node_minutes:g} minutes"
            if not told and time.monotonic() > end - 60 * self.settings.node_minutes + 2 * POLL:
                told = True
                _say(f"waiting for {whom()}")
            time.sleep(POLL)
        return ""

    def once(self, number: int) -> Start:
        """Start the job's part on this node, and watch it until it has ended."""
        self.watch.begin()
        start = Start(time.time(), time.monotonic())
        self.starts.append(start)
        lines: deque[str] = deque(maxlen=60)
        command = self.command(self.nodes.restart)
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
                                   env=os.environ | {NUMBER: str(number)})
        reader = threading.Thread(target=_copy, args=(process.stderr, lines), daemon=True)
        reader.start()
        told, end = 0, ""
        while process.poll() is None:
            if len(self.signals) > told:
                told = len(self.signals)
                process.send_signal(self.signals[-1])
            if self.save and any(sign["phase"] != "start" for sign in self.watch.signs()):  # before, there is nothing to save
                self.save = False
                process.send_signal(signal.SIGUSR1)
            if end := self.watch.hung() or self.nodes.why_end():
                break
            for rank in self.watch.newly_slow() if self.nodes.node == 0 else ():
                _say(f"rank {rank} is slow: the others wait for its host (data, checkpoints, another load on its machine?)")
            self.write("running")
            time.sleep(POLL)
        if end:
            if self.nodes.node == 0:
                self.nodes.stop(end)
            _end(process)
        reader.join(timeout=5)
        start.ended, start.code, start.last_lines = time.time(), 1 if end else process.returncode, list(lines)
        self.explain(start, end)
        return start

    def gather(self, start: Start) -> None:
        """Node 0: wait for the other nodes' ends, and add them to this one's: the first failure counts."""
        others = [*self.nodes.sessions]
        first = self.failed(others)
        if start.code not in AGREED:
            self.nodes.stop(start.reason)
        deadline = time.monotonic() + 2 * GRACE
        while (left := [n for n in others if not self.nodes.end_of(n) and not self.nodes.lost(n)]) and not self.signals:
            if time.monotonic() > deadline:
                start.code, start.reason = 1, f"node {left[0]} does not end"
                self.nodes.stop(start.reason)
                return
            time.sleep(POLL)
        first = first or (self.failed(others) if start.code in AGREED else None)
        if first:  # it was there before ours, or nothing failed here
            node, end = first
            start.code, start.rank = end["code"], end["rank"]
            start.reason = f"node {node}: {end['reason']}"

    def failed(self, nodes: list[int]) -> tuple[int, dict] | None:
        """The first of some nodes whose part has failed, and how."""
        return next(((n, end) for n in nodes if (end := self.nodes.end_of(n)) and end["code"] not in AGREED), None)

    def explain(self, start: Start, end: str) -> None:
        """Which rank failed first, where, and with what; end: why it was ended from here, if it was."""
        start.step = max((s["step"] for s in self.watch.signs()), default=None)
        if end:
            start.reason = end.partition(" (phase")[0]
            start.rank = int(found[1]) if (found := re.match(r"(?:node \d+: )?rank (\d+)", end)) else None
            return
        text = "\n".join(start.last_lines)
        start.reason = f"exit code {start.code}"
        if found := FAILED.search(text):
            start.rank, start.reason = int(found[1]), f"rank {found[1]} failed ({found[2]})"
        errors = [line for line in re.findall(r"^  \| (\w*(?:Error|Exception|Interrupt)\b.*)$", text, re.M)]
        start.reason += f": {errors[-1][:300]}" if errors else ""

    def hopeless(self) -> str:
        """Why it makes no sense to start again; "" if it does."""
        if len(self.starts) > 1 and self.starts[-1].same_as(self.starts[-2]):
            return "the same step failed twice in the same way"
        recent = [s for s in self.starts if time.monotonic() - s.clock < 3600 * self.settings.within_hours and
                  s.code != ROLLED_BACK]
        if len(recent) > self.settings.max_restarts:
            return f"{len(recent)} starts within {self.settings.within_hours:g} hours"
        return ""

    def pause(self) -> bool:
        """Wait before the next start, longer each time; False if a signal came."""
        seconds = min(self.settings.pause_seconds * 2 ** (len(self.starts) - 1), 600.0)
        _say(f"starting again in {seconds:.0f} s ({len(self.starts)} of {self.settings.max_restarts})")
        self.write("waiting")
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.signals:
            time.sleep(min(POLL, seconds))
        return not self.signals

    def write(self, state: str) -> None:
        """supervise.json, by node 0: when there is something new, and now and then."""
        starts = [asdict(s) for s in self.starts]
        told, now = f"{state} {starts}", time.monotonic()
        if self.nodes.node or told == self.written[0] and now - self.written[1] < 10.0:
            return
        self.written = told, now
        content = {"state": state, "pid": os.getpid(), "time": time.time(), "starts": starts}
        with contextlib.suppress(OSError):  # a full disk must not end what keeps the run alive
            replace_text(self.folder / STATE, json.dumps(content, indent=1) + "\n")


def _copy(stream, lines: deque) -> None:
    for line in stream:
        lines.append(line.rstrip("\n"))
        print(line, end="", file=sys.stderr, flush=True)


def _end(process: subprocess.Popen) -> None:
    """End the launcher and with it its workers, of which one does not answer: a second signal does not wait for it."""
    for _ in range(2):
        process.send_signal(signal.SIGTERM)
        time.sleep(1.0)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE)
        return
    process.kill()


def status(folder: Path, settings: SuperviseConfig) -> str:
    """What has happened to a run, and what its ranks are doing. Raises UserError if it was never supervised."""
    try:
        found = json.loads((folder / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise UserError(f"{folder} has no {STATE}: this run was not started by python -m train.supervise") from None
    lines = [f"{folder.name}: {found['state']}, {len(found['starts'])} start(s), at most {settings.max_restarts} restarts within "
             f"{settings.within_hours:g} hours"]
    for s in found["starts"]:
        end = f"{s['ended'] - s['began']:,.0f} s, step {s['step']}: {s['reason']}" if s["ended"] else "running"
        lines.append(f"  {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(s['began']))}  {end}")
    signs, now = read(folder), time.time()
    slow = slow_ranks(signs)
    for s in signs:
        mark = "  slow: the others wait for it" if s["rank"] in slow else ""
        lines.append(f"  rank {s['rank']}: {s['phase']}, step {s['step']}, {now - s['time']:.0f} s ago, "
                     f"{s['memory_bytes'] / 1e9:.1f} GB{mark}")
    return "\n".join(lines)


def _say(text: str) -> None:
    print(f"train.supervise: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
