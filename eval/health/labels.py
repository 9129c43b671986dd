"""What the network is really trained on: which ids go into the model, and which labels into the loss, for tokens that are known.

The training's own `GPTLoss` is compiled around two cells that stand where the model and its head do, and keep what they are
given. So what is looked at is the code that trains, as it stands in this copy of the project, for the time of two slices.
"""
import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from data.tokenizer import PAD_ID
from model.gpt import GPTLoss
from model.precision import Precision


class _Kept(nn.Cell):
    """Keeps int32 [rows] and gives it back as float32."""

    def __init__(self, rows: int, name: str):
        super().__init__(auto_prefix=False)
        self.seen = Parameter(Tensor(np.full(rows, -1), ms.int32), name=name, requires_grad=False)
        self.reshape, self.cast = ops.Reshape(), ops.Cast()

    def construct(self, x):
        self.seen = self.reshape(x, (-1,))
        return self.cast(self.seen, ms.float32)


class _Model(_Kept):
    """In place of the GPT."""

    def __init__(self, rows: int):
        super().__init__(rows, "probe.ids")
        self.vocab_size, self.padding, self.on_cpu, self.precision = 1, 0, False, Precision()

    def construct(self, ids, positions):
        self.seen = self.reshape(ids, (-1,))
        x = self.cast(self.seen, ms.float32)
        return x, x


class _Head(_Kept):
    """In place of the head and its loss: each token's loss is 1."""

    def construct(self, x, table, labels):
        self.seen = self.reshape(labels, (-1,))
        loss = self.cast(self.seen, ms.float32) * 0.0 + 1.0
        return loss, loss


def what_is_trained(tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """int32 [batch, seq + 1] -> (ids that the model gets, labels that the loss gets, int32 [batch, seq]; how many count)."""
    shape = len(tokens), tokens.shape[1] - 1
    rows = shape[0] * shape[1]
    model = _Model(rows)
    network = GPTLoss(model, PAD_ID)
    network.head_loss = _Head(rows, "probe.labels")
    losses, count = network(Tensor(tokens), Tensor(np.zeros(len(tokens), np.int32))).asnumpy()
    if losses != count:
        raise RuntimeError(f"GPTLoss counts {count} labels and adds up {losses} losses of 1")
    return model.seen.asnumpy().reshape(shape), network.head_loss.seen.asnumpy().reshape(shape), int(count)


def wrong_labels(tokens: np.ndarray) -> float:
    """The share of a batch's positions whose id is not the token there, or whose label is not the token after it."""
    ids, labels, count = what_is_trained(tokens)
    wrong = ((ids != tokens[:, :-1]) | (labels != tokens[:, 1:])).mean()
    return float(max(wrong, abs(count - int((tokens[:, 1:] != PAD_ID).sum())) / labels.size))


def breaks(tokens: np.ndarray, stored: np.ndarray, following: np.ndarray) -> float:
    """The share of a batch's samples that do not agree with the packed stream: another sample than the file's, or one that the
    next sample does not go on from.

    Args:
        tokens: the batch, int32 [batch, seq + 1].
        stored: the same samples as the files have them.
        following: the samples after them; a sample's last token is the next one's first. Rows of pad where there is none.
    """
    other = int((tokens != stored).any(1).sum())
    apart = int(((tokens[:, -1] != following[:, 0]) & (tokens[:, -1] != PAD_ID) & (following[:, 0] != PAD_ID)).sum())
    return max(other, apart - 1) / len(tokens)  # one may be the last of a corpus, and full
