"""The forward pass of evaluation as one compiled cell."""
from contextlib import contextmanager

import mindspore as ms
from mindspore import Tensor, nn, ops

from model.gpt import GPT, head_loss


@contextmanager
def mode_kept(gpt: GPT):
    """Leave the GPT in the mode, training or not, that it was in: `Model.eval` does not, also not when it raises."""
    training = gpt.training
    try:
        yield
    finally:
        gpt.set_train(training)


class EvalStep(nn.Cell):
    """tokens int32 [batch, seq + 1] -> (loss sum, number of tokens, right guesses) of each sample, float32 [batch].

    Position i predicts token i + 1; a label that is `pad` does not count, so a row of pads adds nothing to any sum.
    """

    def __init__(self, gpt: GPT, pad_id: int):
        super().__init__(auto_prefix=False)
        self.gpt, self.head_loss = gpt, head_loss()
        self.pad = Tensor(pad_id, ms.int32)
        self.slice_ids, self.slice_labels, self.reshape = ops.StridedSlice(), ops.StridedSlice(), ops.Reshape()
        self.not_equal, self.equal, self.cast, self.sum = ops.NotEqual(), ops.Equal(), ops.Cast(), ops.ReduceSum()
        self.argmax = ops.Argmax(-1)

    def construct(self, tokens):
        batch, t = tokens.shape
        ids = self.slice_ids(tokens, (0, 0), (batch, t - 1), (1, 1))
        labels = self.reshape(self.slice_labels(tokens, (0, 1), (batch, t), (1, 1)), (-1,))
        x, table = self.gpt(ids, ops.zeros((batch,), ms.int32))
        losses, scores = self.head_loss(x, table, labels)
        mask = self.cast(self.not_equal(labels, self.pad), ms.float32)
        hits = self.cast(self.equal(self.argmax(scores), labels), ms.float32)
        rows = (batch, t - 1)
        return (self.sum(self.reshape(losses * mask, rows), -1), self.sum(self.reshape(mask, rows), -1),
                self.sum(self.reshape(hits * mask, rows), -1))
