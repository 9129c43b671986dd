"""The building blocks: linear, LayerNorm, GELU and dropout, each with a form for CPU where MindSpore's kernel is slow.

The residual stream is two-dimensional, [batch * seq, hidden]: matrix products of two dimensions are what every device has fast
kernels for, and what MindSpore shards without redistribution.
"""
import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from model import cpu


def on_cpu() -> bool:
    """Whether cells are being built for CPU kernels."""
    return ms.get_context("device_target") == "CPU"


def parameter(shape: tuple[int, ...], value: float = 0.0) -> Parameter:
    """A float32 parameter; `model.init` gives it its initial value."""
    return Parameter(Tensor(np.full(shape, value, np.float32)))


class Affine(nn.Cell):
    """x W^T + b by MindSpore's own kernels: x [rows, in], W [out, in], b [out] -> [rows, out]."""

    def __init__(self):
        super().__init__()
        self.matmul, self.add = ops.MatMul(transpose_b=True), ops.Add()

    def construct(self, x, weight, bias):
        return self.add(self.matmul(x, weight), bias)


class Linear(nn.Cell):
    """y = x W^T + b with W [out, in] (PyTorch's layout): [rows, in] -> [rows, out]."""

    def __init__(self, in_features: int, out_features: int):
        super().__init__()
        self.weight = parameter((out_features, in_features))
        self.bias = parameter((out_features,))
        self.affine = cpu.Affine() if on_cpu() else Affine()

    def construct(self, x):
        return self.affine(x, self.weight, self.bias)


class Normalize(nn.Cell):
    """LayerNorm by MindSpore's own kernel: (y, mean, variance)."""

    def __init__(self, eps: float):
        super().__init__()
        self.norm = ops.LayerNorm(begin_norm_axis=-1, begin_params_axis=-1, epsilon=eps)

    def construct(self, x, weight, bias):
        return self.norm(x, weight, bias)


class LayerNorm(nn.Cell):
    """LayerNorm over the last axis: [rows, hidden] -> [rows, hidden]."""

    def __init__(self, hidden_size: int, eps: float):
        super().__init__()
        self.weight = parameter((hidden_size,), 1.0)
        self.bias = parameter((hidden_size,))
        self.norm = cpu.Normalize(hidden_size, eps) if on_cpu() else Normalize(eps)

    def construct(self, x):
        return self.norm(x, self.weight, self.bias)[0]


class Gelu(nn.Cell):
    """GELU in GPT-2's tanh form: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""

    def __init__(self):
        super().__init__()
        self.on_cpu = on_cpu()
        self.gelu = cpu.Gelu() if self.on_cpu else ops.GeLU()

    def construct(self, x):
        y = self.gelu(x)
        return y[0] if self.on_cpu else y


class Dropout(nn.Cell):
    """Dropout whose mask is a pure function of a key for each row, the column, and this layer's own salt.

    MindSpore's dropout kernels keep a hidden state that can be neither saved nor set: a resumed run would draw other masks. Here
    nothing is drawn. The row keys come from the sample's position in the run (`RowKeys`), so the mask is the same after a resume,
    with or without an evaluation in between, and for every number of ranks and micro-batches.

    Args:
        rate: share of the elements that become zero; the rest is divided by 1 - rate.
        columns: the shape that x has where the keys have size 1; the last axis may be longer than that of x.
        salt: a number of its own for each dropout in the model.
    """

    def __init__(self, rate: float, columns: tuple[int, ...], salt: int):
        super().__init__()
        self.rate, self.scale = rate, 1.0 / (1.0 - rate)
        drawn = np.random.RandomState(salt).randint(-2**31, 2**31, columns, np.int64)
        self.column_keys = Tensor(drawn.astype(np.int32))
        self.threshold = Tensor(int(-2**31 + rate * 2**32), ms.int32)
        self.mix, self.xor, self.cast, self.mul = Mix(), ops.BitwiseXor(), ops.Cast(), ops.Mul()
        self.greater_equal = ops.GreaterEqual()

    def construct(self, x, keys):
        """x of any shape and int32 keys that broadcast against it -> x's shape."""
        if self.rate == 0.0 or not self.training:
            return x
        hashed = self.mix(self.xor(keys, self.column_keys[..., :x.shape[-1]]))
        keep = self.cast(self.greater_equal(hashed, self.threshold), x.dtype)
        return self.mul(x, keep * self.scale)


class RowKeys(nn.Cell):
    """A key for each token of each sample, for `Dropout`: sample positions int32 [batch] -> int32 [batch * seq, 1]."""

    def __init__(self, seed: int, seq_length: int):
        super().__init__()
        rng = np.random.RandomState(seed)
        self.seed = Tensor(int(rng.randint(0, 2**31)), ms.int32)
        drawn = rng.randint(-2**31, 2**31, (1, seq_length), np.int64)
        self.token_keys = Tensor(drawn.astype(np.int32))
        self.mix, self.xor, self.reshape = Mix(), ops.BitwiseXor(), ops.Reshape()

    def construct(self, positions, t):
        sample_keys = self.mix(self.xor(positions, self.seed))
        keys = self.mix(self.xor(self.reshape(sample_keys, (-1, 1)), self.token_keys[:, :t]))
        return self.reshape(keys, (-1, 1))


class Mix(nn.Cell):
    """A 32-bit integer hash (multiply and xor-shift, two rounds): int32 of any shape -> int32, evenly spread."""

    def __init__(self):
        super().__init__()
        self.xor, self.shift, self.mul, self.mask = ops.BitwiseXor(), ops.RightShift(), ops.Mul(), ops.BitwiseAnd()
        self.by, self.low = Tensor(15, ms.int32), Tensor(0x1FFFF, ms.int32)  # the mask makes the shift a logical one
        self.factors = Tensor(0x2C1B3C6D, ms.int32), Tensor(0x297A2D39, ms.int32)

    def fold(self, x):
        return self.xor(x, self.mask(self.shift(x, self.by), self.low))

    def construct(self, x):
        x = self.fold(self.mul(x, self.factors[0]))
        return self.fold(self.mul(x, self.factors[1]))
