"""Incremental decoding: keys and values of the tokens so far are kept, so that a new token costs one position and not all.

The cache has `batch` rows, each for one text, and `window` slots in a row, one for each token of the text's context. The cells use
the GPT's own Parameters and nothing that depends on its training mode: there is no dropout here.
"""
import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import Zero, initializer

from model.attention import CausalSelfAttention, causal_mask
from model.gpt import GPT, Head

# Tokens of a prompt that go through the model at once. Shapes are fixed, so a shorter prompt costs as much.
PIECE = 64


class CachedAttention(nn.Cell):
    """Attention of t new tokens in each of n rows to the tokens of their row: [n * t, hidden] -> the same.

    The cache is a pair of Parameters that are written in place: passed through the graph as tensors it was slower on CPU by a
    quarter, as each step then allocates and copies it.

    Args:
        attention: the GPT's.
        index: number of its block, which names the cache.
    """

    def __init__(self, attention: CausalSelfAttention, batch: int, window: int, index: int):
        super().__init__(auto_prefix=False)
        self.attention, self.scale = attention, 1.0 / math.sqrt(attention.head_size)
        shape = (batch, attention.num_heads, window, attention.head_size)
        self.keys, self.values = (Parameter(initializer(Zero(), shape, ms.float32), f"cache.{index}.{kind}", requires_grad=False)
                                  for kind in ("keys", "values"))
        self.write, self.gather, self.reshape, self.transpose = ops.ScatterNdUpdate(), ops.Gather(), ops.Reshape(), ops.Transpose()
        self.scores, self.weigh, self.softmax = ops.BatchMatMul(transpose_b=True), ops.BatchMatMul(), ops.Softmax(-1)

    def construct(self, x, slots, mask, rows):
        """slots int32 [n, t, heads, 3] (row, head, slot), mask float32 [n, heads, t, window], rows int32 [n] or None: all."""
        n, heads, t, _ = mask.shape
        split = (n, t, heads, -1)
        k = self.write(self.keys, slots, self.reshape(self.attention.key(x), split))
        v = self.write(self.values, slots, self.reshape(self.attention.value(x), split))
        if rows is not None:
            k, v = self.gather(k, rows, 0), self.gather(v, rows, 0)
        q = self.swap(self.attention.query(x) * self.scale, split)
        y = self.weigh(self.softmax(self.scores(q, k) + mask), v)
        return self.attention.output(self.reshape(self.swap(y, (n, heads, t, -1)), x.shape))

    def swap(self, x, shape):
        """x as `shape`, its two middle axes exchanged."""
        if shape[1] == 1 or shape[2] == 1:
            return self.reshape(x, (shape[0], shape[2], shape[1], -1))
        return self.transpose(self.reshape(x, shape), (0, 2, 1, 3))


class Cached(nn.Cell):
    """The GPT up to its last block: ids, positions int32 [n, t], rows int32 [n] or None (all) -> hidden state [n * t, hidden]."""

    def __init__(self, gpt: GPT, batch: int, window: int):
        super().__init__(auto_prefix=False)
        self.gpt, self.heads = gpt, gpt.blocks[0].attention.num_heads
        self.attentions = nn.CellList([CachedAttention(block.attention, batch, window, i) for i, block in enumerate(gpt.blocks)],
                                      auto_prefix=False)
        self.gather, self.reshape, self.stack = ops.Gather(), ops.Reshape(), ops.Stack(-1)
        self.all_rows, self.all_heads = (Tensor(np.arange(n), ms.int32) for n in (batch, self.heads))
        self.mask = causal_mask(window)

    def construct(self, ids, positions, rows):
        n, t = ids.shape
        shape = (n, t, self.heads)
        row = self.reshape(self.all_rows if rows is None else rows, (n, 1, 1))
        slots = self.stack([ops.broadcast_to(x, shape) for x in (row, self.all_heads, self.reshape(positions, (n, t, 1)))])
        mask = self.gather(self.mask, ops.broadcast_to(self.reshape(positions, (n, 1, t)), (n, self.heads, t)), 0)
        x = self.gather(self.gpt.embedding.token, ids, 0) + self.gather(self.gpt.embedding.position, positions, 0)
        x = self.reshape(x, (n * t, -1))
        for block, attention in zip(self.gpt.blocks, self.attentions):
            x = x + attention(block.norm1(x), slots, mask, rows)
            x = x + block.mlp(block.norm2(x))
        return x


class Logits(nn.Cell):
    """Hidden state [rows, hidden], indices of some rows int32 [n] or None (all) -> logits float32 [n, table rows].

    A graph of its own: behind writes to the cache in the same graph MindSpore would copy the token table before each of its uses.
    """

    def __init__(self, gpt: GPT):
        super().__init__(auto_prefix=False)
        self.gpt, self.head, self.gather = gpt, Head(), ops.Gather()

    def construct(self, x, rows):
        if rows is not None:
            x = self.gather(x, rows, 0)
        return self.head(self.gpt.norm(x), self.gpt.embedding.token)


class Decoder:
    """The cells over one cache, for lists of tokens. Two compiled graphs, whatever the lengths: of one token, and of a piece."""

    def __init__(self, gpt: GPT, batch: int, window: int):
        self.batch, self.window, self.piece, self.vocab_size = batch, window, min(window, PIECE), gpt.vocab_size
        self.cached, self.logits = Cached(gpt, batch, window), Logits(gpt)

    def prefill(self, row: int, tokens: list[int]) -> np.ndarray:
        """Put a text of 1 to `window` tokens in the place of what the row had: the logits behind it, float32 [vocab]."""
        for begin in range(0, len(tokens), self.piece):
            begin = min(begin, self.window - self.piece)  # the last piece may overlap the one before
            part = tokens[begin:begin + self.piece]
            ids = part + [0] * (self.piece - len(part))  # what stands behind the text is overwritten before it is seen
            x = self.cached(_int32([ids]), _int32([range(begin, begin + self.piece)]), _int32([row]))
        return self.logits(x, _int32([len(part) - 1])).asnumpy()[0, :self.vocab_size]

    def step(self, ids: list[int], positions: list[int]) -> np.ndarray:
        """Put one token into each row, at its place in the row's text: the logits behind them, float32 [batch, vocab]."""
        x = self.cached(_int32([[i] for i in ids]), _int32([[i] for i in positions]), None)
        return self.logits(x, None).asnumpy()[:, :self.vocab_size]

    def clear(self, row: int) -> None:
        """Zeros in all slots of a row: what is not finite would be seen through the mask, as 0 * NaN is NaN."""
        for attention in self.cached.attentions:
            for p in (attention.keys, attention.values):
                value = p.asnumpy().copy()
                value[row] = 0
                p.set_data(Tensor(value))


def _int32(numbers: list) -> Tensor:
    return Tensor(np.array(numbers, np.int32))
