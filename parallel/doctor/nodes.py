"""Several nodes: each leaves a mark in the runs' folder, renews it, and looks for the others'.

By them the nodes know that they share the folder, that they are equal in what must be equal, and how far their clocks are apart.
Marks of an earlier doctor may be left: one counts only once it has changed under our eyes.
"""
from __future__ import annotations  # for Python 3.8

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

from parallel.doctor.machine import SET_CLOCKS, WARN_SECONDS
from parallel.doctor.result import FAILED, OK, WARNING, Result

FOLDER = ".doctor"
RENEW = 0.2  # seconds between two looks


def topology(env: Mapping[str, str]) -> tuple[int, int, str, int]:
    """NNODES, NODE_RANK, MASTER_ADDR, MASTER_PORT; one node if NNODES is not set. Raises ValueError with a line for the user."""
    count = _number(env, "NNODES", "1", 1, 100_000)
    rank = _number(env, "NODE_RANK", "0", 0, count - 1)
    names = ("NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
    missing = [name for name in names if not env.get(name, "").strip()] if count > 1 else []
    if missing:
        raise ValueError(f"NNODES={count} needs all of {', '.join(names)}; missing: {', '.join(missing)}")
    return count, rank, env.get("MASTER_ADDR", "").strip(), _number(env, "MASTER_PORT", "1", 1, 65535)


def _number(env: Mapping[str, str], name: str, default: str, low: int, high: int) -> int:
    text = env.get(name, "").strip() or default
    if not text.isdigit() or not low <= int(text) <= high:
        raise ValueError(f"{name}={text}: expected a whole number from {low} to {high}")
    return int(text)


def checks(env: Mapping[str, str], runs: Path, seconds: float, mine: Mapping[str, str]) -> list[Result]:
    """Nothing for one node. mine: what must be the same on all nodes, by name; seconds: to wait for the others."""
    try:
        count, rank, address, port = topology(env)
    except ValueError as error:
        return [Result("nodes", FAILED, str(error), "the same on all nodes but NODE_RANK, which counts from 0")]
    if count == 1:
        return []
    try:
        here, error = _is_here(address), ""
    except OSError as problem:
        here, error = rank == 0, f"unknown host ({problem.strerror})"
    if here != (rank == 0):
        error = f"{'' if rank else 'not '}an address of this machine, but NODE_RANK={rank}"
    if error:
        return [Result("master", FAILED, f"MASTER_ADDR={address}: {error}", "it is the address by which all nodes reach the node "
                                                                            "of NODE_RANK=0")]
    with _Listener(port) if rank == 0 else contextlib.nullcontext() as listener:
        marks = Marks(runs / FOLDER, rank, count, mine)
        try:
            reached = marks.meet(seconds, (lambda: True) if rank == 0 else lambda: _reaches(address, port))
        except OSError as problem:
            return [Result("shared", FAILED, f"{runs / FOLDER}: {problem.strerror}", "all nodes must be able to write there")]
    return [_master(rank, address, port, reached, listener), *marks.report(seconds)]


def _is_here(address: str) -> bool:
    family, kind, _, _, place = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
    try:
        with socket.socket(family, kind) as probe:
            probe.bind(place)
        return True
    except OSError:
        return False


def _reaches(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=2.0).close()
        return True
    except OSError:
        return False


class _Listener:
    """Node 0: accepts at MASTER_PORT, as MindSpore's scheduler will."""

    def __init__(self, port: int):
        self.port, self.error = port, ""

    def __enter__(self) -> _Listener:
        try:
            self.server = socket.create_server(("", self.port), backlog=1024)
        except OSError as error:
            self.error = error.strerror
            return self
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self.server.accept()[0].close()

    def __exit__(self, *_) -> None:
        if not self.error:
            self.server.close()


def _master(rank: int, address: str, port: int, reached: bool, listener) -> Result:
    place = f"{address}:{port}"
    if rank == 0:
        if listener.error:
            return Result("master", FAILED, f"{place} cannot be listened on ({listener.error})", "choose another MASTER_PORT")
        return Result("master", OK, f"{place} is here")
    if not reached:
        return Result("master", FAILED, f"{place} is not reached from this node",
                      "does the doctor run there too? Else a firewall, or an address of a network that the nodes do not share")
    return Result("master", OK, f"{place} is reached")


class Marks:
    """The marks of all nodes, seen from one."""

    def __init__(self, folder: Path, rank: int, count: int, mine: Mapping[str, str]):
        self.folder, self.rank, self.count = folder, rank, count
        self.mark = {"session": uuid.uuid4().hex, "beat": 0, "all": False, "host": socket.gethostname(), "same": dict(mine)}
        self.first: dict[int, dict] = {}  # node -> its mark when first looked at
        self.seen: dict[int, dict] = {}  # node -> its newest mark, once that had changed
        self.skew: dict[int, float] = {}  # node -> seconds by which its clock is ahead, at least

    def meet(self, seconds: float, reach) -> bool:
        """Until every node has seen all others, or the time is over. Returns whether reach() was true once."""
        self.folder.mkdir(parents=True, exist_ok=True)
        end, reached = time.monotonic() + seconds, False
        try:
            while time.monotonic() < end:
                self._write()
                self._look()
                reached = reached or reach()
                self.mark["all"] = len(self.seen) == self.count - 1 and reached
                if self.mark["all"] and all(mark["all"] for mark in self.seen.values()):
                    self._write()
                    time.sleep(5 * RENEW)  # for those that have not read this yet
                    break
                time.sleep(RENEW)
        finally:
            with contextlib.suppress(OSError):
                self._path(self.rank).unlink()
                self.folder.rmdir()  # by the last one
        return reached

    def _path(self, node: int) -> Path:
        return self.folder / f"node_{node}.json"

    def _write(self) -> None:
        self.mark["beat"] += 1
        self.mark["time"] = time.time()
        temporary = self.folder / f".tmp-node_{self.rank}"
        temporary.write_text(json.dumps(self.mark), encoding="utf-8")
        os.replace(str(temporary), str(self._path(self.rank)))

    def _look(self) -> None:
        for node in range(self.count):
            if node == self.rank:
                continue
            try:
                mark = json.loads(self._path(node).read_text(encoding="utf-8"))
            except (OSError, ValueError):
                continue
            first = self.first.setdefault(node, mark)
            if (mark["session"], mark["beat"]) != (first["session"], first["beat"]):
                # What is read is late, by the time between two looks and by the folder's own delay: the least late counts.
                ahead = mark["time"] - time.time()
                self.skew[node] = max(ahead, self.skew.get(node, ahead))
                self.seen[node] = mark

    def report(self, seconds: float) -> list[Result]:
        """What is shared, equal, and at the same time."""
        absent = [node for node in range(self.count) if node != self.rank and node not in self.seen]
        if absent:
            nodes = ", ".join(map(str, absent))
            return [Result("shared", FAILED, f"node {nodes} left no mark in {self.folder} within {seconds:g} s",
                           "run the doctor on all nodes at once, each with its NODE_RANK, and a folder that all see (--runs)")]
        results = [Result("shared", OK, f"{self.folder.parent} is seen by all {self.count} nodes: "
                          + ", ".join(f"{node} {mark['host']}" for node, mark in sorted(self.seen.items())))]
        for name, value in self.mark["same"].items():
            others = {node: mark["same"].get(name) for node, mark in self.seen.items() if mark["same"].get(name) != value}
            if others:
                node, other = sorted(others.items())[0]
                results.append(Result("equal", FAILED, f"{name}: {value} here, {other} on node {node}", "make all nodes equal"))
        if len(results) == 1:
            results.append(Result("equal", OK, "the nodes agree in " + ", ".join(self.mark["same"])))
        node, worst = max(self.skew.items(), key=lambda item: abs(item[1]))
        found = f"node {node} is {abs(worst):.1f} s {'ahead' if worst > 0 else 'behind'}{', the others less' * (self.count > 2)}"
        late = abs(worst) > WARN_SECONDS
        return [*results, Result("clocks", WARNING if late else OK, found, SET_CLOCKS * late)]
