"""The numpy operators against MindSpore's CPU kernels, forward and gradient."""
import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from mindspore.ops.auto_generate import SiLU

from model.attention import AttentionCore
from model.config import ModelConfig
from model.cpu import pure
from model.layers import plain_kernels
from model.masks import fused_mask
from parallel.lockstep.kernels import KERNELS, TYPED
from tests.parallel.oracle import Apply, Together, WithGradient, check_same, compile_on_cpu, interpret, plain, rank_of

RNG = np.random.RandomState(0)
X, Y, POSITIVE = RNG.randn(4, 6).astype("f"), RNG.randn(4, 6).astype("f"), (RNG.rand(4, 6) + 0.5).astype("f")
ROW, CUBE, CUBE_2 = RNG.randn(6).astype("f"), RNG.randn(2, 4, 6).astype("f"), RNG.randn(2, 6, 5).astype("f")
TIED = np.where(RNG.rand(4, 6) < 0.5, X, Y)
BITS, BITS_2 = (RNG.randint(-2**31, 2**31, (4, 6), np.int64).astype(np.int32) for _ in range(2))
IDS, IDS_2D = np.array([3, 0, 3, 1], np.int32), np.array([[3, 0, 3], [1, 1, 2]], np.int32)
BOOL, BOOL_2 = X > 0, Y > 0
ODD = np.array([1.0, np.inf, -np.inf, np.nan, 0.0, 2.5, 3.5, -2.5], np.float32)
HALF_X, HALF_Y, HALF_ROW = X.astype(np.float16), Y.astype(np.float16), ROW.astype(np.float16)


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


def layer_norm(axis: int, eps: float):
    return apply("LayerNorm", begin_norm_axis=axis, begin_params_axis=axis, epsilon=eps, output=0)


