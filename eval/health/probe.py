"""Activations and attention of each block, by a forward pass over a small fixed batch."""
import math

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from eval.health.histogram import Histogram
from eval.health.layers import layer_names
from eval.step import mode_kept
from model.gpt import GPT
from parallel.mesh import Mesh

MAX_LENGTH = 256     # tokens of a sample: attention's figures take memory by its square
ZERO = 1e-6          # what is smaller after the MLP's activation gives nothing
SAMPLE = 4096        # values of a block's output that its histogram shows
FIGURES = ("mean", "std", "abs_max", "zeros", "saturated", "attention_entropy", "attention_entropy_min")


class ProbeStep(nn.Cell):
    """ids int32 [batch, seq] -> (figures of each block, as FIGURES, [blocks, 7]; samples of its output [blocks, n]), float32.

    mean, std, abs_max: of the block's output, the residual stream; zeros, saturated: the share of the values after the MLP's
    activation (GELU, SiLU) that are smaller than ZERO, and of those before it that are below its `saturated`; attention_entropy:
    of the weights of each position, divided by the largest that it could be, log(how many it sees), as the mean over all and of
    the head that has the least.

    Args:
        batch, seq: of the whole batch, over all ranks.
    """

    def __init__(self, gpt: GPT, batch: int, seq: int):
        super().__init__(auto_prefix=False)
        self.gpt, self.positions, hidden = gpt, Tensor(np.zeros(batch), ms.int32), gpt.embedding.token.shape[1]
        self.moments, self.entropy, self.small, self.low = Moments(), Entropy(batch, seq), ShareBelow(ZERO), \
            ShareBelow(gpt.activation.saturated)
        self.activation, self.abs = gpt.activation(), ops.Abs()
        rows = np.linspace(0, batch * seq - 1, min(batch * seq, max(1, SAMPLE // hidden))).astype(np.int32)
        self.rows, self.gather, self.reshape = Tensor(rows), ops.Gather(), ops.Reshape()
        self.stack, self.stack_figures, self.stack_samples, self.cast = ops.Stack(), ops.Stack(), ops.Stack(), ops.Cast()
        if gpt.precision.in_half:  # what is looked at may be half, the figures are not
            for cell in (self.moments, self.entropy, self.small, self.low, self.activation):
                cell.to_float(ms.float32)

    def construct(self, ids):
        gpt = self.gpt
        x = gpt.embedding(ids, gpt.row_keys(self.positions, ids.shape[1]))
        figures, samples = (), ()
        for block in gpt.blocks:
            x, weights, inner = block(x, self.positions)
            shares = self.small(self.abs(self.activation(inner))), self.low(inner)
            figures += (self.stack((*self.moments(x), *shares, *self.entropy(weights))),)
            samples += (self.reshape(self.gather(x, self.rows, 0), (-1,)),)
        return self.stack_figures(figures), self.cast(self.stack_samples(samples), ms.float32)

    def shard(self, mesh: Mesh) -> None:
        """The model as ever; each rank gathers the small batch's activations and sees them whole."""
        self.gpt.shard(mesh)
        for cell in (self.moments, self.entropy, self.small, self.low):
            cell.shard()
        self.activation.shard(mesh)
        self.abs.shard(((mesh.dp, mesh.tp),))
        self.gather.shard(((1, 1), (1,)))
        self.stack.shard(((),) * len(FIGURES))
        for stack in (self.stack_figures, self.stack_samples):
            stack.shard(((1,),) * len(self.gpt.blocks))


class Moments(nn.Cell):
    """[rows, hidden] -> mean, standard deviation, largest absolute value; scalars."""

    def __init__(self):
        super().__init__()
        self.mean, self.centre, self.square, self.mean_square = ops.ReduceMean(), ops.Sub(), ops.Mul(), ops.ReduceMean()
        self.sqrt, self.abs, self.max = ops.Sqrt(), ops.Abs(), ops.ReduceMax()

    def construct(self, x):
        mean = self.mean(x)
        centred = self.centre(x, mean)
        return mean, self.sqrt(self.mean_square(self.square(centred, centred))), self.max(self.abs(x))

    def shard(self) -> None:
        """Each rank the whole."""
        whole = (1, 1)
        for one in (self.mean, self.mean_square, self.abs, self.max):
            one.shard((whole,))
        self.centre.shard((whole, ()))
        self.square.shard((whole, whole))
        self.sqrt.shard(((),))


class ShareBelow(nn.Cell):
    """[rows, n] -> the share of the values that are below a limit; scalar."""

    def __init__(self, limit: float):
        super().__init__()
        self.limit, self.less, self.cast, self.mean = Tensor(limit, ms.float32), ops.Less(), ops.Cast(), ops.ReduceMean()

    def construct(self, x):
        return self.mean(self.cast(self.less(x, self.limit), ms.float32))

    def shard(self) -> None:
        """Each rank the whole."""
        self.less.shard(((1, 1), ()))
        for one in (self.cast, self.mean):
            one.shard(((1, 1),))


class Entropy(nn.Cell):
    """Weights [batch, heads, seq, seq] -> their entropy as a share of the largest, the mean over all and the least head's."""

    def __init__(self, batch: int, seq: int):
        super().__init__()
        largest = np.log(np.arange(1, seq + 1))  # the first position sees itself alone: no choice, no entropy
        factor = np.divide(-1.0, largest, out=np.zeros(seq), where=largest > 0) / (max(seq - 1, 1) * batch)
        self.factor, self.smallest = Tensor(factor.reshape(1, 1, seq, 1), ms.float32), Tensor(1e-30, ms.float32)
        self.maximum, self.log, self.product, self.weigh = ops.Maximum(), ops.Log(), ops.Mul(), ops.Mul()
        self.sum, self.mean, self.min = ops.ReduceSum(), ops.ReduceMean(), ops.ReduceMin()

    def construct(self, weights):
        logs = self.log(self.maximum(weights, self.smallest))
        heads = self.sum(self.weigh(self.product(weights, logs), self.factor), (0, 2, 3))
        return self.mean(heads), self.min(heads)

    def shard(self) -> None:
        """Each rank the whole."""
        whole = (1, 1, 1, 1)
        self.maximum.shard((whole, ()))
        for one in (self.log, self.sum):
            one.shard((whole,))
        for mul in (self.product, self.weigh):
            mul.shard((whole, whole))
        for one in (self.mean, self.min):
            one.shard(((1,),))


def probe_ids(tokens: np.ndarray) -> np.ndarray:
    """int32 [batch, seq + 1] -> what the model reads of it, MAX_LENGTH tokens of each sample at most: int32 [batch, seq]."""
    return np.ascontiguousarray(tokens[:, :-1][:, :MAX_LENGTH], np.int32)


class Probe:
    """Looks at the same samples each time.

    Args:
        ids: of the whole batch, as `probe_ids` cuts it.
        step: its ProbeStep as it is to be called.
        part: which part of the batch this rank gives it, and of how many.
    """

    def __init__(self, gpt: GPT, ids: np.ndarray, step: nn.Cell, part: tuple[int, int] = (0, 1)):
        self.gpt, self.step, self.ids = gpt, step, Tensor(np.split(ids, part[1])[part[0]])
        self.names = layer_names(len(gpt.blocks))[1:-1]

    def run(self, histograms: bool) -> tuple[dict[str, dict], dict[str, Histogram]]:
        """Each block's figures, and histograms of a sample of its output; the GPT stays in its mode."""
        with mode_kept(self.gpt):
            self.gpt.set_train(False)
            figures, samples = (x.asnumpy() for x in self.step(self.ids))
        pictures = {name: Histogram.of(row) for name, row in zip(self.names, samples, strict=True)} if histograms else {}
        return {name: _figures(row) for name, row in zip(self.names, figures, strict=True)}, pictures


def _figures(row: np.ndarray) -> dict[str, float | None]:
    """By name; None where it is not finite. Shares of values that are not finite say nothing either."""
    found = {key: float(value) if math.isfinite(value) else None for key, value in zip(FIGURES, row, strict=True)}
    return found | (dict.fromkeys(("zeros", "saturated")) if found["mean"] is None else {})
