"""python -m train.supervise --config C: keep a run alive on this node.

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
import statistics
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
from train.config import RunConfig, SuperviseConfig, load_config

STATE = "supervise.json"
FINAL = (0, 2, 3, 4)  # exit codes after which nothing is started again
POLL = 0.5
GRACE = 60.0  # seconds for the launcher to end its workers
FAILED = re.compile(r"rank (\d+) (?:failed first|ended) \((.+?)\)")
FROM_OUTSIDE = ("SIGKILL", "SIGTERM")  # such an end says nothing of the step at which it came


@dataclass
class Start:
    """One start of the job: when (seconds since 1970), and how it ended."""

    began: float
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
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return Supervisor(config, lambda restart: launcher(options, restart)).run()


def launcher(options: argparse.Namespace, restart: bool) -> list[str]:
    """The command that starts the job; a restart goes on from this run's newest checkpoint, whatever the first start did."""
    overrides = [o for o in options.overrides if not (restart and o.partition("=")[0].strip() == "ckpt.resume")]
    overrides += ["ckpt.resume=auto"] * restart
    return [sys.executable, "-m", "train.launch", "--config", options.config, *(["--set", *overrides] if overrides else []),
            *(["--workers", str(options.workers)] if options.workers is not None else [])]


class Supervisor:
    """Starts a command again and again, until it is done or there is no use in it.

    Args:
        command: gives the launcher's, of the first start or of a restart; it writes to this process's output.
    """

    def __init__(self, config: RunConfig, command: Callable[[bool], list[str]]):
        self.folder, self.settings, self.command = config.run.folder, config.supervise, command
        self.starts: list[Start] = []
        self.signals: list[int] = []

    def run(self) -> int:
        """Until the end. Returns the exit code."""
        caught = (signal.SIGINT, signal.SIGTERM)
        old = {number: signal.signal(number, lambda n, _: self.signals.append(n)) for number in caught}
        try:
            while True:
                start = self.once()
                self.write("running")
                if start.code in FINAL or self.signals:
                    self.write("done" if start.code == 0 else "ended")
                    return start.code if start.code in FINAL else 128 + self.signals[0]
                _say(f"{start.reason}, at step {start.step}")
                if why := self.hopeless():
                    self.write("given up")
                    _say(f"given up: {why}. " + "\n".join(["Its last lines:", *start.last_lines[-20:]]))
                    return 1
                if not self.pause():
                    self.write("ended")
                    return 128 + self.signals[0]
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)

    def once(self) -> Start:
        """Start the job, and watch it until it has ended."""
        from train.heartbeat import FOLDER
        for left_over in (self.folder / FOLDER).glob("*"):
            left_over.unlink()
        start = Start(time.time())
        self.starts.append(start)
        lines: deque[str] = deque(maxlen=60)
        command = self.command(len(self.starts) > 1)
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True)
        reader = threading.Thread(target=_copy, args=(process.stderr, lines), daemon=True)
        reader.start()
        hung, told = "", 0
        while process.poll() is None:
            if len(self.signals) > told:
                told = len(self.signals)
                process.send_signal(self.signals[-1])
            if not hung and (hung := self.hung()):
                _end(process)
            self.write("running")
            time.sleep(POLL)
        reader.join(timeout=5)
        start.ended, start.code, start.last_lines = time.time(), process.returncode, list(lines)
        self.explain(start, hung)
        return start

    def signs(self) -> list[dict]:
        from train.heartbeat import read
        return read(self.folder)

    def hung(self) -> str:
        """Which rank has given no sign for longer than its phase may take; "" if none."""
        limits = {"start": self.settings.start_minutes, "step": self.settings.step_minutes, "eval": self.settings.eval_minutes,
                  "ckpt": self.settings.ckpt_minutes}
        now = time.time()
        silent = [s for s in self.signs() if now - s["time"] > 60 * limits[s["phase"]]]
        if not silent:
            return ""
        first = min(silent, key=lambda s: (s["step"], s["time"]))
        return f"rank {first['rank']} hung (phase {first['phase']}, no sign for {now - first['time']:.0f} s)"

    def explain(self, start: Start, hung: str) -> None:
        """Which rank failed first, where, and with what."""
        signs = self.signs()
        start.step = max((s["step"] for s in signs), default=None)
        if hung:
            start.reason, start.rank = hung.partition(" (phase")[0], int(hung.split()[1])
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
        recent = [s for s in self.starts if time.time() - s.began < 3600 * self.settings.within_hours]
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
        """supervise.json, once the run's folder is there."""
        if self.folder.is_dir():
            content = {"state": state, "pid": os.getpid(), "time": time.time(), "starts": [asdict(s) for s in self.starts]}
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
    from train.heartbeat import read
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


def slow_ranks(signs: list[dict]) -> list[int]:
    """Ranks whose host keeps the others waiting: between two steps more than twice the median, and a tenth of a step at least."""
    known = [s for s in signs if s["host_seconds"] is not None and s["step_seconds"] is not None]
    if len(known) < 2:
        return []
    median = statistics.median_low([s["host_seconds"] for s in known])
    return [s["rank"] for s in known if s["host_seconds"] > 2 * median and s["host_seconds"] > 0.1 * s["step_seconds"]]


def _say(text: str) -> None:
    print(f"train.supervise: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