# name -> (cell, its inputs); held together with the gradients of all inputs
SMOOTH = {
    "Add": (apply("Add"), X, ROW), "Sub": (apply("Sub"), ROW, X), "Mul": (apply("Mul"), X, ROW),
    "Div": (apply("Div"), X, POSITIVE), "RealDiv": (apply("RealDiv"), X, POSITIVE),
    "Pow": (apply("Pow"), POSITIVE, Y), "Neg": (apply("Neg"), X),
    "Minimum": (apply("Minimum"), X, TIED), "Maximum": (apply("Maximum"), X, ROW), "Square": (apply("Square"), X),
    "ReLU": (apply("ReLU"), X), "Exp": (apply("Exp"), X), "Log": (apply("Log"), POSITIVE), "Sqrt": (apply("Sqrt"), POSITIVE),
    "Rsqrt": (apply("Rsqrt"), POSITIVE), "Reciprocal": (apply("Reciprocal"), POSITIVE), "Sigmoid": (apply("Sigmoid"), X),
    "Cos": (apply("Cos"), X), "GeLU": (apply("GeLU"), X), "AddN": (apply("AddN", packed=True), X, Y, TIED),
    "SiLU": (Apply(SiLU()), X * 4), "Select": (apply("Select"), BOOL, X, Y),
    "MatMul": (apply("MatMul"), X, CUBE_2[0]), "MatMul a": (apply("MatMul", transpose_a=True), X, Y),
    "MatMul b": (apply("MatMul", transpose_b=True), X, Y), "BatchMatMul": (apply("BatchMatMul"), CUBE, CUBE_2),
    "BatchMatMul a": (apply("BatchMatMul", transpose_a=True), CUBE, CUBE[::-1].copy()),
    "BatchMatMul b": (apply("BatchMatMul", transpose_b=True), CUBE, CUBE[::-1].copy()),
    "BiasAdd": (apply("BiasAdd"), X, ROW), "BiasAdd 3": (apply("BiasAdd"), CUBE, ROW[:4].copy()),
    "Softmax": (apply("Softmax", axis=-1), CUBE), "LayerNorm": (layer_norm(-1, 1e-5), X * 3, ROW, ROW[::-1].copy()),
    "LayerNorm of two axes": (layer_norm(1, 1e-3), CUBE, X, Y),
    "ReduceSum": (apply("ReduceSum", -1, keep_dims=True), CUBE), "ReduceSum of all": (apply("ReduceSum"), CUBE),
    "ReduceMean": (apply("ReduceMean", (0, 2)), CUBE), "ReduceMax": (apply("ReduceMax", -1, keep_dims=True), CUBE),
    "ReduceMin": (apply("ReduceMin", 1), CUBE), "L2Loss": (apply("L2Loss"), CUBE),
    "Transpose": (apply("Transpose", (2, 0, 1)), CUBE), "Reshape": (apply("Reshape", (6, -1)), CUBE),
    "ExpandDims": (apply("ExpandDims", 1), X), "Tile": (apply("Tile", (2, 1, 3)), X),
    "BroadcastTo": (apply("BroadcastTo", shape=(3, 4, 6)), X),
    "Stack": (apply("Stack", axis=1, packed=True), X, Y), "Unstack": (apply("Unstack", axis=1, output=1), CUBE),
    "Concat": (apply("Concat", axis=1, packed=True), X, Y), "Split": (apply("Split", axis=1, output_num=3, output=2), X),
    "StridedSlice": (apply("StridedSlice", (1, 0), (4, 6), (2, 3)), X), **{f"Index {i}": (Index(i), X) for i in range(4)},
    "Gather": (apply("Gather", 0), X, IDS_2D), "Gather 1": (apply("Gather", 1), X, IDS_2D),
    "GatherD": (GatherD(), X, IDS.reshape(4, 1)),
    "Cast": (apply("Cast", ms.float16), X), "Mul half": (apply("Mul"), HALF_X, HALF_ROW),
    "MatMul half": (apply("MatMul", transpose_b=True), HALF_X, HALF_Y), "Softmax half": (apply("Softmax"), HALF_X),
    "LayerNorm half": (layer_norm(-1, 1e-5), HALF_X, HALF_ROW, HALF_ROW), "ReduceSum half": (apply("ReduceSum", 0), HALF_X),
    "GeLU half": (apply("GeLU"), HALF_X), "SiLU half": (Apply(SiLU()), HALF_X),
}
# without gradients
OTHERS = {
    "Equal": (apply("Equal"), X, TIED), "NotEqual": (apply("NotEqual"), X, TIED), "Greater": (apply("Greater"), X, TIED),
    "GreaterEqual": (apply("GreaterEqual"), X, TIED), "Less": (apply("Less"), X, TIED),
    "LessEqual": (apply("LessEqual"), X, TIED),
    "LogicalAnd": (apply("LogicalAnd"), BOOL, BOOL_2), "LogicalOr": (apply("LogicalOr"), BOOL, BOOL_2),
    "LogicalNot": (apply("LogicalNot"), BOOL), "ReduceAll": (apply("ReduceAll", -1), BOOL),
    "ReduceAny": (apply("ReduceAny"), BOOL),
    "BitwiseXor": (apply("BitwiseXor"), BITS, BITS_2), "BitwiseAnd": (apply("BitwiseAnd"), BITS, BITS_2),
    "BitwiseOr": (apply("BitwiseOr"), BITS, BITS_2), "RightShift": (apply("RightShift"), BITS, np.abs(BITS_2 // 2) % 31),
    "Mul int32": (apply("Mul"), BITS, BITS_2), "Add int32": (apply("Add"), BITS, BITS_2),
    "Sub int32": (apply("Sub"), BITS, BITS_2),
    "FloorDiv": (apply("FloorDiv"), BITS, IDS[0]), "Argmax": (apply("Argmax"), X), "IsFinite": (apply("IsFinite"), ODD),
    "Round": (apply("Round"), ODD[4:].copy()), "Abs": (apply("Abs"), X), "Numbers": (Numbers(), X, BITS), "Made": (Made(), X),
    "OneHot": (apply("OneHot", 5, tensor(1.0), tensor(-0.5)), IDS_2D),
    "UnsortedSegmentSum": (apply("UnsortedSegmentSum", 5), X, IDS), "Cast bool": (apply("Cast", ms.bool_), ODD),
    "UnsortedSegmentSum 2": (apply("UnsortedSegmentSum", 4), CUBE[:, :3].copy(), IDS_2D),
}


@pytest.fixture(scope="module")
def outcome():
    """name -> (what we found, what MindSpore found), and the operators that took part. One compilation for each table."""
    found, executed = {}, set()
    for cases, wrap in ((SMOOTH, WithGradient), (OTHERS, lambda cell: cell)):
        inputs = [np.asarray(x) for _, *xs in cases.values() for x in xs]
        cell = Together([wrap(c) for c, *_ in cases.values()], [len(xs) for _, *xs in cases.values()])
        want = plain(cell(*map(Tensor, inputs)))
        program = compile_on_cpu(cell, *inputs)
        got = interpret(rank_of(cell, program), *inputs)
        found |= {name: (g, w) for name, g, w in zip(cases, got, want, strict=True)}
        executed |= {node.op for node in program.nodes}
    return found, executed


@pytest.mark.parametrize("name", [*SMOOTH, *OTHERS])
def test_operator_equals_mindspore(outcome, name):
    check_same(*outcome[0][name])


def test_every_operator_was_compared(outcome):
    elsewhere = {"RmsNorm", "RmsNormGrad", "FlashAttentionScore", "FlashAttentionScoreGrad"}  # not on CPU: the next tests
    assert {*KERNELS, *TYPED} <= outcome[1] | elsewhere


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_rms_norm_equals_the_model_s_own_on_cpu(dtype):
    """Which transformers holds (tests/model/test_llama_golden.py)."""
    x, gamma, dy = (X * 3).astype(dtype), ROW.astype(dtype), Y.astype(dtype)
    wide = [Tensor(a, ms.float32) for a in (x, gamma, dy)]
    cell = pure.NormalizeRms(6, 1e-3)
    want = cell(*wide[:2])
    got = KERNELS["RmsNorm"](x, gamma, 1e-3)
    assert got[0].dtype == np.float32 and got[1].shape == (4, 1)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b.asnumpy(), rtol=1e-5, atol=1e-6)
    found = KERNELS["RmsNormGrad"](dy, x, got[1], gamma)
    wanted = cell.bprop(*wide[:2], want, (wide[2], None))
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b.asnumpy(), rtol=1e-5, atol=1e-5)


