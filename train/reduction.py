"""Sums over the data-parallel ranks."""
import mindspore as ms
import numpy as np
from mindspore import ParameterTuple, nn, ops
from mindspore.ops import functional as F

_sum_over_ranks = ops.MultitypeFuncGraph("sum_over_ranks")


@_sum_over_ranks.register("Function", "Tensor")
def _sum_one(all_reduce, x):
    return all_reduce(x)


class Sum(nn.Cell):
    """construct: (loss, count, gradients) of this rank -> the same, added up over all ranks.

    One AllReduce for each tensor; on Ascend MindSpore fuses them into buckets and overlaps them with the backward pass.
    """

    def __init__(self):
        super().__init__(auto_prefix=False)
        self.all_reduce, self.map = ops.AllReduce(), ops.HyperMap()

    def construct(self, loss, count, gradients):
        return self.all_reduce(loss), self.all_reduce(count), self.map(F.partial(_sum_over_ranks, self.all_reduce), gradients)


class FusedSum(nn.Cell):
    """The same by one AllReduce of everything.

    For CPU, where MindSpore's communication fusion has no effect and each AllReduce costs about a millisecond whatever its size.
    """

    def __init__(self, weights: ParameterTuple):
        super().__init__(auto_prefix=False)
        self.shapes = tuple(w.shape for w in weights)
        self.ends = tuple(int(end) for end in np.cumsum([w.size for w in weights]))
        self.all_reduce, self.concat, self.reshape = ops.AllReduce(), ops.Concat(), ops.Reshape()

    def construct(self, loss, count, gradients):
        parts = ()
        for gradient in gradients:
            parts += (self.reshape(gradient, (-1,)),)
        total = self.all_reduce(self.concat(parts + (self.reshape(loss, (1,)), self.reshape(count, (1,)))))
        sums, start = (), 0
        for i in range(len(self.shapes)):
            sums += (self.reshape(total[start:self.ends[i]], self.shapes[i]),)
            start = self.ends[i]
        return total[start], total[start + 1], sums


def sum_over_ranks(weights: ParameterTuple) -> nn.Cell:
    """The form for this device."""
    return FusedSum(weights) if ms.get_context("device_target") == "CPU" else Sum()
