"""The numpy operators against MindSpore's CPU kernels, forward and gradient."""
import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from tests.parallel.oracle import Apply, Together, WithGradient, check_same, compile_on_cpu, interpret, plain, rank_of

RNG = np.random.RandomState(0)
X, Y, POSITIVE = RNG.randn(4, 6).astype("f"), RNG.randn(4, 6).astype("f"), (RNG.rand(4, 6) + 0.5).astype("f")
ROW, CUBE, CUBE_2 = RNG.randn(6).astype("f"), RNG.randn(2, 4, 6).astype("f"), RNG.randn(2, 6, 5).astype("f")
TIED = np.where(RNG.rand(4, 6) < 0.5, X, Y)
BITS, BITS_2 = (RNG.randint(-2**31, 2**31, (4, 6), np.int64).astype(np.int32) for _ in range(2))
IDS, IDS_2D = np.array([3, 0, 3, 1], np.int32), np.array([[3, 0, 3], [1, 1, 2]], np.int32)
BOOL, BOOL_2 = X > 0, Y > 0
ODD = np.array([1.0, np.inf, -np.inf, np.nan, 0.0, 2.5, 3.5, -2.5], np.float32)


class GatherD(nn.Cell):
    def construct(self, x, index):
        return ops.gather_d(x, 1, index)


class Index(nn.Cell):
    def __init__(self, output: int):
        super().__init__()
        self.output = output

    def construct(self, x):
        return (x[1:3, ::2], x[..., -1], x[:, None], x[2])[self.output]


class Numbers(nn.Cell):
    """Tensors and Python numbers."""

    def construct(self, x, n):
        return x * 2.5, x / 3, n * 7, n * 0.5, 1.0 - x, n // 7, n.astype(ms.float32), x.astype(ms.int32), -n, x + n


class Made(nn.Cell):
    def construct(self, x):
        return ops.zeros_like(x), ops.ones_like(x), ops.fill(ms.float16, (2, 3), 1.5), ops.ones((2,), ms.int32)


def tensor(x) -> Tensor:
    return Tensor(np.asarray(x, np.float32))


def apply(name: str, *constants, packed: bool = False, output: int | None = None, **arguments):
    return Apply(getattr(ops, name)(**arguments), *constants, packed=packed, output=output)