def test_bfloat16_is_computed_in_float32_and_rounded_once():
    """MindSpore has no bfloat16 on CPU; the rounding of exact float32 results is the definition."""
    from mindspore.common.np_dtype import bfloat16
    x, y = X.astype(bfloat16), Y.astype(bfloat16)
    product = KERNELS["MatMul"](x, y, False, True)
    assert product.dtype == np.float32
    assert np.array_equal(product, x.astype("f") @ y.astype("f").T)
    assert KERNELS["Add"](x, y).dtype == bfloat16


@pytest.mark.parametrize(("dtype", "kv_heads", "atol"), [(np.float32, 4, 1e-5), (np.float32, 2, 1e-5), (np.float16, 1, 0.01)])
def test_flash_attention_equals_the_model_s_plain_form(dtype, kv_heads, atol):
    """With groups of heads. The plain form, in float32, is what transformers holds."""
    ms.set_context(mode=ms.PYNATIVE_MODE)
    rng = np.random.RandomState(1)
    q, dy = (rng.randn(2, 6, 4, 16).astype(dtype) for _ in range(2))
    k, v = (rng.randn(2, 6, kv_heads, 16).astype(dtype) for _ in range(2))
    settings = None, None, None, 4, 1.0, 16 ** -0.5, 2**31 - 1, 2**31 - 1, 0, 3, 2
    masks = None, None, None, fused_mask().asnumpy()
    largest, total, _, y = KERNELS["FlashAttentionScore"](q, k, v, *masks, *settings)
    found = KERNELS["FlashAttentionScoreGrad"](q, k, v, dy, *masks, largest, total, None, y.astype(dtype), *settings)
    assert largest.shape == total.shape == (2, 4, 6, 8)
    with plain_kernels():
        core = AttentionCore(ModelConfig(vocab_size=9, hidden_size=64, num_heads=4, num_kv_heads=kv_heads, seq_length=6), 1)
    wide = [Tensor(x, ms.float32) for x in (q, k, v)]
    wanted = core(*wide, None)[0], *ms.grad(lambda *x: (core(*x, None)[0] * Tensor(dy, ms.float32)).sum(), (0, 1, 2))(*wide)
    for a, b in zip((y, *found[:3]), wanted, strict=True):
        np.testing.assert_allclose(a, b.asnumpy(), rtol=0, atol=atol)


def test_flash_attention_in_a_form_that_is_not_the_model_s_is_refused():
    x = np.ones((1, 2, 1, 16), np.float32)
    with pytest.raises(ValueError, match="only BSND, sparse_mode 2"):
        KERNELS["FlashAttentionScore"](x, x, x, None, None, None, fused_mask().asnumpy(), *[None] * 3, 1, 1.0, 1.0, 9, 9, 0, 3, 0)
