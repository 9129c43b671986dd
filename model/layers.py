"""The building blocks: linear, LayerNorm, GELU and dropout, each with a form for CPU where MindSpore's kernel is slow.

The residual stream is two-dimensional, [batch * seq, hidden]: matrix products of two dimensions are what every device has fast
kernels for, and what MindSpore shards without redistribution.

Each cell's `shard(mesh)` gives its primitives their strategies: for each input, into how many parts each axis is cut. We override
`Cell.shard`, since MindSpore's own can lose data parallelism with integer tuples and cannot be used in a pipeline stage. A
primitive carries one strategy, so each use has a primitive of its own.
"""
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import Constant, initializer

from model import cpu
from parallel.mesh import Mesh

_plain: ContextVar[bool] = ContextVar("plain", default=False)


def on_cpu() -> bool:
    """Whether cells are being built in their forms for CPU."""
    return ms.get_context("device_target") == "CPU" and not _plain.get()


@contextmanager
def plain_kernels(wanted: bool = True) -> Iterator[None]:
    """Build cells as they are for Ascend, of MindSpore's own kernels, on CPU too."""
    token = _plain.set(wanted or _plain.get())
    try:
        yield
    finally:
        _plain.reset(token)


def parameter(shape: tuple[int, ...], value: float = 0.0) -> Parameter:
    """A float32 parameter; `model.init` gives it its initial value."""
    return Parameter(initializer(Constant(value), shape, ms.float32))


class Corner(nn.Cell):
    """The first elements of a constant along each axis: x, shape -> x[:shape[0], :shape[1] ...]. Every rank has it whole."""

    def __init__(self, dimensions: int):
        super().__init__()
        self.slice, self.zeros, self.ones = ops.StridedSlice(), (0,) * dimensions, (1,) * dimensions

    def construct(self, x, shape):
        if x.shape == shape:
            return x
        return self.slice(x, self.zeros, shape, self.ones)

    def shard(self) -> None:
        """Without a strategy MindSpore would cut it over all ranks, and gather it again."""
        self.slice.shard((self.ones,))


class Affine(nn.Cell):
    """x W^T + b by MindSpore's own kernels: x [rows, in], W [out, in], b [out] -> [rows, out]."""

    def __init__(self):
        super().__init__()
        self.matmul, self.add = ops.MatMul(transpose_b=True), ops.Add()

    def construct(self, x, weight, bias):
        return self.add(self.matmul(x, weight), bias)

    def shard(self, mesh: Mesh, split: str) -> None:
        """As Linear.shard."""
        shard_product(self.matmul, mesh, split)
        self.add.shard(((mesh.dp, mesh.tp), (mesh.tp,)) if split == "column" else ((mesh.rows, 1), (1,)))


class Product(cpu.pure.Product):
    """x W^T: x [rows, in], W [out, in] -> [rows, out]."""

    def shard(self, mesh: Mesh, split: str) -> None:
        """As Linear.shard."""
        shard_product(self.matmul, mesh, split)


def shard_product(matmul: ops.MatMul, mesh: Mesh, split: str) -> None:
    """x W^T with the outputs cut over tp, or the inputs: then an AllReduce, or with sequence parallelism a ReduceScatter over the
    rows, sums over tp."""
    if split == "column":
        matmul.shard(((mesh.dp, 1), (mesh.tp, 1)))
    else:
        matmul.shard(((mesh.dp, mesh.tp), (1, mesh.tp)), ((mesh.rows, 1),))


