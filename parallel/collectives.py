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


_GATHER: list[_Gather] = []


def gather(values) -> np.ndarray:
    """float64 [n] of this rank -> float64 [world_size, n] on every rank. Also a barrier: it returns when all have come.

    MindSpore's collectives on CPU know float32 at most, and an AllReduce there would round a count above 2^24. Each value travels
    as two float32 (its rounding and the rest: 48 bits), and is added up on the host in the order of the ranks.
    """
    values = np.atleast_1d(np.asarray(values, np.float64))
    if not is_distributed():
        return values[None]
    if not _GATHER:
        _GATHER.append(_Gather())
    high = values.astype(np.float32)
    low = np.subtract(values, high, out=np.zeros_like(values), where=np.isfinite(values)).astype(np.float32)
    parts = _GATHER[0](Tensor(np.concatenate((high, low)))).asnumpy().astype(np.float64)
    high, low = np.split(parts.reshape(-1, 2 * len(values)), 2, axis=1)
    return high + low


def gather_arrays(x: np.ndarray) -> np.ndarray:
    """float32 of the same shape on all ranks -> float32 [world_size, *shape] on every rank."""
    if not is_distributed():
        return x[None]
    if not _GATHER:
        _GATHER.append(_Gather())
    return _GATHER[0](Tensor(x[None])).asnumpy()


def barrier() -> None:
    """Wait until every rank is here."""
    gather(0.0)
