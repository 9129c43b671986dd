"""Cells of those of MindSpore's CPU kernels that are fast: row sums are products with ones, gradients are written out by hand."""
import math

from mindspore import nn, ops
from mindspore.ops import functional as F

from model.config import ModelConfig
from model.heads import Repeat
from model.masks import causal_mask, padding_mask

_square_sum = ops.MultitypeFuncGraph("square_sum")
GELU_1 = 2 * math.sqrt(2 / math.pi)  # tanh(u) = 2 sigmoid(2u) - 1, so the factor 2 is taken in here
GELU_3 = GELU_1 * 0.044715


@_square_sum.register("Function", "Function", "Tensor")
def _square_sum_of_one(square, total, x):
    return total(square(x))


class ColumnSum(nn.Cell):
    """[rows, n] -> [n]: the sum over rows, as ones @ x."""

    def __init__(self):
        super().__init__()
        self.matmul, self.reshape = ops.MatMul(), ops.Reshape()

    def construct(self, x):
        return self.reshape(self.matmul(F.ones((1, x.shape[0]), x.dtype), x), (-1,))


class Affine(nn.Cell):
    """x W^T + b: x [rows, in], W [out, in], b [out] -> [rows, out]."""

    def __init__(self):
        super().__init__()
        self.matmul, self.add = ops.MatMul(transpose_b=True), ops.BiasAdd()
        self.grad_x, self.grad_w, self.grad_b = ops.MatMul(), ops.MatMul(transpose_a=True), ColumnSum()

    def construct(self, x, weight, bias):
        return self.add(self.matmul(x, weight), bias)

    def bprop(self, x, weight, bias, out, dout):
        return self.grad_x(dout, weight), self.grad_w(dout, x), self.grad_b(dout)


class Product(nn.Cell):
    """x W^T: x [rows, in], W [out, in] -> [rows, out]."""

    def __init__(self):
        super().__init__()
        self.matmul = ops.MatMul(transpose_b=True)

    def construct(self, x, weight):
        return self.matmul(x, weight)


class SquareSums(nn.Cell):
    """The sum of each tensor's squares: n tensors -> [n].

    Not L2Loss: its CPU kernel adds up in order, in float32, and loses 7 % of 5e7 values' sum.
    """

    def __init__(self):
        super().__init__()
        self.map, self.square, self.sum, self.stack = ops.HyperMap(), ops.Square(), ops.ReduceSum(), ops.Stack()

    def construct(self, tensors):
        return self.stack(self.map(F.partial(_square_sum, self.square, self.sum), tensors))


class Normalize(nn.Cell):
    """LayerNorm of [rows, hidden]: (y, normalized x, 1 / standard deviation)."""

    def __init__(self, hidden_size: int, eps: float):
        super().__init__()
        self.n, self.eps = hidden_size, eps
        self.matmul, self.rsqrt, self.bias_add, self.column_sum = ops.MatMul(), ops.Rsqrt(), ops.BiasAdd(), ColumnSum()

    def mean(self, x):
        return self.matmul(x, F.ones((self.n, 1), x.dtype) * (1.0 / self.n))

    def construct(self, x, weight, bias):
        centred = x - self.mean(x)
        r = self.rsqrt(self.mean(centred * centred) + self.eps)
        normal = centred * r
        return self.bias_add(normal * weight, bias), normal, r

    def bprop(self, x, weight, bias, out, dout):
        _, normal, r = out
        dy = dout[0]
        d = dy * weight
        dx = (d - self.mean(d) - normal * self.mean(d * normal)) * r
        return dx, self.column_sum(dy * normal), self.column_sum(dy)


class NormalizeRms(nn.Cell):
    """RMSNorm of [rows, hidden]: (y, 1 / root mean square [rows, 1])."""

    def __init__(self, hidden_size: int, eps: float):
        super().__init__()
        self.n, self.eps = hidden_size, eps
        self.matmul, self.rsqrt, self.column_sum = ops.MatMul(), ops.Rsqrt(), ColumnSum()

    def mean(self, x):
        return self.matmul(x, F.ones((self.n, 1), x.dtype) * (1.0 / self.n))

    def construct(self, x, weight):
        r = self.rsqrt(self.mean(x * x) + self.eps)
        return x * r * weight, r

    def bprop(self, x, weight, out, dout):
        dy, r = dout[0], out[1]
        normal, d = x * r, dy * weight
        return (d - normal * self.mean(d * normal)) * r, self.column_sum(dy * normal)


class Gelu(nn.Cell):
    """GELU (tanh form) as x * sigmoid(2u): (y, the sigmoid)."""

    def __init__(self):
        super().__init__()
        self.sigmoid = ops.Sigmoid()

    def construct(self, x):
        s = self.sigmoid(x * (x * x * GELU_3 + GELU_1))
        return x * s, s

    def bprop(self, x, out, dout):
        y, s = out
        return (dout[0] * ((y - y * s) * (x * x * (3 * GELU_3) + GELU_1) + s),)


