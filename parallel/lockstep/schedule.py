"""Drive all ranks together: each up to its next communication, which is answered when all of its group have come."""
from collections import Counter, defaultdict, deque
from collections.abc import Generator
from dataclasses import dataclass, field

import numpy as np

from parallel.lockstep.collectives import Operation, execute
from parallel.lockstep.errors import Deadlock, Mismatch
from parallel.lockstep.mindir import describe, type_of
from parallel.lockstep.rank import Rank


@dataclass
class Traffic:
    """What was communicated, by rank and (operator, size of the group).

    calls: how often. bytes: of the data that the rank itself put in, whatever the network makes of it; nothing for a Receive.
    Groups of one rank communicate nothing and are not counted.
    """

    calls: dict[int, Counter] = field(default_factory=lambda: defaultdict(Counter))
    bytes: dict[int, Counter] = field(default_factory=lambda: defaultdict(Counter))

    def add(self, operation: Operation, nbytes: int) -> None:
        """Count one operation of one rank."""
        if len(operation.members) > 1:
            kind = operation.op, len(operation.members)
            self.calls[operation.rank][kind] += 1
            self.bytes[operation.rank][kind] += nbytes


def run(ranks: dict[int, Rank], inputs: dict[int, tuple[np.ndarray, ...]]) -> tuple[dict[int, object], Traffic]:
    """Execute every rank's graph once: {rank: outputs} and the traffic.

    The result depends on nothing but the arguments: sums are taken in the order of the group's ranks.
    Raises Deadlock, Mismatch or KernelFailure.
    """
    job = _Job({r: rank.step(*inputs[r]) for r, rank in sorted(ranks.items())})
    with np.errstate(all="ignore"):  # overflow and its kin are results like others
        job.drive()
    return job.outputs, job.traffic


class _Job:
    def __init__(self, runs: dict[int, Generator]):
        self.runs, self.traffic = runs, Traffic()
        self.outputs: dict[int, object] = {}
        self.waiting: dict[int, tuple[Operation, object]] = {}
        self.messages: dict[tuple[int, int, int], deque] = defaultdict(deque)  # (from, to, tag) -> Send's data

    def drive(self) -> None:
        ready = deque((rank, None) for rank in self.runs)
        while ready:
            while ready:
                self.go_on(*ready.popleft(), ready)
            for rank in list(self.waiting):
                if rank in self.waiting:  # an answer to one may have been an answer to others
                    ready.extend(self.answer(self.waiting[rank][0]))
        if self.waiting:
            raise Deadlock(self.explain())
        unread = [f"{len(box)} from rank {a} to rank {b} (tag {tag})" for (a, b, tag), box in self.messages.items() if box]
        if unread:
            raise Deadlock(f"all ranks ended, but messages were sent that nobody received: {', '.join(unread)}")

    def go_on(self, rank: int, answer: object, ready: deque) -> None:
        """Execute one rank until it has to wait or ends."""
        try:
            operation, x = self.runs[rank].send(answer)
        except StopIteration as end:
            self.outputs[rank] = end.value
            return
        if operation.op == "Send":
            self.traffic.add(operation, _nbytes(x))
            self.messages[rank, operation.peer, operation.tag].append((operation, x))
            ready.appendleft((rank, x))
            return
        self.waiting[rank] = operation, x
        self.compare(operation, x)

    def compare(self, mine: Operation, x: object) -> None:
        """Whoever waits in the same group has to be at the same operation."""
        if mine.op == "Receive":
            return
        for r in mine.members:
            if r == mine.rank or not self.has_come(r, mine.group):
                continue
            other, y = self.waiting[r]
            if (mine.op, mine.options, mine.members, type_of(x)) != (other.op, other.options, other.members, type_of(y)):
                raise Mismatch(f"group {mine.group}: rank {mine.rank} came with {mine} of {describe(type_of(x))} for ranks "
                               f"{list(mine.members)}, but rank {r} with {other} of {describe(type_of(y))} for ranks "
                               f"{list(other.members)}")
            return

    def has_come(self, rank: int, group: str) -> bool:
        """Whether a rank waits at a collective of this group."""
        return rank in self.waiting and self.waiting[rank][0].op != "Receive" and self.waiting[rank][0].group == group

    def answer(self, operation: Operation) -> list[tuple[int, object]]:
        """The answers to an operation, if all that it needs has come; else none."""
        if operation.op == "Receive":
            return self.receive(operation)
        members = operation.members
        if not all(self.has_come(r, operation.group) for r in members):
            return []
        parts = [self.waiting.pop(r) for r in members]
        for other, x in parts:
            self.traffic.add(other, _nbytes(x))
        results = execute([other for other, _ in parts], [x for _, x in parts])
        return list(zip(members, results, strict=True))

    def receive(self, operation: Operation) -> list[tuple[int, object]]:
        box = self.messages[operation.peer, operation.rank, operation.tag]
        if not box:
            return []
        sender, x = box.popleft()
        if type_of(x) != operation.node.type:
            raise Mismatch(f"rank {operation.rank} expects {operation.node.type} in {operation} (tag {operation.tag}), "
                           f"but rank {sender.rank} sent {describe(type_of(x))} in {sender}")
        del self.waiting[operation.rank]
        self.traffic.add(operation, 0)
        return [(operation.rank, x)]

    def explain(self) -> str:
        lines = [f"deadlock: {len(self.waiting)} of {len(self.runs)} ranks wait and none can go on"]
        for rank, (operation, _) in self.waiting.items():
            if operation.op == "Receive":
                what = f"for tag {operation.tag} from rank {operation.peer}"
                absent = [operation.peer]
            else:
                what = f"in group {operation.group} of ranks {list(operation.members)}"
                absent = [r for r in operation.members if not self.has_come(r, operation.group)]
            lines.append(f"  rank {rank} waits at {operation} {what}; not come: " + ", ".join(map(self.where, absent)))
        return "\n".join(lines)

    def where(self, rank: int) -> str:
        if rank not in self.runs:
            return f"rank {rank} (not in this job)"
        return f"rank {rank} ({'at ' + str(self.waiting[rank][0]) if rank in self.waiting else 'has ended'})"


def _nbytes(x) -> int:
    return sum(map(_nbytes, x)) if isinstance(x, tuple) else x.nbytes