class Linear(nn.Cell):
    """y = x W^T + b with W [out, in] (PyTorch's layout): [rows, in] -> [rows, out].

    Args:
        split: what `shard` cuts over tp: "column": the outputs, with the bias; "row": the inputs, the products are summed.
        bias: whether there is a b.
    """

    def __init__(self, in_features: int, out_features: int, split: Literal["column", "row"], bias: bool = True):
        super().__init__()
        self.weight = parameter((out_features, in_features))
        self.bias = parameter((out_features,)) if bias else None
        if on_cpu():
            self.affine = cpu.cells().Affine() if bias else cpu.cells().Product()
        else:
            self.affine = Affine() if bias else Product()
        self.split = split

    def construct(self, x):
        return self.affine(x, self.weight) if self.bias is None else self.affine(x, self.weight, self.bias)

    def shard(self, mesh: Mesh) -> None:
        """Rows over dp; outputs or inputs over tp (Megatron-LM, arXiv:1909.08053)."""
        self.affine.shard(mesh, self.split)


class Normalize(nn.Cell):
    """LayerNorm by MindSpore's own kernel: (y, mean, variance)."""

    def __init__(self, eps: float):
        super().__init__()
        self.norm = ops.LayerNorm(begin_norm_axis=-1, begin_params_axis=-1, epsilon=eps)

    def construct(self, x, weight, bias):
        return self.norm(x, weight, bias)

    def shard(self, mesh: Mesh) -> None:
        """Rows over dp, with sequence parallelism also over tp."""
        self.norm.shard(((mesh.rows, 1), (1,), (1,)))


class LayerNorm(nn.Cell):
    """LayerNorm over the last axis: [rows, hidden] -> [rows, hidden]."""

    def __init__(self, hidden_size: int, eps: float):
        super().__init__()
        self.weight = parameter((hidden_size,), 1.0)
        self.bias = parameter((hidden_size,))
        self.norm = cpu.cells().Normalize(hidden_size, eps) if on_cpu() else Normalize(eps)

    def construct(self, x):
        return self.norm(x, self.weight, self.bias)[0]

    def shard(self, mesh: Mesh) -> None:
        """Rows over dp, with sequence parallelism also over tp."""
        self.norm.shard(mesh)


class Gelu(nn.Cell):
    """GELU in GPT-2's tanh form: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""

    saturated = -3.0  # below it the gradient is under 1.2 %, and what goes in hardly learns

    def __init__(self):
        super().__init__()
        self.on_cpu = on_cpu()
        self.gelu = cpu.cells().Gelu() if self.on_cpu else ops.GeLU()

    def construct(self, x):
        y = self.gelu(x)
        return y[0] if self.on_cpu else y

    def shard(self, mesh: Mesh) -> None:
        """Between a column- and a row-split Linear."""
        self.gelu.shard(((mesh.dp, mesh.tp),))


class Residual(nn.Cell):
    """What a branch adds to the residual stream: [rows, hidden] twice -> [rows, hidden]."""

    def __init__(self):
        super().__init__()
        self.add = ops.Add()

    def construct(self, x, y):
        return self.add(x, y)

    def shard(self, mesh: Mesh) -> None:
        """Rows over dp, with sequence parallelism also over tp."""
        self.add.shard(((mesh.rows, 1), (mesh.rows, 1)))


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
        self.mix, self.xor, self.cast, self.mul, self.rescale = Mix(), ops.BitwiseXor(), ops.Cast(), ops.Mul(), ops.Mul()
        self.greater_equal, self.corner, self.reshape = ops.GreaterEqual(), Corner(len(columns)), ops.Reshape()

    def construct(self, x, keys):
        """x [batch * seq, n] or [batch, n, seq, m], keys int32 [batch * seq, 1] -> x's shape."""
        if self.rate == 0.0 or not self.training:
            return x
        if len(x.shape) == 4:
            keys = self.reshape(keys, (x.shape[0], 1, x.shape[2], 1))
        columns = self.corner(self.column_keys, self.column_keys.shape[:-1] + x.shape[-1:])
        hashed = self.mix(self.xor(keys, columns))
        keep = self.cast(self.greater_equal(hashed, self.threshold), x.dtype)
        return self.mul(x, self.rescale(keep, self.scale))

    def shard(self, parts: tuple[int, ...]) -> None:
        """Cut x into `parts`. Each rank draws its part of the one mask: replicated parts are equal, sharded ones differ."""
        size = self.column_keys.shape
        whole = tuple(1 if n == 1 else p for n, p in zip(size, parts, strict=True))
        rows = tuple(p if n == 1 else 1 for n, p in zip(size, parts, strict=True))
        rows = (*rows[:-1], 1)
        self.corner.shard()
        self.xor.shard((rows, whole))
        self.mix.shard(parts)
        self.greater_equal.shard((parts, ()))
        self.cast.shard((parts,))
        self.rescale.shard((parts, ()))
        self.mul.shard((parts, parts))


