"""The GPT and its token loss: GPT-2's cells, and what architectures have in common."""
import math
from dataclasses import dataclass

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from model import cpu
from model.attention import CausalSelfAttention, FusedAttentionCore
from model.config import ModelConfig, fuses_attention
from model.layers import Corner, Dropout, Gelu, LayerNorm, Linear, Residual, RowKeys, on_cpu, parameter, plain_kernels
from model.llama import GroupedQueryAttention, RMSNorm, Silu, SwiGLU, TokenEmbedding
from model.masks import padding_mask
from model.precision import Precision
from parallel.mesh import Mesh


class Embedding(nn.Cell):
    """Token plus position: int32 [batch, seq] -> [batch * seq, hidden].

    Args:
        table_rows: at least config.vocab_size; what is beyond it is padding, that tp may divide the table.
    """

    def __init__(self, config: ModelConfig, table_rows: int):
        super().__init__()
        self.token = parameter((table_rows, config.hidden_size))
        self.position = parameter((config.seq_length, config.hidden_size))
        self.gather_token, self.gather_position, self.add, self.reshape = ops.Gather(), ops.Gather(), ops.Add(), ops.Reshape()
        self.positions, self.corner = Tensor(np.arange(config.seq_length), ms.int32), Corner(1)
        self.dropout = Dropout(config.dropout, (1, config.hidden_size), 0)

    def construct(self, ids, keys):
        batch, t = ids.shape
        position = self.gather_position(self.position, self.corner(self.positions, (t,)), 0)
        x = self.add(self.gather_token(self.token, ids, 0), self.reshape(position, (1, t, -1)))
        return self.dropout(self.reshape(x, (batch * t, -1)), keys)

    def shard(self, mesh: Mesh) -> None:
        """The vocabulary over tp: each rank looks up what it has, and the parts are summed."""
        self.gather_token.shard(((mesh.tp, 1), (mesh.dp, 1)))
        self.corner.shard()
        self.gather_position.shard(((1, 1), (1,)))
        self.add.shard(((mesh.dp, 1, 1), (1, 1, 1)))
        self.dropout.shard((mesh.rows, 1))


