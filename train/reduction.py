"""Sums over the data-parallel ranks."""
import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from mindspore.ops import functional as F

_flatten = ops.MultitypeFuncGraph("flatten")
_part = ops.MultitypeFuncGraph("part")


@_flatten.register("Tensor")
def _flatten_one(x):
    return F.reshape(x, (-1,))


@_part.register("Tensor", "Number", "Number", "Tensor")
def _part_of(total, start, end, like):
    return F.reshape(total[start:end], like.shape)


class FusedSum(nn.Cell):
    """construct: (sums [2], gradients) of this rank -> the same, added up over all ranks by one AllReduce of everything.

    For CPU, where MindSpore's communication fusion has no effect and each AllReduce costs about a millisecond whatever its size.

    here: the sum of this rank's own numbers in the last step, to tell afterwards whose were not finite.
    """

    def __init__(self, weights: ParameterTuple):
        super().__init__(auto_prefix=False)
        self.ends = tuple(int(end) for end in np.cumsum([w.size for w in weights]))
        self.starts = (0, *self.ends[:-1])
        self.all_reduce, self.concat, self.map, self.all_of = ops.AllReduce(), ops.Concat(), ops.HyperMap(), ops.ReduceSum()
        self.here = Parameter(Tensor(0.0, ms.float32), name="sum_here", requires_grad=False)

    def construct(self, sums, gradients):
        mine = self.concat((*self.map(_flatten, gradients), sums))
        self.here = self.all_of(mine)
        total = self.all_reduce(mine)
        return total[self.ends[-1]:], self.map(F.partial(_part, total), self.starts, self.ends, gradients)
