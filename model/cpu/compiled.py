"""Cells of the operators in kernels.cc, matmul.cc and attention.cc."""
import mindspore as ms
from mindspore import Tensor, nn, ops

from model.config import ModelConfig
from model.cpu import library, pure
from model.heads import Repeat


def operator(name: str, shape, dtype=ms.float32) -> ops.Custom:
    """An operator in C++; `shape`: the shapes of its inputs -> that of its output, or of each."""
    return ops.Custom(library.operator(name), out_shape=shape, out_dtype=dtype, func_type="aot")


def same(*shapes):
    """The first input's shape."""
    return shapes[0]


def columns(*shapes):
    """The first input's last axis."""
    return [shapes[0][-1]]


def product():
    """[m, k], [k, n] -> [m, n]."""
    return operator("product", lambda *shapes: [shapes[0][0], shapes[1][1]])


def product_t():
    """a b^T: [m, k], [n, k] -> [m, n]."""
    return operator("product_t", rows_of_both)


def t_product():
    """a^T b: [k, m], [k, n] -> [m, n]."""
    return operator("t_product", lambda *shapes: [shapes[0][1], shapes[1][1]])


def rows_of_both(*shapes):
    """Of a b^T."""
    return [shapes[0][0], shapes[1][0]]


class Affine(pure.Affine):
    """x W^T + b: x [rows, in], W [out, in], b [out] -> [rows, out]."""

    def __init__(self):
        super().__init__()
        self.affine, self.grad_x, self.grad_w = operator("affine", rows_of_both), product(), t_product()
        self.grad_b = operator("column_sum", columns)

    def construct(self, x, weight, bias):
        return self.affine(x, weight, bias)


class Product(nn.Cell):
    """x W^T: x [rows, in], W [out, in] -> [rows, out]."""

    def __init__(self):
        super().__init__()
        self.product, self.grad_x, self.grad_w = product_t(), product(), t_product()

    def construct(self, x, weight):
        return self.product(x, weight)

    def bprop(self, x, weight, out, dout):
        return self.grad_x(dout, weight), self.grad_w(dout, x)


class SquareSums(nn.Cell):
    """The sum of each tensor's squares: n tensors -> [n]."""

    def __init__(self):
        super().__init__()
        self.sums = operator("square_sums", lambda *shapes: [len(shapes)])

    def construct(self, tensors):
        return self.sums(*tensors)


class Normalize(nn.Cell):
    """LayerNorm of [rows, hidden]: (y, mean and 1 / standard deviation [rows, 2])."""

    def __init__(self, hidden_size: int, eps: float):
        super().__init__()
        self.eps = Tensor([eps], ms.float32)
        self.norm = operator("layer_norm", moments_too, (ms.float32, ms.float32))
        self.grad = operator("layer_norm_grad", gradients_of_norm, (ms.float32, ms.float32, ms.float32))

    def construct(self, x, weight, bias):
        return self.norm(x, weight, bias, self.eps)

    def bprop(self, x, weight, bias, out, dout):
        return self.grad(x, weight, out[1], dout[0])


def moments_too(*shapes):
    """Of LayerNorm's outputs."""
    return shapes[0], [shapes[0][0], 2]


def gradients_of_norm(*shapes):
    """Of its gradients by x, weight and bias."""
    return shapes[0], shapes[1], shapes[1]


class NormalizeRms(pure.NormalizeRms):
    """RMSNorm of [rows, hidden]: (y, 1 / root mean square [rows, 1])."""

    def __init__(self, hidden_size: int, eps: float):
        super().__init__(hidden_size, eps)
        self.column_sum = operator("column_sum", columns)


class Gelu(nn.Cell):
    """GELU (tanh form): (y, x)."""

    def __init__(self):
        super().__init__()
        self.gelu, self.grad = operator("gelu", same), operator("gelu_grad", same)

    def construct(self, x):
        return self.gelu(x), x

    def bprop(self, x, out, dout):
        return (self.grad(x, dout[0]),)


class Attend(nn.Cell):
    """softmax(q k^T / sqrt(d) + causal mask) v: q and the result [batch, seq, heads, d], k and v [batch, seq, kv heads, d].

    Returns (y, what the backward pass computes the softmax again from [batch, heads, seq, 2]).
    """

    def __init__(self):
        super().__init__()
        self.attention = operator("causal_attention", attended, (ms.float32, ms.float32))
        self.grad = operator("causal_attention_grad", same_three, (ms.float32, ms.float32, ms.float32))

    def construct(self, q, k, v):
        return self.attention(q, k, v)

    def bprop(self, q, k, v, out, dout):
        return self.grad(q, k, v, out[1], dout[0])


class AttentionCore(nn.Cell):
    """As attention.AttentionCore, without dropout. The softmax is computed apart, for who watches: in training nobody does."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.attend, self.transpose, self.product = Attend(), ops.Transpose(), ops.BatchMatMul(transpose_b=True)
        self.softmax, self.scale = operator("causal_softmax", same), Tensor([config.head_size ** -0.5], ms.float32)
        self.repeat = Repeat(config.num_heads // config.kv_heads)

    def construct(self, q, k, v, keys):
        scores = self.product(self.transpose(q, (0, 2, 1, 3)), self.repeat(self.transpose(k, (0, 2, 1, 3))))
        return self.attend(q, k, v)[0], self.softmax(scores, self.scale)


def attended(*shapes):
    """Of attention's outputs."""
    batch, seq, heads, _ = shapes[0]
    return shapes[0], [batch, heads, seq, 2]


def same_three(*shapes):
    """The first three inputs' shapes."""
    return shapes[0], shapes[1], shapes[2]


class HeadLoss(nn.Cell):
    """Loss of each token: x [rows, hidden], table [vocab, hidden], labels int32 [rows] -> (losses, hits, gradient of the logits).

    Losses and hits (1 where the label is likeliest) float32 [rows], the gradient [rows, vocab].
    """

    def __init__(self, vocab_size: int, padding: int):
        super().__init__()
        self.vocabulary, self.reshape = Tensor([vocab_size], ms.int32), ops.Reshape()
        self.logits, self.grad_x, self.grad_table = product_t(), product(), t_product()
        self.loss = operator("cross_entropy", losses_of_rows, (ms.float32, ms.float32, ms.float32))

    def construct(self, x, table, labels):
        return self.loss(self.logits(x, table), labels, self.vocabulary)

    def bprop(self, x, table, labels, out, dout):
        gradient, weight = out[2], self.reshape(dout[0], (-1, 1))
        return self.grad_x(gradient, table) * weight, self.grad_table(gradient, x * weight), ops.zeros_like(labels)


def losses_of_rows(*shapes):
    """Of the losses, the hits and the gradient."""
    return [shapes[0][0]], [shapes[0][0]], shapes[0]