class RowKeys(nn.Cell):
    """A key for each token of each sample, for `Dropout`: sample positions int32 [batch] -> int32 [batch * seq, 1].

    Where nothing is dropped it gives back the positions: to parse what nobody uses takes a large model's compiler long.
    """

    def __init__(self, rate: float, seed: int, seq_length: int):
        super().__init__()
        self.rate = rate
        rng = np.random.RandomState(seed)
        self.seed = Tensor(int(rng.randint(0, 2**31)), ms.int32)
        drawn = rng.randint(-2**31, 2**31, (1, seq_length), np.int64)
        self.token_keys = Tensor(drawn.astype(np.int32))
        self.mix_samples, self.mix_tokens, self.xor_seed, self.xor_token = Mix(), Mix(), ops.BitwiseXor(), ops.BitwiseXor()
        self.reshape, self.corner = ops.Reshape(), Corner(2)

    def construct(self, positions, t):
        if self.rate == 0.0 or not self.training:
            return positions
        sample_keys = self.mix_samples(self.xor_seed(positions, self.seed))
        keys = self.mix_tokens(self.xor_token(self.reshape(sample_keys, (-1, 1)), self.corner(self.token_keys, (1, t))))
        return self.reshape(keys, (-1, 1))

    def shard(self, mesh: Mesh) -> None:
        """Samples over dp."""
        self.corner.shard()
        self.xor_seed.shard(((mesh.dp,), ()))
        self.mix_samples.shard((mesh.dp,))
        self.xor_token.shard(((mesh.dp, 1), (1, 1)))
        self.mix_tokens.shard((mesh.dp, 1))


class Fold(nn.Cell):
    """x ^ (x >>> 15) on int32 of any shape."""

    def __init__(self):
        super().__init__()
        self.xor, self.shift, self.mask = ops.BitwiseXor(), ops.RightShift(), ops.BitwiseAnd()
        self.by, self.low = Tensor(15, ms.int32), Tensor(0x1FFFF, ms.int32)  # the mask makes the shift a logical one

    def construct(self, x):
        return self.xor(x, self.mask(self.shift(x, self.by), self.low))

    def shard(self, parts: tuple[int, ...]) -> None:
        """Cut x into `parts`."""
        self.xor.shard((parts, parts))
        self.mask.shard((parts, ()))
        self.shift.shard((parts, ()))


class Mix(nn.Cell):
    """A 32-bit integer hash (multiply and xor-shift, two rounds): int32 of any shape -> int32, evenly spread."""

    def __init__(self):
        super().__init__()
        self.mul1, self.fold1, self.mul2, self.fold2 = ops.Mul(), Fold(), ops.Mul(), Fold()
        self.factors = Tensor(0x2C1B3C6D, ms.int32), Tensor(0x297A2D39, ms.int32)

    def construct(self, x):
        return self.fold2(self.mul2(self.fold1(self.mul1(x, self.factors[0])), self.factors[1]))

    def shard(self, parts: tuple[int, ...]) -> None:
        """Cut x into `parts`."""
        for mul, fold in ((self.mul1, self.fold1), (self.mul2, self.fold2)):
            mul.shard((parts, ()))
            fold.shard(parts)
