"""The forward pass of evaluation as one compiled cell."""
from contextlib import contextmanager

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from model.gpt import GPT, Labels, head_loss, put
from model.layers import Corner
from parallel.mesh import Mesh


@contextmanager
def mode_kept(gpt: GPT):
    """Leave the GPT in the mode, training or not, that it was in: `Model.eval` does not, also not when it raises."""
    training = gpt.training
    try:
        yield
    finally:
        gpt.set_train(training)


class EvalStep(nn.Cell):
    """tokens int32 [batch, seq + 1], first int32 [batch] -> (loss sum, tokens, right guesses) of each sample, float32 [batch].

    Position i predicts token i + 1. The first `first` labels of a sample do not count (0: all do), nor does a label that is
    `pad`, so a row of pads adds nothing to any sum. A guess is right if no token is likelier than the label.
    """

    def __init__(self, gpt: GPT, pad_id: int):
        super().__init__(auto_prefix=False)
        self.gpt, self.labels, self.head_loss = gpt, Labels(pad_id), head_loss(gpt)
        self.places, self.corner = Tensor(np.arange(gpt.seq_length), ms.int32), Corner(1)
        self.slice, self.reshape = ops.StridedSlice(), ops.Reshape()
        self.greater_equal, self.cast, self.mul_masks = ops.GreaterEqual(), ops.Cast(), ops.Mul()
        self.mul_losses, self.mul_hits = ops.Mul(), ops.Mul()
        self.sum_losses, self.sum_mask, self.sum_hits = ops.ReduceSum(), ops.ReduceSum(), ops.ReduceSum()

    def construct(self, tokens, first):
        batch, t = tokens.shape
        x, table = self.gpt(self.slice(tokens, (0, 0), (batch, t - 1), (1, 1)), first)  # a key of dropout, should it be on
        labels, mask = self.labels(tokens)
        losses, hits = self.head_loss(x, table, labels)[:2]
        rows = (batch, t - 1)
        places = self.reshape(self.corner(self.places, (t - 1,)), (1, t - 1))
        behind = self.cast(self.greater_equal(places, self.reshape(first, (batch, 1))), ms.float32)
        mask = self.mul_masks(self.reshape(mask, rows), behind)
        return (self.sum_losses(self.mul_losses(self.reshape(losses, rows), mask), -1),
                self.sum_mask(mask, -1),
                self.sum_hits(self.mul_hits(self.reshape(hits, rows), mask), -1))

    def shard(self, mesh: Mesh) -> None:
        """Say of every primitive how it is cut over dp and tp."""
        for cell in (self.gpt, self.labels, self.head_loss):
            cell.shard(mesh)
        rows = (mesh.dp, 1)
        self.corner.shard()
        self.greater_equal.shard(((1, 1), rows))
        for one in (self.slice, self.cast, self.sum_losses, self.sum_mask, self.sum_hits):
            one.shard((rows,))
        for mul in (self.mul_masks, self.mul_losses, self.mul_hits):
            mul.shard((rows, rows))

    def place(self, block_stages: list[tuple[int, int | None]]) -> None:
        """As GPT.place; head and loss go with the last block."""
        self.gpt.place(block_stages)
        put(self.head_loss, *block_stages[-1])

    @staticmethod
    def counts(mesh: Mesh) -> bool:
        """Whether this rank's sums are to be added up: those of the last stage, once for all ranks that share a layer."""
        return mesh.stage == mesh.pp - 1 and mesh.tp_rank == 0
