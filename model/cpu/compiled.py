"""Cells of MindSpore's matrix products and the operators of kernels.cc."""
import mindspore as ms
from mindspore import Tensor, nn, ops

from model.config import ModelConfig
from model.cpu import library, pure


def operator(name: str, shape, dtype=ms.float32) -> ops.Custom:
    """An operator of kernels.cc; `shape`: the shapes of its inputs -> that of its output, or of each."""
    return ops.Custom(library.operator(name), out_shape=shape, out_dtype=dtype, func_type="aot")


def same(*shapes):
    """The first input's shape."""
    return shapes[0]


def columns(*shapes):
    """The first input's last axis."""
    return [shapes[0][-1]]


class Affine(pure.Affine):
    """x W^T + b: x [rows, in], W [out, in], b [out] -> [rows, out]."""

    def __init__(self):
        super().__init__()
        self.grad_b = operator("column_sum", columns)


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


class Gelu(nn.Cell):
    """GELU (tanh form): (y, x)."""

    def __init__(self):
        super().__init__()
        self.gelu, self.grad = operator("gelu", same), operator("gelu_grad", same)

    def construct(self, x):
        return self.gelu(x), x

    def bprop(self, x, out, dout):
        return (self.grad(x, dout[0]),)


class AttentionCore(nn.Cell):
    """softmax(q k^T / sqrt(d) + causal mask) v: q, k, v and the result [batch, heads, seq, d]. Returns (y, probabilities)."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.scale = Tensor([config.head_size ** -0.5], ms.float32)
        self.product, self.product_t = ops.BatchMatMul(), ops.BatchMatMul(transpose_b=True)
        self.t_product = ops.BatchMatMul(transpose_a=True)
        self.softmax, self.grad = operator("causal_softmax", same), operator("causal_softmax_grad", same)

    def construct(self, q, k, v, keys):
        p = self.softmax(self.product_t(q, k), self.scale)
        return self.product(p, v), p

    def bprop(self, q, k, v, keys, out, dout):
        p, dy = out[1], dout[0]
        ds = self.grad(p, self.product_t(dy, v), self.scale)
        return self.product(ds, k), self.t_product(ds, q), self.t_product(p, dy), ops.zeros_like(keys)


class HeadLoss(nn.Cell):
    """Loss of each token: x [rows, hidden], table [vocab, hidden], labels int32 [rows] -> (losses, hits, gradient of the logits).

    Losses and hits (1 where the label is likeliest) float32 [rows], the gradient [rows, vocab].
    """

    def __init__(self, vocab_size: int, padding: int):
        super().__init__()
        self.vocabulary, self.reshape = Tensor([vocab_size], ms.int32), ops.Reshape()
        self.logits, self.grad_x, self.grad_table = ops.MatMul(transpose_b=True), ops.MatMul(), ops.MatMul(transpose_a=True)
        self.loss = operator("cross_entropy", losses_of_rows, (ms.float32, ms.float32, ms.float32))

    def construct(self, x, table, labels):
        return self.loss(self.logits(x, table), labels, self.vocabulary)

    def bprop(self, x, table, labels, out, dout):
        gradient, weight = out[2], self.reshape(dout[0], (-1, 1))
        return self.grad_x(gradient, table) * weight, self.grad_table(gradient, x * weight), ops.zeros_like(labels)


def losses_of_rows(*shapes):
    """Of the losses, the hits and the gradient."""
    return [shapes[0][0]], [shapes[0][0]], shapes[0]
