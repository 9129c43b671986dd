"""Logits without a cache: what decoding is held against, in results and in speed."""
import mindspore as ms
from mindspore import nn, ops

from model.gpt import GPT, Head


class NextTokenLogits(nn.Cell):
    """ids int32 [batch, seq], last int32 [batch] (index of each row's last token) -> logits float32 [batch, vocab].

    What stands behind the last token is not seen: attention is causal.
    """

    def __init__(self, gpt: GPT):
        super().__init__(auto_prefix=False)
        self.gpt, self.head, self.gather, self.vocab_size = gpt, Head(), ops.Gather(), gpt.vocab_size

    def construct(self, ids, last):
        batch, t = ids.shape
        x, table = self.gpt(ids, ops.zeros((batch,), ms.int32))
        rows = last + ops.arange(0, batch * t, t).astype(ms.int32)
        return self.head(self.gather(x, rows, 0), table)[:, :self.vocab_size]
