"""The GPT (GPT-2's architecture) and its token loss."""
import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from model import cpu
from model.attention import CausalSelfAttention
from model.config import ModelConfig
from model.layers import Dropout, Gelu, LayerNorm, Linear, RowKeys, on_cpu, parameter


class Embedding(nn.Cell):
    """Token plus position: int32 [batch, seq] -> (float32 [batch * seq, hidden], the token table [vocab, hidden])."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.token = parameter((config.vocab_size, config.hidden_size))
        self.position = parameter((config.seq_length, config.hidden_size))
        self.gather_token, self.gather_position, self.add, self.reshape = ops.Gather(), ops.Gather(), ops.Add(), ops.Reshape()
        self.positions = Tensor(np.arange(config.seq_length), ms.int32)

    def construct(self, ids):
        batch, t = ids.shape
        position = self.gather_position(self.position, self.positions[:t], 0)
        x = self.add(self.gather_token(self.token, ids, 0), self.reshape(position, (1, t, -1)))
        return self.reshape(x, (batch * t, -1)), self.token


class MLP(nn.Cell):
    """Linear, GELU, Linear: [rows, hidden] -> [rows, hidden]."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.up = Linear(config.hidden_size, config.ffn_size)
        self.gelu = Gelu()
        self.down = Linear(config.ffn_size, config.hidden_size)

    def construct(self, x):
        return self.down(self.gelu(self.up(x)))


class Block(nn.Cell):
    """Pre-LayerNorm block: x + attention(norm(x)), then x + mlp(norm(x)); [batch * seq, hidden] -> the same."""

    def __init__(self, config: ModelConfig, index: int):
        super().__init__()
        self.norm1, self.norm2 = (LayerNorm(config.hidden_size, config.layer_norm_eps) for _ in range(2))
        self.attention, self.mlp = CausalSelfAttention(config, salt=3 * index + 1), MLP(config)
        self.dropout1, self.dropout2 = (Dropout(config.dropout, (1, config.hidden_size), 3 * index + i) for i in (2, 3))
        self.add1, self.add2 = ops.Add(), ops.Add()

    def construct(self, x, keys, batch):
        x = self.add1(x, self.dropout1(self.attention(self.norm1(x), keys, batch), keys))
        return self.add2(x, self.dropout2(self.mlp(self.norm2(x)), keys))


class GPT(nn.Cell):
    """Embedding, blocks and last LayerNorm: ids int32 [batch, seq] -> (hidden state [batch * seq, hidden], token table).

    Args:
        config: sizes, with vocab_size resolved to a number.
        seed: of the dropout masks.
    """

    def __init__(self, config: ModelConfig, seed: int = 0):
        super().__init__()
        self.embedding = Embedding(config)
        self.dropout = Dropout(config.dropout, (1, config.hidden_size), 0)
        self.row_keys = RowKeys(seed, config.seq_length)
        self.blocks = nn.CellList([Block(config, i) for i in range(config.num_layers)])
        self.norm = LayerNorm(config.hidden_size, config.layer_norm_eps)

    def construct(self, ids, positions):
        """positions int32 [batch]: each sample's place in the run, from which its dropout masks follow."""
        batch, t = ids.shape
        keys = self.row_keys(positions, t)
        x, table = self.embedding(ids)
        x = self.dropout(x, keys)
        for block in self.blocks:
            x = block(x, keys, batch)
        return self.norm(x), table


class Head(nn.Cell):
    """Logits by the tied embedding: [rows, hidden], [vocab, hidden] -> [rows, vocab]."""

    def __init__(self):
        super().__init__()
        self.matmul = ops.MatMul(transpose_b=True)

    def construct(self, x, table):
        return self.matmul(x, table)


class TokenLoss(nn.Cell):
    """Cross entropy of each token, in float32: logits [rows, vocab], labels int32 [rows] -> [rows]."""

    def __init__(self):
        super().__init__()
        self.maximum, self.shift, self.exp = ops.ReduceMax(keep_dims=True), ops.Sub(), ops.Exp()
        self.sum, self.log, self.pick, self.reshape = ops.ReduceSum(keep_dims=True), ops.Log(), ops.GatherD(), ops.Reshape()

    def construct(self, logits, labels):
        shifted = self.shift(logits, self.maximum(logits, -1))
        losses = self.log(self.sum(self.exp(shifted), -1)) - self.pick(shifted, 1, self.reshape(labels, (-1, 1)))
        return self.reshape(losses, (-1,))


class HeadLoss(nn.Cell):
    """Loss of each token: x [rows, hidden], table [vocab, hidden], labels int32 [rows] -> (losses [rows], logits)."""

    def __init__(self):
        super().__init__()
        self.head, self.loss = Head(), TokenLoss()

    def construct(self, x, table, labels):
        logits = self.head(x, table)
        return self.loss(logits, labels), logits


def head_loss() -> nn.Cell:
    """HeadLoss in this device's form. On CPU the second output is the softmax of the logits."""
    return cpu.HeadLoss() if on_cpu() else HeadLoss()


class GPTLoss(nn.Cell):
    """What training minimises: tokens int32 [batch, seq + 1] -> (sum of the token losses, number of tokens), both float32.

    Position i predicts token i + 1. A label that is `pad` counts neither in the sum nor in the number.
    """

    def __init__(self, gpt: GPT, pad_id: int):
        super().__init__(auto_prefix=False)  # parameters keep the names that they have in the GPT
        self.gpt = gpt
        self.head_loss = head_loss()
        self.pad = Tensor(pad_id, ms.int32)
        self.slice_ids, self.slice_labels, self.reshape = ops.StridedSlice(), ops.StridedSlice(), ops.Reshape()
        self.not_equal, self.cast, self.mul, self.sum = ops.NotEqual(), ops.Cast(), ops.Mul(), ops.ReduceSum()

    def construct(self, tokens, positions):
        batch, t = tokens.shape
        ids = self.slice_ids(tokens, (0, 0), (batch, t - 1), (1, 1))
        labels = self.reshape(self.slice_labels(tokens, (0, 1), (batch, t), (1, 1)), (-1,))
        x, table = self.gpt(ids, positions)
        losses = self.head_loss(x, table, labels)[0]
        mask = self.cast(self.not_equal(labels, self.pad), ms.float32)
        return self.sum(self.mul(losses, mask)), self.sum(mask)
