"""Causal self-attention."""
import functools
import math

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from model import cpu
from model.config import ModelConfig
from model.layers import Corner, Dropout, Linear, on_cpu
from parallel.mesh import Mesh


@functools.cache
def causal_mask(seq_length: int) -> Tensor:
    """Float32 [seq, seq]: 0 where position i may see position j <= i, elsewhere less than any score that training can have."""
    return Tensor(np.triu(np.full((seq_length, seq_length), -1e30, np.float32), 1))


class AttentionCore(nn.Cell):
    """softmax(q k^T / sqrt(d) + causal mask) v by MindSpore's kernels, and the softmax; q, k, v, y [batch, heads, seq, d]."""

    def __init__(self, config: ModelConfig, salt: int):
        super().__init__()
        self.scores, self.weigh = ops.BatchMatMul(transpose_b=True), ops.BatchMatMul()
        self.mul, self.add, self.softmax = ops.Mul(), ops.Add(), ops.Softmax(-1)
        self.scale = Tensor(1.0 / math.sqrt(config.head_size), ms.float32)
        self.mask, self.corner = causal_mask(config.seq_length), Corner(2)
        self.dropout = Dropout(config.dropout, (1, config.num_heads, 1, config.seq_length), salt)

    def construct(self, q, k, v, keys):
        t = q.shape[2]
        p = self.softmax(self.add(self.mul(self.scores(q, k), self.scale), self.corner(self.mask, (t, t))))
        return self.weigh(self.dropout(p, keys), v), p

    def shard(self, mesh: Mesh) -> None:
        """Samples over dp, heads over tp."""
        parts = (mesh.dp, mesh.tp, 1, 1)
        self.corner.shard()
        self.scores.shard((parts, parts))
        self.mul.shard((parts, ()))
        self.add.shard((parts, (1, 1)))
        self.softmax.shard((parts,))
        self.dropout.shard(parts)
        self.weigh.shard((parts, parts))


class CausalSelfAttention(nn.Cell):
    """Multi-head attention in which a position sees itself and those before it.

    construct: [batch * seq, hidden] -> (the same, the weights of the values [batch, heads, seq, seq]).
    """

    def __init__(self, config: ModelConfig, salt: int):
        super().__init__()
        h = config.hidden_size
        self.num_heads, self.head_size = config.num_heads, config.head_size
        self.query, self.key, self.value = (Linear(h, h, "column") for _ in range(3))
        self.output = Linear(h, h, "row")
        # The hand-written gradient of the CPU form knows no dropout.
        self.core = cpu.AttentionCore(config.head_size, causal_mask(config.seq_length)) \
            if on_cpu() and config.dropout == 0 else AttentionCore(config, salt)
        self.reshape = ops.Reshape()
        self.split_q, self.split_k, self.split_v, self.join = (ops.Transpose() for _ in range(4))

    def construct(self, x, keys, batch):
        t = x.shape[0] // batch
        shape, swap = (batch, t, self.num_heads, self.head_size), (0, 2, 1, 3)
        q = self.split_q(self.reshape(self.query(x), shape), swap)
        k = self.split_k(self.reshape(self.key(x), shape), swap)
        v = self.split_v(self.reshape(self.value(x), shape), swap)
        y, weights = self.core(q, k, v, keys)
        return self.output(self.reshape(self.join(y, swap), x.shape)), weights

    def shard(self, mesh: Mesh) -> None:
        """Heads over tp."""
        for linear in (self.query, self.key, self.value, self.output):
            linear.shard(mesh)
        for split in (self.split_q, self.split_k, self.split_v):
            split.shard(((mesh.dp, 1, mesh.tp, 1),))
        self.core.shard(mesh)
        self.join.shard(((mesh.dp, mesh.tp, 1, 1),))
