"""Sums over the data-parallel ranks."""
import mindspore as ms
import numpy as np
from mindspore import ParameterTuple, nn, ops
from mindspore.ops import functional as F

_flatten = ops.MultitypeFuncGraph("flatten")
_part = ops.MultitypeFuncGraph("part")


@_flatten.register("Tensor")
def _flatten_one(x):
    return F.reshape(x, (-1,))


@_part.register("Tensor", "Number", "Number", "Tensor")
def _part_of(total, start, end, like):
    return F.reshape(total[start:end], like.shape)


class Sum(nn.Cell):
    """construct: (loss, count, gradients) of this rank -> the same, added up over all ranks.

    MindSpore's reducer marks the gradients' AllReduce for fusion, which its compiler does on Ascend.
    """

    def __init__(self, weights: ParameterTuple, dp: int):
        super().__init__(auto_prefix=False)
        self.all_reduce = ops.AllReduce()
        self.reducer = nn.DistributedGradReducer(weights, mean=False, degree=dp)

    def construct(self, loss, count, gradients):
        return self.all_reduce(loss), self.all_reduce(count), self.reducer(gradients)


class FusedSum(nn.Cell):
    """The same by one AllReduce of everything.

    For CPU, where MindSpore's communication fusion has no effect and each AllReduce costs about a millisecond whatever its size.
    """

    def __init__(self, weights: ParameterTuple):
        super().__init__(auto_prefix=False)
        self.ends = tuple(int(end) for end in np.cumsum([w.size for w in weights]))
        self.starts = (0, *self.ends[:-1])
        self.all_reduce, self.concat, self.map = ops.AllReduce(), ops.Concat(), ops.HyperMap()

    def construct(self, loss, count, gradients):
        total = self.all_reduce(self.concat(self.map(_flatten, gradients) + self.map(_flatten, (loss, count))))
        sums = self.map(F.partial(_part, total), self.starts, self.ends, gradients)
        return total[self.ends[-1]], total[self.ends[-1] + 1], sums


def sum_over_ranks(weights: ParameterTuple, dp: int) -> nn.Cell:
    """The form for this device."""
    return FusedSum(weights) if ms.get_context("device_target") == "CPU" else Sum(weights, dp)