class Attend(nn.Cell):
    """softmax(q k^T / sqrt(d) + causal mask) v: q, k, v and the result [batch, heads, seq, d]. Returns (y, probabilities).

    The softmax's gradient needs, for each row, sum_j(dp_j p_j) = sum(dy * y) subtracted from dp (the identity that
    FlashAttention's backward pass rests on, arXiv:2205.14135); one more column in the product that gives dp does it without a
    broadcast.
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.scale, self.mask = 1.0 / math.sqrt(config.head_size), causal_mask(config.seq_length)
        self.product, self.product_t = ops.BatchMatMul(), ops.BatchMatMul(transpose_b=True)
        self.t_product, self.matmul = ops.BatchMatMul(transpose_a=True), ops.MatMul()
        self.softmax, self.bias_add, self.reshape, self.concat = ops.Softmax(-1), ops.BiasAdd(), ops.Reshape(), ops.Concat(-1)

    def construct(self, q, k, v):
        batch, heads, t, _ = q.shape
        scores = self.product_t(q * self.scale, k)
        # BiasAdd over the flattened [seq, seq] is the fast way to add a mask that is the same for all heads.
        masked = self.bias_add(self.reshape(scores, (batch * heads, t * t)), self.reshape(self.mask[:t, :t], (-1,)))
        p = self.softmax(self.reshape(masked, scores.shape))
        return self.product(p, v), p

    def bprop(self, q, k, v, out, dout):
        y, p = out
        dy = dout[0]
        batch, heads, t, d = q.shape
        minus_rows = self.matmul(self.reshape(dy * y, (-1, d)), -F.ones((d, 1), y.dtype))
        dy_and_rows = self.concat((dy, self.reshape(minus_rows, (batch, heads, t, 1))))
        v_and_ones = self.concat((v, F.ones((batch, heads, t, 1), v.dtype)))
        ds = p * self.product_t(dy_and_rows, v_and_ones)
        dq = self.product(ds, k) * self.scale
        dk = self.t_product(ds, q * self.scale)
        return dq, dk, self.t_product(p, dy)


class AttentionCore(nn.Cell):
    """As attention.AttentionCore, without dropout."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.attend, self.transpose, self.repeat = Attend(config), ops.Transpose(), Repeat(config.num_heads // config.kv_heads)

    def construct(self, q, k, v, keys):
        swap = (0, 2, 1, 3)
        k, v = self.repeat(self.transpose(k, swap)), self.repeat(self.transpose(v, swap))
        y, p = self.attend(self.transpose(q, swap), k, v)
        return self.transpose(y, swap), p


class HeadLoss(nn.Cell):
    """Loss of each token: x [rows, hidden], table [vocab, hidden], labels int32 [rows] -> (losses, hits, probabilities).

    Losses and hits (1 where the label is likeliest) float32 [rows], probabilities [rows, vocab]. The gradient of the logits,
    p - onehot, is never formed: its product with the table is p @ table - table[labels].
    """

    def __init__(self, vocab_size: int, padding: int):
        super().__init__()
        self.padding, self.mask, self.bias_add = padding, padding_mask(vocab_size, padding), ops.BiasAdd()
        self.logits, self.softmax = ops.MatMul(transpose_b=True), ops.Softmax(-1)
        self.argmax, self.log, self.equal, self.cast = ops.Argmax(-1), ops.Log(), ops.Equal(), ops.Cast()
        self.pick, self.gather, self.reshape = ops.GatherD(), ops.Gather(), ops.Reshape()
        self.grad_x, self.grad_table, self.segment_sum = ops.MatMul(), ops.MatMul(transpose_a=True), ops.UnsortedSegmentSum()

    def construct(self, x, table, labels):
        logits = self.logits(x, table)
        if self.padding:
            logits = self.bias_add(logits, self.mask)
        p = self.softmax(logits)
        label, best = self.reshape(labels, (-1, 1)), self.reshape(self.argmax(logits), (-1, 1))
        # log p of the label by way of the likeliest token: exact also where p of the label underflows.
        picked, highest = self.pick(logits, 1, label), self.pick(logits, 1, best)
        losses = highest - self.log(self.pick(p, 1, best)) - picked
        return self.reshape(losses, (-1,)), self.cast(self.reshape(self.equal(picked, highest), (-1,)), x.dtype), p

    def bprop(self, x, table, labels, out, dout):
        p, weight = out[2], self.reshape(dout[0], (-1, 1))
        dx = (self.grad_x(p, table) - self.gather(table, labels, 0)) * weight
        weighted = x * weight
        dtable = self.grad_table(p, weighted) - self.segment_sum(weighted, labels, table.shape[0])
        return dx, dtable, ops.zeros_like(labels)
