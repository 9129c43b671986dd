"""Llama's cells: RMSNorm, rotary positions, SwiGLU, grouped-query attention (Touvron et al., arXiv:2302.13971 and 2307.09288).

What stands around them, blocks, residual stream, head and loss, is the GPT's own (gpt.py, ARCHITECTURES).
"""
import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.ops.auto_generate import SiLU  # `ops` has it as a function alone, which takes no strategy

from model import cpu
from model.attention import attention_core
from model.config import ModelConfig
from model.layers import Corner, Dropout, Linear, parameter
from parallel.mesh import Mesh


class TokenEmbedding(nn.Cell):
    """Tokens alone, positions being attention's: int32 [batch, seq] -> [batch * seq, hidden].

    Args:
        table_rows: at least config.vocab_size; what is beyond it is padding, that tp may divide the table.
    """

    def __init__(self, config: ModelConfig, table_rows: int):
        super().__init__()
        self.token = parameter((table_rows, config.hidden_size))
        self.gather_token, self.reshape = ops.Gather(), ops.Reshape()
        self.dropout = Dropout(config.dropout, (1, config.hidden_size), 0)

    def construct(self, ids, keys):
        batch, t = ids.shape
        return self.dropout(self.reshape(self.gather_token(self.token, ids, 0), (batch * t, -1)), keys)

    def shard(self, mesh: Mesh) -> None:
        """The vocabulary over tp: each rank looks up what it has, and the parts are summed."""
        self.gather_token.shard(((mesh.tp, 1), (mesh.dp, 1)))
        self.dropout.shard((mesh.rows, 1))


class NormalizeRms(nn.Cell):
    """RMSNorm by MindSpore's own kernel, which is Ascend's alone: (y, 1 / root mean square)."""

    def __init__(self, eps: float):
        super().__init__()
        self.norm = ops.RmsNorm(eps)

    def construct(self, x, weight):
        return self.norm(x, weight)

    def shard(self, mesh: Mesh) -> None:
        """Rows over dp, with sequence parallelism also over tp."""
        self.norm.shard(((mesh.rows, 1), (1,)))


class RMSNorm(nn.Cell):
    """x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich, arXiv:1910.07467): [rows, hidden] -> [rows, hidden]."""

    def __init__(self, hidden_size: int, eps: float):
        super().__init__()
        self.weight = parameter((hidden_size,), 1.0)
        # In half precision too: there is no other kernel on CPU.
        on_cpu = ms.get_context("device_target") == "CPU"
        self.norm = cpu.cells().NormalizeRms(hidden_size, eps) if on_cpu else NormalizeRms(eps)

    def construct(self, x):
        return self.norm(x, self.weight)[0]

    def shard(self, mesh: Mesh) -> None:
        """Rows over dp, with sequence parallelism also over tp."""
        self.norm.shard(mesh)


