"""Causal self-attention."""
import mindspore as ms
from mindspore import Tensor, nn, ops
from mindspore.ops.operations.nn_ops import FlashAttentionScore

from model import cpu
from model.config import ModelConfig
from model.heads import Repeat
from model.layers import Corner, Dropout, Linear, on_cpu
from model.masks import causal_mask, fused_mask
from parallel.mesh import Mesh


class Scores(nn.Cell):
    """q k^T / sqrt(d): [batch, heads, seq, d] twice -> [batch, heads, seq, seq]. q is divided, that half precision has room."""

    def __init__(self, head_size: int):
        super().__init__()
        self.mul, self.product, self.scale = ops.Mul(), ops.BatchMatMul(transpose_b=True), Tensor(head_size ** -0.5, ms.float32)

    def construct(self, q, k):
        return self.product(self.mul(q, self.scale), k)

    def shard(self, parts: tuple[int, ...]) -> None:
        """Cut q and k into `parts`."""
        self.mul.shard((parts, ()))
        self.product.shard((parts, parts))


class MaskedSoftmax(nn.Cell):
    """softmax(scores + causal mask) over the last axis: [batch, heads, seq, seq]."""

    def __init__(self, seq_length: int):
        super().__init__()
        self.mask, self.corner, self.add, self.softmax = causal_mask(seq_length), Corner(2), ops.Add(), ops.Softmax(-1)

    def construct(self, scores):
        return self.softmax(self.add(scores, self.corner(self.mask, scores.shape[2:])))

    def shard(self, parts: tuple[int, ...]) -> None:
        """Cut the scores into `parts`."""
        self.corner.shard()
        self.add.shard((parts, (1, 1)))
        self.softmax.shard((parts,))


class Weigh(nn.Cell):
    """p v: [batch, heads, seq, seq], [batch, heads, seq, d] -> [batch, heads, seq, d]."""

    def __init__(self):
        super().__init__()
        self.product = ops.BatchMatMul()

    def construct(self, p, v):
        return self.product(p, v)

    def shard(self, parts: tuple[int, ...]) -> None:
        """Cut p and v into `parts`."""
        self.product.shard((parts, parts))


class AttentionCore(nn.Cell):
    """softmax(q k^T / sqrt(d) + causal mask) v by MindSpore's kernels, and the softmax.

    construct: q [batch, seq, heads, d], k and v [batch, seq, kv heads, d], the dropout's keys -> (y like q, [batch, heads, seq,
        seq]).
    """

    def __init__(self, config: ModelConfig, salt: int):
        super().__init__()
        self.split_q, self.split_k, self.split_v, self.join = (ops.Transpose() for _ in range(4))
        self.groups = config.num_heads // config.kv_heads
        if self.groups > 1:
            self.repeat_k, self.repeat_v = (Repeat(self.groups) for _ in range(2))
        self.scores, self.softmax, self.weigh = Scores(config.head_size), MaskedSoftmax(config.seq_length), Weigh()
        self.dropout = Dropout(config.dropout, (1, config.num_heads, 1, config.seq_length), salt)

    def weights(self, q, k):
        """The softmax."""
        q, k = self.split_q(q, (0, 2, 1, 3)), self.split_k(k, (0, 2, 1, 3))
        return self.softmax(self.scores(q, k if self.groups == 1 else self.repeat_k(k)))

    def construct(self, q, k, v, keys):
        p, v = self.weights(q, k), self.split_v(v, (0, 2, 1, 3))
        y = self.weigh(self.dropout(p, keys), v if self.groups == 1 else self.repeat_v(v))
        return self.join(y, (0, 2, 1, 3)), p

    def shard(self, mesh: Mesh) -> None:
        """Samples over dp, heads over tp."""
        for split in (self.split_q, self.split_k, self.split_v):
            split.shard(((mesh.dp, 1, mesh.tp, 1),))
        if self.groups > 1:
            self.repeat_k.shard(mesh)
            self.repeat_v.shard(mesh)
        for cell in (self.scores, self.softmax, self.dropout, self.weigh):
            cell.shard((mesh.dp, mesh.tp, 1, 1))
        self.join.shard(((mesh.dp, mesh.tp, 1, 1),))


class FlashAttention(nn.Cell):
    """softmax(q k^T / sqrt(d) + causal mask) v by Ascend's fused kernel, which keeps no scores (Dao, arXiv:2307.08691).

    construct: q [batch, seq, heads, d], k and v [batch, seq, kv heads, d], in half precision; the softmax is float32 inside ->
        y like q.
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.mask, scale = fused_mask(), config.head_size ** -0.5
        self.flash = FlashAttentionScore(config.num_heads, scale_value=scale, input_layout="BSND", sparse_mode=2)  # 2: causal

    def construct(self, q, k, v):
        return self.flash(q, k, v, None, None, None, self.mask)[3]

    def shard(self, mesh: Mesh) -> None:
        """Samples over dp, heads over tp; every rank has the mask whole."""
        parts = (mesh.dp, 1, mesh.tp, 1)
        self.flash.shard((parts, parts, parts, (1, 1)))


class FusedAttentionCore(AttentionCore):
    """As AttentionCore, without dropout. The softmax is computed apart, for who watches: in training nobody does."""

    def __init__(self, config: ModelConfig, salt: int):
        super().__init__(config, salt)
        self.flash = FlashAttention(config)

    def construct(self, q, k, v, keys):
        return self.flash(q, k, v), self.weights(q, k)

    def shard(self, mesh: Mesh) -> None:
        """Samples over dp, heads over tp."""
        super().shard(mesh)
        self.flash.shard(mesh)


def attention_core(config: ModelConfig, salt: int) -> nn.Cell:
    """AttentionCore in this device's form. The hand-written gradient of the form for CPU knows no dropout.

    Args:
        config: flash_attention says whether the kernel can be had (GPT sees to it).
    """
    if config.flash_attention:
        return FusedAttentionCore(config, salt)
    return cpu.cells().AttentionCore(config) if on_cpu() and config.dropout == 0 else AttentionCore(config, salt)


class CausalSelfAttention(nn.Cell):
    """Multi-head attention in which a position sees itself and those before it.

    construct: [batch * seq, hidden] -> (the same, the weights of the values [batch, heads, seq, seq]).
    """

    def __init__(self, config: ModelConfig, salt: int):
        super().__init__()
        h = config.hidden_size
        self.num_heads, self.kv_heads, self.head_size = config.num_heads, config.num_heads, config.head_size
        self.query, self.key, self.value = (Linear(h, h, "column") for _ in range(3))
        self.output = Linear(h, h, "row")
        self.core = attention_core(config, salt)
        self.reshape = ops.Reshape()

    def construct(self, x, keys, batch):
        shape = (batch, x.shape[0] // batch, self.num_heads, self.head_size)
        q, k, v = self.query(x), self.key(x), self.value(x)
        y, weights = self.core(self.reshape(q, shape), self.reshape(k, shape), self.reshape(v, shape), keys)
        return self.output(self.reshape(y, x.shape)), weights

    def shard(self, mesh: Mesh) -> None:
        """Heads over tp."""
        for cell in (self.query, self.key, self.value, self.output, self.core):
            cell.shard(mesh)