class MLP(nn.Cell):
    """Linear, GELU, Linear: [rows, hidden] -> (the same, what goes into the GELU [rows, inner width])."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.up = Linear(config.hidden_size, config.ffn_size, "column")
        self.gelu = Gelu()
        self.down = Linear(config.ffn_size, config.hidden_size, "row")

    def construct(self, x):
        inner = self.up(x)
        return self.down(self.gelu(inner)), inner

    def shard(self, mesh: Mesh) -> None:
        """The inner width over tp."""
        for cell in (self.up, self.gelu, self.down):
            cell.shard(mesh)


@dataclass(frozen=True)
class Parts:
    """The types of the cells that an architecture is made of.

    embedding(config, table rows): ids int32 [batch, seq], dropout's keys -> [batch * seq, hidden], with the table as `token`.
    norm(hidden size, epsilon): [rows, hidden] -> the same.
    attention(config, salt): as CausalSelfAttention. mlp(config): as MLP. activation(): what the MLP's second result goes into.
    """

    embedding: type
    norm: type
    attention: type
    mlp: type
    activation: type


ARCHITECTURES = {"gpt2": Parts(Embedding, LayerNorm, CausalSelfAttention, MLP, Gelu),
                 "llama": Parts(TokenEmbedding, RMSNorm, GroupedQueryAttention, SwiGLU, Silu)}


class Block(nn.Cell):
    """Pre-norm block: x + attention(norm(x)), then x + mlp(norm(x)).

    construct: [batch * seq, hidden], positions -> (the same, attention's weights [batch, heads, seq, seq], what goes into the
        MLP's activation [batch * seq, inner width]). The last two are for who watches the model, and cost nothing where nobody
        does.
    """

    def __init__(self, config: ModelConfig, index: int, seed: int):
        super().__init__()
        parts = ARCHITECTURES[config.architecture]
        self.norm1, self.norm2 = (parts.norm(config.hidden_size, config.norm_eps) for _ in range(2))
        self.attention, self.mlp = parts.attention(config, 3 * index + 1), parts.mlp(config)
        self.dropout1, self.dropout2 = (Dropout(config.dropout, (1, config.hidden_size), 3 * index + i) for i in (2, 3))
        # its own: keys from another pipeline stage would have to be sent
        self.row_keys = RowKeys(config.dropout, seed, config.seq_length)
        self.add1, self.add2 = Residual(), Residual()

    def construct(self, x, positions):
        batch = positions.shape[0]
        keys = self.row_keys(positions, x.shape[0] // batch)
        y, weights = self.attention(self.norm1(x), keys, batch)
        x = self.add1(x, self.dropout1(y, keys))
        y, inner = self.mlp(self.norm2(x))
        return self.add2(x, self.dropout2(y, keys)), weights, inner

    def shard(self, mesh: Mesh) -> None:
        """Batch over dp; heads and inner width over tp; with sequence parallelism the rest over tp by rows."""
        for cell in (self.norm1, self.norm2, self.attention, self.mlp, self.row_keys, self.add1, self.add2):
            cell.shard(mesh)
        for dropout in (self.dropout1, self.dropout2):
            dropout.shard((mesh.rows, 1))


class HeadTable(nn.Cell):
    """The matrix of a head that is not the token table: token float32 [table rows, hidden]."""

    def __init__(self, config: ModelConfig, table_rows: int):
        super().__init__()
        self.token = parameter((table_rows, config.hidden_size))


class GPT(nn.Cell):
    """Embedding, blocks and last norm: ids int32 [batch, seq] -> (hidden state [batch * seq, hidden], the head's table).

    Args:
        config: sizes, with vocab_size resolved to a number.
        seed: of the dropout masks.
        tp: must divide the rows of the token table, which is padded for it.
        precision: number formats. With any half in them the model is built as for Ascend, on CPU too: its forms for CPU are
            for float32 alone, where they are faster.
    """

    def __init__(self, config: ModelConfig, seed: int = 0, tp: int = 1, precision: Precision | None = None):
        super().__init__()
        self.precision = precision or Precision()
        on_ascend = ms.get_context("device_target") == "Ascend"
        config = config.model_copy(update={"flash_attention": on_ascend and fuses_attention(config, self.precision.config)})
        with plain_kernels(self.precision.in_half):
            self.build(config, seed, tp)
            self.on_cpu = on_cpu()
        self.casts = self.precision.apply(self)

    def build(self, config: ModelConfig, seed: int, tp: int) -> None:
        """The cells."""
        self.vocab_size, self.padding = config.vocab_size, -config.vocab_size % math.lcm(config.vocab_multiple, tp)
        parts, rows = ARCHITECTURES[config.architecture], self.vocab_size + self.padding
        self.seq_length, self.activation = config.seq_length, parts.activation
        self.row_keys = RowKeys(config.dropout, seed, config.seq_length)
        self.embedding = parts.embedding(config, rows)
        self.blocks = nn.CellList([Block(config, i, seed) for i in range(config.num_layers)])
        self.norm = parts.norm(config.hidden_size, config.norm_eps)
        self.head = None if config.tie_embeddings else HeadTable(config, rows)

    def construct(self, ids, positions):
        """positions int32 [batch]: each sample's place in the run, from which its dropout masks follow."""
        x = self.embedding(ids, self.row_keys(positions, ids.shape[1]))
        for block in self.blocks:
            x = block(x, positions)[0]
        return self.norm(x), self.embedding.token if self.head is None else self.head.token

    def head_cell(self) -> nn.Cell:
        """The cell whose `token` is the head's table."""
        return self.embedding if self.head is None else self.head

    def shard(self, mesh: Mesh) -> None:
        """Say of every primitive how it is cut over dp and tp."""
        for cell in (self.row_keys, self.embedding, *self.blocks, self.norm):
            cell.shard(mesh)

    def place(self, block_stages: list[tuple[int, int | None]]) -> None:
        """Put each block on a pipeline stage and, where stages are interleaved, into a segment of it: (stage, segment or None).

        The embedding goes with the first block, the last norm and a head of its own with the last.
        """
        first, last = (self.row_keys, self.embedding), (self.norm,) if self.head is None else (self.norm, self.head)
        places = [*block_stages, *len(first) * block_stages[:1], *len(last) * block_stages[-1:]]
        for cell, (stage, segment) in zip((*self.blocks, *first, *last), places, strict=True):
            put(cell, stage, segment)


def recompute(gpt: GPT, kind: str, layers: str | tuple[int, ...]) -> None:
    """Keep fewer activations and compute them again in the backward pass; communication over tp is not repeated.

    Args:
        kind: "none"; "selective": attention's scores and weights, large and cheap (Korthikanti et al., arXiv:2205.05198), which
            the fused kernel does by itself; "full": everything inside a block.
        layers: indices of the blocks, or "all".
    """
    for i, block in enumerate(gpt.blocks):
        core, chosen = block.attention.core, layers == "all" or i in layers
        if chosen and (kind == "full" or kind == "selective" and not isinstance(core, FusedAttentionCore)):
            (block if kind == "full" else core).recompute(mp_comm_recompute=False)


def put(cell: nn.Cell, stage: int, segment: int | None) -> None:
    """Put a cell on a pipeline stage. A segment, even 0, makes MindSpore interleave."""
    cell.pipeline_stage = stage
    if segment is not None:
        cell.pipeline_segment = segment


class Head(cpu.pure.Product):
    """Logits by the tied embedding: [rows, hidden], [table rows, hidden] -> [rows, table rows]."""

    def shard(self, mesh: Mesh) -> None:
        """The vocabulary over tp: no rank holds a whole row of logits."""
        self.matmul.shard(((mesh.dp, 1), (mesh.tp, 1)))


class TokenLoss(nn.Cell):
    """Cross entropy in float32: logits [rows, vocab], labels int32 [rows] -> (losses, 1 where the label is likeliest), [rows].

    The label's logit is picked by a product with a one-hot row, which can be cut along the vocabulary; an index could not.
    """

    def __init__(self):
        super().__init__()
        self.maximum, self.shift, self.exp = ops.ReduceMax(keep_dims=True), ops.Sub(), ops.Exp()
        self.sum, self.log, self.minus = ops.ReduceSum(), ops.Log(), ops.Sub()
        self.one_hot, self.mul, self.pick = ops.OneHot(), ops.Mul(), ops.ReduceSum()
        self.equal, self.cast = ops.Equal(), ops.Cast()
        self.on, self.off = Tensor(1.0, ms.float32), Tensor(0.0, ms.float32)

    def construct(self, logits, labels):
        shifted = self.shift(logits, self.maximum(logits, -1))
        label = self.pick(self.mul(shifted, self.one_hot(labels, logits.shape[1], self.on, self.off)), -1)
        losses = self.minus(self.log(self.sum(self.exp(shifted), -1)), label)
        return losses, self.cast(self.equal(label, self.off), ms.float32)

    def shard(self, mesh: Mesh) -> None:
        """The vocabulary over tp; its maximum, its sum and the label's logit are each summed up over tp."""
        cut, rows = (mesh.dp, mesh.tp), (mesh.dp,)
        for reduce in (self.maximum, self.sum, self.pick):
            reduce.shard((cut,))
        self.shift.shard((cut, (mesh.dp, 1)))
        self.exp.shard((cut,))
        self.one_hot.shard((cut, (), ()))
        self.mul.shard((cut, cut))
        self.log.shard((rows,))
        self.minus.shard((rows, rows))
        self.equal.shard((rows, ()))
        self.cast.shard((rows,))


class HeadLoss(nn.Cell):
    """Loss of each token: x [rows, hidden], table [table rows, hidden], labels int32 [rows] -> (losses, hits), float32 [rows].

    Args:
        vocab_size: of the tokenizer.
        padding: rows of the table beyond it; they never count.
    """

    def __init__(self, vocab_size: int, padding: int):
        super().__init__()
        self.head, self.loss, self.padding, self.add = Head(), TokenLoss(), padding, ops.Add()
        self.mask = padding_mask(vocab_size, padding)

    def construct(self, x, table, labels):
        logits = self.head(x, table)
        if self.padding:
            logits = self.add(logits, self.mask)
        return self.loss(logits, labels)

    def shard(self, mesh: Mesh) -> None:
        """The vocabulary over tp."""
        self.head.shard(mesh)
        self.add.shard(((mesh.dp, mesh.tp), (mesh.tp,)))
        self.loss.shard(mesh)


def head_loss(gpt: GPT) -> nn.Cell:
    """HeadLoss in the GPT's form. On CPU there is a third output, for its gradient."""
    cell = (cpu.cells().HeadLoss if gpt.on_cpu else HeadLoss)(gpt.vocab_size, gpt.padding)
    gpt.precision.apply(cell, "head_loss.")
    return cell


class Labels(nn.Cell):
    """What each position shall predict: tokens int32 [batch, seq + 1] -> (labels int32, 1 where one counts float32), [rows].

    Position i predicts token i + 1. A label that is `pad` does not count.
    """

    def __init__(self, pad_id: int):
        super().__init__()
        self.pad, self.slice, self.reshape = Tensor(pad_id, ms.int32), ops.StridedSlice(), ops.Reshape()
        self.not_equal, self.cast = ops.NotEqual(), ops.Cast()

    def construct(self, tokens):
        batch, t = tokens.shape
        labels = self.reshape(self.slice(tokens, (0, 1), (batch, t), (1, 1)), (-1,))
        return labels, self.cast(self.not_equal(labels, self.pad), ms.float32)

    def shard(self, mesh: Mesh) -> None:
        """Samples over dp."""
        self.slice.shard(((mesh.dp, 1),))
        self.not_equal.shard(((mesh.dp,), ()))
        self.cast.shard(((mesh.dp,),))


class GPTLoss(nn.Cell):
    """What training minimises: tokens int32 [batch, seq + 1], positions int32 [batch] -> sum of token losses, and their number.

    Both in one tensor, float32 [2]: of a pipeline's network MindSpore adds up one output over the micro-batches, and tokens that
    are used outside of the network hide it from the compiler's pipeline.
    """

    def __init__(self, gpt: GPT, pad_id: int):
        super().__init__(auto_prefix=False)  # parameters keep the names that they have in the GPT
        self.gpt, self.labels, self.head_loss = gpt, Labels(pad_id), head_loss(gpt)
        self.slice, self.mul, self.stack = ops.StridedSlice(), ops.Mul(), ops.Stack()
        self.sum_losses, self.sum_mask = ops.ReduceSum(), ops.ReduceSum()

    def construct(self, tokens, positions):
        batch, t = tokens.shape
        x, table = self.gpt(self.slice(tokens, (0, 0), (batch, t - 1), (1, 1)), positions)
        labels, mask = self.labels(tokens)
        losses = self.mul(self.head_loss(x, table, labels)[0], mask)
        return self.stack((self.sum_losses(losses), self.sum_mask(mask)))

    def shard(self, mesh: Mesh) -> None:
        """Say of every primitive how it is cut over dp and tp."""
        for cell in (self.gpt, self.labels, self.head_loss):
            cell.shard(mesh)
        self.slice.shard(((mesh.dp, 1),))
        self.mul.shard(((mesh.dp,), (mesh.dp,)))
        for total in (self.sum_losses, self.sum_mask):
            total.shard(((mesh.dp,),))
        self.stack.shard(((), ()))

    def place(self, block_stages: list[tuple[int, int | None]]) -> None:
        """As GPT.place; head and loss go with the last block."""
        self.gpt.place(block_stages)
        put(self.head_loss, *block_stages[-1])

    def weights_of(self, stage: int | None) -> list[Parameter]:
        """Parameters that a stage computes with; None: all. The last stage has the head's table, if tied a copy."""
        if stage is None:
            return self.trainable_params()
        cells = [c for c in (self.gpt.embedding, *self.gpt.blocks, self.gpt.norm) if c.pipeline_stage == stage]
        held = {p.name for cell in cells for p in cell.trainable_params()}
        if stage == self.head_loss.pipeline_stage:
            held.add(self.gpt.head_cell().token.name)
        return [p for p in self.trainable_params() if p.name in held]
