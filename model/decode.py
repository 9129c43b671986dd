"""Incremental decoding: keys and values of the tokens so far are kept, so that a new token costs one position and not all.

The cache has `batch` rows, each for one text, and `window` slots in a row, one for each token of the text's context. The cells
compute with the GPT's own Parameters, and nothing in them depends on its training mode: there is no dropout.
"""
import math

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import Zero, initializer

from model.attention import causal_mask
from model.gpt import GPT, Block, Head
from model.llama import GroupedQueryAttention

# Tokens of a prompt that go through the model at once. Shapes are fixed, so a shorter prompt costs as much.
PIECE = 64


class CachedBlock(nn.Cell):
    """A block of the GPT for t new tokens in each of n rows, which see the tokens of their row: [n * t, hidden] -> the same.

    The cache is two Parameters, float32 [batch, kv heads, window, head size], written in place. As tensors that go in and come
    out they took a quarter longer on CPU.

    Args:
        index: the block's, which names its cache.
    """

    def __init__(self, block: Block, batch: int, window: int, index: int):
        super().__init__(auto_prefix=False)  # parameters keep the names that they have in the GPT
        self.block, self.scale = block, 1.0 / math.sqrt(block.attention.head_size)
        self.rotary = isinstance(block.attention, GroupedQueryAttention)
        shape = (batch, block.attention.kv_heads, window, block.attention.head_size)
        self.keys, self.values = (Parameter(initializer(Zero(), shape, ms.float32), f"cache.{index}.{kind}", requires_grad=False)
                                  for kind in ("keys", "values"))
        self.write, self.gather = ops.ScatterNdUpdate(), ops.Gather()
        self.scores, self.weigh, self.softmax = ops.BatchMatMul(transpose_b=True), ops.BatchMatMul(), ops.Softmax(-1)
        self.reshape, self.transpose, self.cast = ops.Reshape(), ops.Transpose(), ops.Cast()

    def construct(self, x, slots, mask, rows, cos, sin):
        """slots int32 [n, t, kv heads, 3] (row, head, slot), mask float32 [n, heads, t, window], rows int32 [n] or None: all,
        cos, sin: of rotary positions, float32 [n, t, 1, head size], or None."""
        x = x + self.attend(self.block.norm1(x), slots, mask, rows, cos, sin)
        return x + self.block.mlp(self.block.norm2(x))[0]

    def attend(self, x, slots, mask, rows, cos, sin):
        """Attention to the row's slots, once the new tokens have theirs. Queries that share keys are rows of one product."""
        attention, (n, heads, t, window) = self.block.attention, mask.shape
        size, few = attention.head_size, attention.kv_heads
        q = self.in_float32(attention.query(x), (n, t, heads, size))
        k = self.in_float32(attention.key(x), (n, t, few, size))
        if self.rotary:
            q, k = attention.rotate_q(q, cos, sin), attention.rotate_k(k, cos, sin)
            q, k = self.cast(q, ms.float32), self.cast(k, ms.float32)
        k = self.write(self.keys, slots, k)
        v = self.write(self.values, slots, self.in_float32(attention.value(x), (n, t, few, size)))
        if rows is not None:
            k, v = self.gather(k, rows, 0), self.gather(v, rows, 0)
        q = self.reshape(self.swap(q * self.scale), (n, few, heads // few * t, size))
        mask = self.reshape(mask, (n, few, heads // few * t, window))
        y = self.weigh(self.softmax(self.scores(q, k) + mask), v)
        return attention.output(self.reshape(self.swap(self.reshape(y, (n, heads, t, size))), x.shape))

    def in_float32(self, x, shape):
        """What a product in half precision gave, for the cache."""
        return self.reshape(self.cast(x, ms.float32), shape)

    def swap(self, x):
        """[n, a, b, d] -> [n, b, a, d]."""
        n, a, b, d = x.shape
        return self.reshape(x, (n, b, a, d)) if a == 1 or b == 1 else self.transpose(x, (0, 2, 1, 3))


class Cached(nn.Cell):
    """The GPT up to its last block: ids, positions int32 [n, t], rows int32 [n] or None (all) -> hidden state [n * t, hidden]."""

    def __init__(self, gpt: GPT, batch: int, window: int):
        super().__init__(auto_prefix=False)
        attention = gpt.blocks[0].attention
        self.embedding, self.heads, self.kv_heads = gpt.embedding, attention.num_heads, attention.kv_heads
        self.rotary = isinstance(attention, GroupedQueryAttention)
        if self.rotary:
            self.cos, self.sin = attention.cos, attention.sin
        self.blocks = nn.CellList([CachedBlock(block, batch, window, i) for i, block in enumerate(gpt.blocks)], auto_prefix=False)
        self.gather, self.reshape, self.stack = ops.Gather(), ops.Reshape(), ops.Stack(-1)
        self.all_rows, self.all_heads = (Tensor(np.arange(size), ms.int32) for size in (batch, self.kv_heads))
        self.mask = causal_mask(window)

    def construct(self, ids, positions, rows):
        n, t = ids.shape
        shape = (n, t, self.kv_heads)
        row = self.reshape(self.all_rows if rows is None else rows, (n, 1, 1))
        slots = self.stack([ops.broadcast_to(x, shape) for x in (row, self.all_heads, self.reshape(positions, (n, t, 1)))])
        mask = self.gather(self.mask, ops.broadcast_to(self.reshape(positions, (n, 1, t)), (n, self.heads, t)), 0)
        x, cos, sin = self.gather(self.embedding.token, ids, 0), None, None
        if self.rotary:
            cos = self.reshape(self.gather(self.cos, positions, 0), (n, t, 1, -1))
            sin = self.reshape(self.gather(self.sin, positions, 0), (n, t, 1, -1))
        else:
            x = x + self.gather(self.embedding.position, positions, 0)
        x = self.reshape(x, (n * t, -1))
        for block in self.blocks:
            x = block(x, slots, mask, rows, cos, sin)
        return x


class Logits(nn.Cell):
    """Hidden state [rows, hidden], indices of some rows int32 [n] or None (all) -> logits float32 [n, table rows].

    A graph of its own: in a graph with writes to the cache MindSpore copies the token table before each of its two uses.
    """

    def __init__(self, gpt: GPT):
        super().__init__(auto_prefix=False)
        self.norm, self.table, self.head = gpt.norm, gpt.head_cell(), Head().to_float(ms.float32)
        self.gather = ops.Gather()

    def construct(self, x, rows):
        if rows is not None:
            x = self.gather(x, rows, 0)
        return self.head(self.norm(x), self.table.token)


class Decoder:
    """The cells over one cache, for lists of tokens. Whatever the lengths, the graphs are those of one token and of a piece."""

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
        """Zeros in all slots of a row. What is not finite would be seen through the mask: 0 * NaN is NaN."""
        for block in self.cached.blocks:
            for p in (block.keys, block.values):
                value = p.asnumpy().copy()
                value[row] = 0
                p.set_data(Tensor(value))


def _int32(numbers: list) -> Tensor:
    return Tensor(np.array(numbers, np.int32))
