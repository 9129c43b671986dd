"""What is read of one rank's profile, whatever device wrote it."""
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

COMMUNICATION = re.compile(r"hcom_.*|AllReduce|AllGatherV?|ReduceScatterV?|AlltoAll(V|VC)?|Broadcast|Reduce|Send|Receive|Barrier|"
                           r"Collective(Scatter|Gather)|NeighborExchange(V2)?|BatchISendIRecv|MuxSend|MuxReceive", re.IGNORECASE)
PARTS = ("computation", "communication", "data", "host")


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step and its parts, which add up to it.

    computation: while any operator computed; communication: what nothing hid, waiting for other ranks included; data: waiting for
    the batch; host: all the rest, in which the device had nothing to do. bubble: of communication, waiting for another stage.
    """

    step: int
    seconds: float
    computation: float
    communication: float
    data: float
    host: float
    bubble: float = 0.0


@dataclass(frozen=True)
class Operator:
    """All executions of a type of operator; flops: of all of them, None where it cannot be known."""

    type: str
    calls: int
    seconds: float
    flops: float | None = None


@dataclass(frozen=True)
class Transfer:
    """All transfers of a kind over a group of ranks; wait: of `seconds`, until the other ranks were there. None: not told."""

    name: str
    calls: int
    seconds: float
    wait: float | None = None
    megabytes: float | None = None


@dataclass
class RankProfile:
    """One rank; memory: (seconds, allocated bytes, reserved bytes), in order; problems: files that were not used, and why."""

    rank: int
    device: str
    steps: list[StepTime] = field(default_factory=list)
    operators: list[Operator] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    memory: list[tuple[float, float, float]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def between_ranks(kind: str) -> bool:
    """Whether an operator of this type is communication (BroadcastTo or ReduceSum are none)."""
    return COMMUNICATION.fullmatch(kind) is not None


def mean(values: Iterable[float]) -> float:
    """The arithmetic mean, 0 of nothing."""
    values = list(values)
    return sum(values) / len(values) if values else 0.0
