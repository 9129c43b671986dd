"""Exact sums of a few numbers over all ranks, for metrics and agreements."""
import numpy as np
from mindspore import Tensor, nn, ops

from parallel.context import is_distributed


class _Gather(nn.Cell):
    def __init__(self):
        super().__init__()
        self.all_gather = ops.AllGather()

    def construct(self, x):
        return self.all_gather(x)


ROOM = 64  # numbers in the smallest message
_GATHER: list[_Gather] = []


def gather(values) -> np.ndarray:
    """float64 [n] of this rank -> float64 [world_size, n] on every rank. Also a barrier: it returns when all have come.

    MindSpore's collectives on CPU know float32 at most, and an AllReduce there would round a count above 2^24. Each value travels
    as two float32 (its rounding and the rest: 48 bits), and is added up on the host in the order of the ranks.
    """
    values = np.atleast_1d(np.asarray(values, np.float64))
    if not is_distributed():
        return values[None]
    high = values.astype(np.float32)
    low = np.subtract(values, high, out=np.zeros_like(values), where=np.isfinite(values)).astype(np.float32)
    high, low = np.split(_gathered(np.concatenate((high, low))).astype(np.float64), 2, axis=1)
    return high + low


def gather_arrays(x: np.ndarray) -> np.ndarray:
    """float32 of the same shape on all ranks -> float32 [world_size, *shape] on every rank."""
    if not is_distributed():
        return x[None]
    found = _gathered(x.reshape(-1))
    return found.reshape(len(found), *x.shape)


def _gathered(x: np.ndarray) -> np.ndarray:
    """float32 [n] -> float32 [world_size, n]. Each length would be a graph to compile, which takes longer on CPU than the first
    evaluation of a small model: so the message's length is the next power of two."""
    if not _GATHER:
        _GATHER.append(_Gather())
    room = max(ROOM, 1 << (len(x) - 1).bit_length())
    return _GATHER[0](Tensor(np.pad(x, (0, room - len(x))))).asnumpy().reshape(-1, room)[:, :len(x)]


def barrier() -> None:
    """Wait until every rank is here."""
    gather(0.0)