def rotary_table(seq_length: int, head_size: int, theta: float) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines of the angles position / theta^(2 i / head_size), for elements i and i + head_size / 2: float32 [seq,
    head_size] each."""
    angles = np.arange(seq_length)[:, None] / theta ** (np.arange(0, head_size, 2) / head_size)
    return tuple(np.concatenate((f(angles), f(angles)), -1).astype(np.float32) for f in (np.cos, np.sin))


class Rotary(nn.Cell):
    """Turns the pairs (i, i + d / 2) of x by their angles (Su et al., arXiv:2104.09864; paired as transformers' Llama has them).

    construct: x [batch, seq, heads, d], cosines and sines that broadcast to it -> x's shape.
    """

    def __init__(self):
        super().__init__()
        self.split, self.neg, self.concat = ops.Split(-1, 2), ops.Neg(), ops.Concat(-1)
        self.mul_cos, self.mul_sin, self.add = ops.Mul(), ops.Mul(), ops.Add()

    def construct(self, x, cos, sin):
        first, second = self.split(x)
        return self.add(self.mul_cos(x, cos), self.mul_sin(self.concat((self.neg(second), first)), sin))

    def shard(self, parts: tuple[int, ...]) -> None:
        """Cut x into `parts`; cosines and sines, [seq, 1, d], are whole."""
        for one in (self.split, self.neg):
            one.shard((parts,))
        self.concat.shard((parts, parts))
        for mul in (self.mul_cos, self.mul_sin):
            mul.shard((parts, (1, 1, 1)))
        self.add.shard((parts, parts))


class GroupedQueryAttention(nn.Cell):
    """Causal attention with rotary positions; groups of queries share keys and values (Ainslie et al., arXiv:2305.13245).

    construct: [batch * seq, hidden] -> (the same, the weights of the values [batch, heads, seq, seq]).
    """

    def __init__(self, config: ModelConfig, salt: int):
        super().__init__()
        h = config.hidden_size
        self.num_heads, self.kv_heads, self.head_size = config.num_heads, config.kv_heads, config.head_size
        self.query = Linear(h, h, "column", bias=False)
        self.key, self.value = (Linear(h, self.kv_heads * self.head_size, "column", bias=False) for _ in range(2))
        self.output = Linear(h, h, "row", bias=False)
        self.core = attention_core(config, salt)
        self.cos, self.sin = map(Tensor, rotary_table(config.seq_length, config.head_size, config.rope_theta))
        self.corner_cos, self.corner_sin, self.rotate_q, self.rotate_k = Corner(2), Corner(2), Rotary(), Rotary()
        self.reshape = ops.Reshape()

    def construct(self, x, keys, batch):
        t, d = x.shape[0] // batch, self.head_size
        shape, kv_shape, turns = (batch, t, self.num_heads, d), (batch, t, self.kv_heads, d), (t, 1, d)
        cos = self.reshape(self.corner_cos(self.cos, (t, d)), turns)
        sin = self.reshape(self.corner_sin(self.sin, (t, d)), turns)
        q = self.rotate_q(self.reshape(self.query(x), shape), cos, sin)
        k = self.rotate_k(self.reshape(self.key(x), kv_shape), cos, sin)
        y, weights = self.core(q, k, self.reshape(self.value(x), kv_shape), keys)
        return self.output(self.reshape(y, x.shape)), weights

    def shard(self, mesh: Mesh) -> None:
        """Heads over tp, those of queries and those of keys and values."""
        for cell in (self.query, self.key, self.value, self.output, self.core):
            cell.shard(mesh)
        for corner in (self.corner_cos, self.corner_sin):
            corner.shard()
        for rotate in (self.rotate_q, self.rotate_k):
            rotate.shard((mesh.dp, 1, mesh.tp, 1))


class Silu(nn.Cell):
    """x sigmoid(x)."""

    saturated = -6.0  # below it the gradient is under 1.3 %, and what goes in hardly learns

    def __init__(self):
        super().__init__()
        self.silu = SiLU()

    def construct(self, x):
        return self.silu(x)

    def shard(self, mesh: Mesh) -> None:
        """Between a column- and a row-split Linear."""
        self.silu.shard(((mesh.dp, mesh.tp),))


class Gate(nn.Cell):
    """silu(gate) * up: [rows, inner width] twice -> the same."""

    def __init__(self):
        super().__init__()
        self.silu, self.mul = Silu(), ops.Mul()

    def construct(self, gate, up):
        return self.mul(self.silu(gate), up)

    def shard(self, mesh: Mesh) -> None:
        """Between column- and row-split Linears."""
        self.silu.shard(mesh)
        self.mul.shard(((mesh.dp, mesh.tp), (mesh.dp, mesh.tp)))


class SwiGLU(nn.Cell):
    """down(silu(gate(x)) * up(x)) (Shazeer, arXiv:2002.05202): [rows, hidden] -> (the same, what goes into SiLU [rows, inner
    width])."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        h, inner = config.hidden_size, config.ffn_size
        self.gate, self.up = (Linear(h, inner, "column", bias=False) for _ in range(2))
        self.act, self.down = Gate(), Linear(inner, h, "row", bias=False)

    def construct(self, x):
        gate = self.gate(x)
        return self.down(self.act(gate, self.up(x))), gate

    def shard(self, mesh: Mesh) -> None:
        """The inner width over tp."""
        for cell in (self.gate, self.up, self.act, self.down):
            cell.shard(mesh)
