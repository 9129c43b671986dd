"""What the communication operators do."""
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from parallel.lockstep.errors import KernelFailure, LockstepError
from parallel.lockstep.mindir import Node, TensorType, type_of

REDUCE: dict[str, Callable] = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}


@dataclass(frozen=True, slots=True)
class Operation:
    """One use of a communication operator by a rank. members: global ranks, in the group's order."""

    rank: int
    op: str
    group: str
    members: tuple[int, ...]
    scope: str
    node: Node

    def __str__(self) -> str:
        return f"{self.op}{' ' + '/'.join(map(str, self.options)) if self.options else ''} in {self.scope}"

    @property
    def options(self) -> tuple:
        """What all members of the group have to agree on, besides the operator and the data's type."""
        return tuple(self.node.attributes[k] for k in ("op", "root_rank", "split_dim", "concat_dim") if k in self.node.attributes)

    @property
    def peer(self) -> int:
        """Of Send and Receive: the other rank."""
        return self.members[self.node.attributes["dest_rank" if self.op == "Send" else "src_rank"]]

    @property
    def tag(self) -> int:
        """Of Send and Receive: what tells messages between the same two ranks apart."""
        return self.node.attributes["sr_tag"]


def operation(node: Node, rank: int) -> Operation:
    """A communication node as this rank uses it. Raises LockstepError if it does not say who takes part."""
    members = node.attributes.get("group_rank_ids")
    if not members:
        raise LockstepError(f"rank {rank}: {node.op} in {node.scope} has no attribute group_rank_ids: was the graph compiled "
                            "under AutoParallel?")
    return Operation(rank, node.op, node.attributes["group"], tuple(members), node.scope, node)


def total(attributes: dict, parts: Sequence[np.ndarray]) -> np.ndarray:
    """Added up (or whatever the attribute `op` says) in the order of the group."""
    return reduce(REDUCE[attributes["op"]], parts)


def all_reduce(attributes, parts):
    return [total(attributes, parts)] * len(parts)


def all_gather(attributes, parts):
    return [np.concatenate(parts)] * len(parts)


def reduce_scatter(attributes, parts):
    return np.split(total(attributes, parts), len(parts))


def all_to_all(attributes, parts):
    pieces = [np.split(x, len(parts), attributes["split_dim"]) for x in parts]
    return [np.concatenate([p[i] for p in pieces], attributes["concat_dim"]) for i in range(len(parts))]


def broadcast(attributes, parts):
    return [parts[attributes["root_rank"]]] * len(parts)


COLLECTIVES: dict[str, Callable] = {
    "AllReduce": all_reduce, "AllGather": all_gather, "ReduceScatter": reduce_scatter, "AlltoAll": all_to_all,
    "Broadcast": broadcast,
}
COMMUNICATION = {*COLLECTIVES, "Send", "Receive"}


def execute(operations: Sequence[Operation], parts: Sequence) -> list:
    """What each member of a group gets for the parts that all have brought. Raises KernelFailure."""
    first = operations[0]
    try:
        results = COLLECTIVES[first.op](first.node.attributes, parts)
    except (ValueError, KeyError) as error:
        raise KernelFailure(f"{first} of ranks {list(first.members)}: {error}") from error
    for operation, result in zip(operations, results, strict=True):
        kind = operation.node.type
        if isinstance(kind, TensorType) and type_of(result) != kind:
            raise KernelFailure(f"rank {operation.rank}: the result of {operation} is {type_of(result)}, and not {kind} as "
                                "MindSpore inferred")
    return results
