"""Several nodes that keep one run alive: they agree through files in the run's folder, which all of them see.

    nodes/node_<n>.json       what node n does; it renews this lease every second, and a lease that stays as it is is lost
    nodes/incarnation.json    which start of the job is the current one, and whether it shall end; node 0 alone writes it

Node 0 decides, since the job's scheduler runs there: it begins an incarnation once all nodes stand by, and ends it when a node
fails, is lost, or was started anew. The number is also a fence: a process of an earlier incarnation that wakes up later finds
another number, and writes nothing more. Ages are told by this node's own clock from when it saw a file change, so the clocks of
the nodes may differ, and jump.
"""
import contextlib
import fcntl
import json
import os
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from ckpt.writing import SaveError
from parallel.errors import UserError
from parallel.files import replace_text
from train.workers import AGREED

FOLDER = "nodes"
NUMBER = "MINDGPT_INCARNATION"  # in the environment of a job's processes
RENEW = 1.0  # seconds between two signs of life
STANDBY, RUNNING = "standby", "running"


def fence(run_folder: Path) -> Callable[[], None]:
    """A check that this process still belongs to the run's current incarnation: it raises SaveError if not.

    A process that was not started by a supervisor has no number, and the run's lock alone keeps others out.
    """
    mine, path = os.environ.get(NUMBER), run_folder / FOLDER / "incarnation.json"

    def check() -> None:
        if mine is not None and (now := _read(path).get("number")) != int(mine):
            raise SaveError(f"this process belongs to start {mine} of the run, and the current one is {now}: it writes no more")
    return check


def _read(path: Path) -> dict:
    """What a file says; {} if it cannot be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


class Nodes:
    """This node among those of a run. As a context manager it renews its lease; UserError if another supervisor does so here.

    Args:
        count: of nodes; with one, nobody is waited for.
        lease_seconds: a node whose lease has not changed for so long is lost.
    """

    def __init__(self, run_folder: Path, node: int, count: int, lease_seconds: float):
        self.folder, self.node, self.count, self.lease_seconds = run_folder / FOLDER, node, count, lease_seconds
        self.path = self.folder / "incarnation.json"
        self.mine = {"node": node, "session": uuid.uuid4().hex, "state": STANDBY, "incarnation": 0, "end": None, "beat": 0}
        self.seen: dict[int, tuple[dict, float]] = {}  # node -> its lease, and when that was first seen so
        self.alive: set[int] = set()  # nodes whose lease has changed under our eyes: a file alone may be old
        self.sessions: dict[int, str] = {}  # of those that take part in the current incarnation
        self.restart = False
        self.lock, self.left = threading.Lock(), threading.Event()

    def __enter__(self) -> "Nodes":
        self.folder.mkdir(parents=True, exist_ok=True)
        self.held = open(self.folder / f"node_{self.node}.lock", "a")  # noqa: SIM115  open as long as this node takes part
        try:
            fcntl.flock(self.held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.held.close()
            raise UserError(f"another train.supervise keeps {self.folder.parent} alive on node {self.node}: wait for it, end it, "
                            "or choose another run.name") from None
        self.mine["incarnation"] = self.current().get("number", 0)
        self._write()
        self.thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_) -> None:
        self.left.set()
        self.thread.join()
        self.held.close()

    def _renew(self) -> None:
        while not self.left.wait(RENEW):
            self._write()

    def _write(self, **changes) -> None:
        with self.lock, contextlib.suppress(OSError):  # a full disk must not end what keeps the run alive
            self.mine |= {**changes, "beat": self.mine["beat"] + 1}
            replace_text(self.folder / f"node_{self.node}.json", json.dumps(self.mine))

    def current(self) -> dict:
        """{"number", "restart", "stop": why it shall end, or "", "code": of the run once it is over, else None}; {}: none yet."""
        return _read(self.path)

    def leases(self) -> dict[int, dict]:
        """Of the other nodes; {} for one that has none."""
        now, found = time.monotonic(), {}
        for node in range(self.count):
            if node != self.node:
                found[node] = lease = _read(self.folder / f"node_{node}.json") or self.seen.get(node, ({}, 0.0))[0]
                if node not in self.seen or self.seen[node][0] != lease:
                    if node in self.seen:
                        self.alive.add(node)
                    self.seen[node] = lease, now
        return found

    def lost(self, node: int) -> bool:
        """Whether a node's lease has not changed for so long that it cannot be there."""
        lease, since = self.seen.get(node, ({}, time.monotonic()))
        return not lease or time.monotonic() - since > self.lease_seconds

    def missing(self) -> list[int]:
        """Nodes that do not stand by."""
        return [node for node, lease in self.leases().items()
                if lease.get("state") != STANDBY or node not in self.alive or self.lost(node)]

    def begin(self, restart: bool) -> int:
        """Node 0: the next incarnation begins, with all nodes as they are now. Returns its number.

        Args:
            restart: whether it goes on from this run's newest checkpoint, whatever the command says.
        """
        number = self.current().get("number", 0) + 1
        self.sessions = {node: lease["session"] for node, lease in self.leases().items()}
        self.restart = restart
        self._tell(number)
        self._write(state=RUNNING, incarnation=number, end=None)
        return number

    def over(self, before: dict) -> bool:
        """Other nodes: whether node 0 has said that the run is over; before: what it had said when this node came."""
        now = self.current()
        return now != before and now.get("code") is not None

    def follow(self) -> bool:
        """Other nodes: take part in an incarnation that has begun since the last that this node knows, if there is one."""
        now = self.current()
        if now.get("number", 0) <= self.mine["incarnation"] or now["stop"] or now["code"] is not None:
            return False
        self.sessions, self.restart = {0: self.leases()[0].get("session", "")}, now["restart"]
        self._write(state=RUNNING, incarnation=now["number"], end=None)
        return True

    def ended(self, end: dict) -> None:
        """This node's part of the incarnation is over; end: {"code", "reason", "rank", "step"}."""
        self._write(state=STANDBY, end=end)

    def stop(self, why: str) -> None:
        """Node 0: the current incarnation shall end on all nodes."""
        self._tell(self.mine["incarnation"], stop=why)

    def finish(self, code: int, why: str = "") -> None:
        """Node 0: the run is over, with this exit code on all nodes."""
        self._tell(self.mine["incarnation"], stop=why, code=code)

    def _tell(self, number: int, stop: str = "", code: int | None = None) -> None:
        replace_text(self.path, json.dumps({"number": number, "restart": self.restart, "stop": stop, "code": code}))

    def why_end(self) -> str:
        """Why this node's part of the incarnation shall end now, if it shall."""
        leases, number = self.leases(), self.mine["incarnation"]
        now = self.current()
        if self.node and (now.get("number") != number or now.get("stop") or now.get("code") is not None):
            return now.get("stop") or f"node 0 has gone on to start {now.get('number')}"
        for node, session in self.sessions.items():
            if self.lost(node):
                return f"node {node} is lost (no sign of life for {self.lease_seconds:g} s)"
            if leases[node].get("session") != session:
                return f"node {node} was started anew"
            if (end := self.end_of(node)) and end["code"] not in AGREED:
                return f"node {node}: {end['reason']}"
        return ""

    def end_of(self, node: int) -> dict | None:
        """How another node's part of the current incarnation has ended; None: it has not."""
        lease = self.leases()[node]
        over = lease.get("incarnation") == self.mine["incarnation"] and lease.get("state") == STANDBY
        return lease.get("end") if over and lease.get("session") == self.sessions.get(node) else None