# name -> (cell, its inputs)
SMOOTH = {
    "Add": (apply("Add"), X, ROW), "Sub": (apply("Sub"), ROW, X), "Mul": (apply("Mul"), X, ROW), "Div": (apply("Div"), X, POSITIVE),
    "RealDiv": (apply("RealDiv"), X, POSITIVE), "Pow": (apply("Pow"), POSITIVE, Y), "Neg": (apply("Neg"), X),
    "Minimum": (apply("Minimum"), X, TIED), "Maximum": (apply("Maximum"), TIED, X), "Maximum row": (apply("Maximum"), X, ROW),
    "Square": (apply("Square"), X), "Abs": (apply("Abs"), X), "ReLU": (apply("ReLU"), X), "Exp": (apply("Exp"), X),
    "Log": (apply("Log"), POSITIVE), "Sqrt": (apply("Sqrt"), POSITIVE), "Rsqrt": (apply("Rsqrt"), POSITIVE),
    "Reciprocal": (apply("Reciprocal"), POSITIVE), "Tanh": (apply("Tanh"), X), "Sigmoid": (apply("Sigmoid"), X),
    "Cos": (apply("Cos"), X), "Sin": (apply("Sin"), X), "GeLU": (apply("GeLU"), X), "AddN": (apply("AddN", packed=True), X, Y, TIED),
    "Select": (apply("Select"), BOOL, X, Y),
    "MatMul": (apply("MatMul"), X, CUBE_2[0]), "MatMul a": (apply("MatMul", transpose_a=True), X, Y),
    "MatMul b": (apply("MatMul", transpose_b=True), X, Y), "BatchMatMul": (apply("BatchMatMul"), CUBE, CUBE_2),
    "BatchMatMul b": (apply("BatchMatMul", transpose_b=True), CUBE, CUBE[::-1].copy()),
    "BatchMatMul a": (apply("BatchMatMul", transpose_a=True), CUBE, CUBE[::-1].copy()),
    "BiasAdd": (apply("BiasAdd"), X, ROW), "BiasAdd 3": (apply("BiasAdd"), CUBE, ROW[:4].copy()),
    "Softmax": (apply("Softmax", axis=-1), CUBE), "LogSoftmax": (apply("LogSoftmax", axis=-1), X),
    "LayerNorm": (apply("LayerNorm", begin_norm_axis=-1, begin_params_axis=-1, output=0, epsilon=1e-5), X * 3, ROW, ROW[::-1].copy()),
    "LayerNorm of two axes": (apply("LayerNorm", begin_norm_axis=1, begin_params_axis=1, output=0, epsilon=1e-3), CUBE, X, Y),
    "ReduceSum": (apply("ReduceSum", -1, keep_dims=True), CUBE), "ReduceSum all": (apply("ReduceSum"), CUBE),
    "ReduceMean": (apply("ReduceMean", (0, 2)), CUBE), "ReduceMax": (apply("ReduceMax", -1, keep_dims=True), CUBE),
    "ReduceMin": (apply("ReduceMin", 1), CUBE), "L2Loss": (apply("L2Loss"), CUBE),
    "Transpose": (apply("Transpose", (2, 0, 1)), CUBE), "Reshape": (apply("Reshape", (6, -1)), CUBE),
    "ExpandDims": (apply("ExpandDims", 1), X), "Tile": (apply("Tile", (2, 1, 3)), X), "Stack": (apply("Stack", axis=1, packed=True), X, Y),
    "Unstack": (apply("Unstack", output=1, axis=1), CUBE), "BroadcastTo": (apply("BroadcastTo", shape=(3, 4, 6)), X),
    "Concat": (apply("Concat", axis=1, packed=True), X, Y), "Split": (apply("Split", output=2, axis=1, output_num=3), X),
    "StridedSlice": (apply("StridedSlice", (1, 0), (4, 6), (2, 3)), X), **{f"Index {i}": (Index(i), X) for i in range(4)},
    "Gather": (apply("Gather", 0), X, IDS_2D), "Gather 1": (apply("Gather", 1), X, IDS_2D), "GatherD": (GatherD(), X, IDS.reshape(4, 1)),
    "UnsortedSegmentSum": (apply("UnsortedSegmentSum", 5), X, IDS), "UnsortedSegmentSum 2": (apply("UnsortedSegmentSum", 4), CUBE[:, :3].copy(), IDS_2D),
    "Cast": (apply("Cast", ms.float16), X),
}
EXACT = {
    "Equal": (apply("Equal"), X, TIED), "NotEqual": (apply("NotEqual"), X, TIED), "Greater": (apply("Greater"), X, TIED),
    "GreaterEqual": (apply("GreaterEqual"), X, TIED), "Less": (apply("Less"), X, TIED), "LessEqual": (apply("LessEqual"), X, TIED),
    "LogicalAnd": (apply("LogicalAnd"), BOOL, BOOL_2), "LogicalOr": (apply("LogicalOr"), BOOL, BOOL_2),
    "LogicalNot": (apply("LogicalNot"), BOOL), "ReduceAll": (apply("ReduceAll", -1), BOOL), "ReduceAny": (apply("ReduceAny"), BOOL),
    "BitwiseXor": (apply("BitwiseXor"), BITS, BITS_2), "BitwiseAnd": (apply("BitwiseAnd"), BITS, BITS_2),
    "BitwiseOr": (apply("BitwiseOr"), BITS, BITS_2), "RightShift": (apply("RightShift"), BITS, np.abs(BITS_2) % 31),
    "int32 Mul": (apply("Mul"), BITS, BITS_2), "int32 Add": (apply("Add"), BITS, BITS_2), "int32 Sub": (apply("Sub"), BITS, BITS_2),
    "FloorDiv": (apply("FloorDiv"), BITS, IDS_2D[0, 0]), "Argmax": (apply("Argmax"), X), "IsFinite": (apply("IsFinite"), ODD),
    "Round": (apply("Round"), ODD[4:].copy()), "Numbers": (Numbers(), X, BITS), "Made": (Made(), X),
    "OneHot": (apply("OneHot", 5, tensor(1.0), tensor(-0.5)), IDS_2D), "Cast bool": (apply("Cast", ms.bool_), ODD),
}


def compare(cases: dict, wrap, tolerance: float) -> set[str]:
    """Hold each case against MindSpore; returns the operators that were executed."""
    cells = [wrap(cell) for cell, *_ in cases.values()]
    inputs = [np.asarray(x) for _, *xs in cases.values() for x in xs]
    together = Together(cells, [len(xs) for _, *xs in cases.values()])
    program = compile_on_cpu(together, *inputs)
    got = interpret(rank_of(together, program), *inputs)
    want = plain(together(*map(Tensor, inputs)))
    for name, g, w in zip(cases, got, want, strict=True):
        check_same(name, g, w, tolerance)
    return {node.op for node in program.nodes}
