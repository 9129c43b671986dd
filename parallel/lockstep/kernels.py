"""MindSpore's operators in numpy.

A kernel takes the operator's inputs in MindSpore's order (mindspore/ops/op_def) and never changes them. What is not exact in half
precision is computed in float32 and rounded once. `rank` gives each result the dtype that MindSpore inferred.
"""
import math
from collections.abc import Callable
from functools import partial

import numpy as np

from parallel.lockstep.mindir import Node

GELU_1 = math.sqrt(2 / math.pi)
GELU_3 = GELU_1 * 0.044715


def wide(x: np.ndarray) -> np.ndarray:
    """x in float32 if its own floating dtype is shorter."""
    return x.astype(np.float32) if x.dtype.itemsize == 2 and x.dtype.kind not in "iu" else x


def in_float32(f: Callable) -> Callable:
    """f of wide arguments; the rest pass unchanged."""
    return lambda *args: f(*(wide(a) if isinstance(a, np.ndarray) else a for a in args))


def arithmetic(f: Callable) -> Callable:
    """f of two tensors, or of a tensor and a Python number, which takes the tensor's dtype where it fits."""
    def apply(x, y):
        if not isinstance(y, np.ndarray):
            y = number_like(y, x)
        elif not isinstance(x, np.ndarray):
            x = number_like(x, y)
        return f(x, y)
    return apply


def number_like(number, x: np.ndarray):
    """Python's number in x's dtype; a float beside integers stays a float."""
    return number if isinstance(number, float) and x.dtype.kind in "iub" else np.asarray(number, x.dtype)


def reduction(f: Callable) -> Callable:
    """(x, axis or axes, keep_dims, skip_mode): over all axes where none is named, unless skip_mode."""
    def apply(x, axis=None, keep_dims=False, skip_mode=False, *_):
        if axis in ((), None):
            if skip_mode:
                return x
            axis = None
        return f(wide(x), axis=axis, keepdims=bool(keep_dims))
    return apply


def matmul(a, b, transpose_a=False, transpose_b=False):
    a, b = wide(a), wide(b)
    return (np.swapaxes(a, -1, -2) if transpose_a else a) @ (np.swapaxes(b, -1, -2) if transpose_b else b)


def bias_add(x, bias, data_format="NCHW"):
    return x + bias if x.ndim == 2 else x + bias.reshape((1, -1) + (1,) * (x.ndim - 2))


def bias_add_grad(dy, data_format="NCHW"):
    return wide(dy).sum(tuple(i for i in range(dy.ndim) if i != 1))


@in_float32
def gelu(x):
    """GELU in its tanh form (Hendrycks and Gimpel, arXiv:1606.08415), as MindSpore's kernel has it."""
    return 0.5 * x * (1 + np.tanh(x * (GELU_1 + GELU_3 * (x * x))))


@in_float32
def gelu_grad(dy, x, _y):
    square = x * x
    t = np.tanh(x * (GELU_1 + GELU_3 * square))
    return dy * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * (GELU_1 + 3 * GELU_3 * square))


def one_axis(axis) -> int:
    return axis[0] if isinstance(axis, tuple) else axis


@in_float32
def softmax(x, axis=-1):
    axis = one_axis(axis)
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


@in_float32
def softmax_backward(dy, y, axis=-1):
    axis = one_axis(axis)
    return y * (dy - (dy * y).sum(axis, keepdims=True))


@in_float32
def layer_norm(x, gamma, beta, begin_norm_axis=-1, _begin_params_axis=-1, epsilon=1e-5):
    axes = tuple(range(begin_norm_axis % x.ndim, x.ndim))
    mean = x.mean(axes, keepdims=True)
    centred = x - mean
    variance = (centred * centred).mean(axes, keepdims=True)
    return centred / np.sqrt(variance + np.float32(epsilon)) * gamma + beta, mean, variance


def layer_norm_grad(x, dy, variance, mean, gamma, begin_norm_axis=-1, _begin_params_axis=-1, *, epsilon):
    x, dy, variance, mean, gamma = map(wide, (x, dy, variance, mean, gamma))
    axes = tuple(range(begin_norm_axis % x.ndim, x.ndim))
    rest = tuple(range(x.ndim - gamma.ndim))
    scale = 1 / np.sqrt(variance + np.float32(epsilon))
    normal, d = (x - mean) * scale, dy * gamma
    dx = (d - d.mean(axes, keepdims=True) - normal * (d * normal).mean(axes, keepdims=True)) * scale
    return dx, (dy * normal).sum(rest), dy.sum(rest)


@in_float32
def rms_norm(x, gamma, epsilon=1e-6):
    """As MindSpore's documentation has it; CPU has no kernel to hold it against."""
    scale = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(epsilon))
    return x * scale * gamma, scale


@in_float32
def rms_norm_grad(dy, x, scale, gamma):
    normal, d = x * scale, dy * gamma
    return (d - normal * (d * normal).mean(-1, keepdims=True)) * scale, (dy * normal).sum(tuple(range(x.ndim - gamma.ndim)))


@in_float32
def silu(x):
    return x / (1 + np.exp(-x))


@in_float32
def silu_grad(dy, x):
    s = 1 / (1 + np.exp(-x))
    return dy * s * (1 + x * (1 - s))


@in_float32
def flash_attention(q, k, v, _shift, _drop, _padding, mask, *settings):
    """As MindSpore's documentation has it, of what the model uses; CPU has no kernel to hold it against."""
    scores, _, v = causal_scores(q, k, v, mask, settings)
    largest = scores.max(-1, keepdims=True)
    e = np.exp(scores - largest)
    total = e.sum(-1, keepdims=True)
    of_rows = tuple(np.repeat(x, 8, -1) for x in (largest, total))
    return *of_rows, np.zeros(1, q.dtype), np.swapaxes(e / total @ v, 1, 2)


@in_float32
def flash_attention_grad(q, k, v, dy, _shift, _drop, _padding, mask, largest, total, _softmax, y, *settings):
    """By q, k, v and the shift, which there is not: the softmax again from its rows' maxima and sums (arXiv:2307.08691)."""
    scores, repeated, v = causal_scores(q, k, v, mask, settings)
    p, (q, dy, y) = np.exp(scores - largest[..., :1]) / total[..., :1], (np.swapaxes(x, 1, 2) for x in (q, dy, y))
    ds = p * (matmul(dy, v, transpose_b=True) - (dy * y).sum(-1, keepdims=True)) * np.float32(settings[FLASH_SCALE])
    batch, seq, kv_heads, d = k.shape
    dk, dv = (matmul(a, b, transpose_a=True).reshape(batch, kv_heads, -1, seq, d).sum(2) for a, b in ((ds, q), (p, dy)))
    return *(np.swapaxes(x, 1, 2) for x in (ds @ repeated, dk, dv)), np.zeros(0, q.dtype)


FLASH_SCALE, FLASH_FIXED = 5, {4: 1.0, 9: 3, 10: 2}  # places in `settings`: keep_prob, BSND as a number, causal


def causal_scores(q, k, v, mask, settings):
    """(masked scores [batch, heads, seq, seq], k and v for each head of q [batch, heads, seq, d]); seq is 2048 at most."""
    if mask is None or any(settings[i] != x for i, x in FLASH_FIXED.items()):
        raise ValueError(f"FlashAttentionScore with {settings}: only BSND, sparse_mode 2 and no dropout is known here")
    k, v = (np.repeat(np.swapaxes(x, 1, 2), q.shape[2] // k.shape[2], 1) for x in (k, v))
    scores = np.swapaxes(q, 1, 2) @ np.swapaxes(k, -1, -2) * np.float32(settings[FLASH_SCALE])
    return np.where(mask[:scores.shape[2], :scores.shape[3]], -np.inf, scores), k, v


def one_hot(index, depth, on, off, axis=-1):
    if axis not in (-1, index.ndim):
        raise ValueError(f"OneHot along axis {axis}: only the last axis is known here")
    return np.where(index[..., None] == np.arange(int(depth)), on, off)


def gather(x, index, axis, batch_dims=0):
    if batch_dims:
        raise ValueError(f"Gather with batch_dims={batch_dims}: only 0 is known here")
    return np.take(x, index, int(axis))


def gather_d_grad(x, dim, index, dy):
    out = np.zeros(x.shape, wide(dy).dtype)
    place = list(np.ogrid[tuple(slice(n) for n in index.shape)])
    place[dim] = index
    np.add.at(out, tuple(place), dy)
    return out


def segment_sum(x, index, count):
    """Rows with a number outside [0, count) are left out."""
    flat, rows = index.reshape(-1), wide(x).reshape((index.size,) + x.shape[index.ndim:])
    inside = np.flatnonzero((flat >= 0) & (flat < count))
    out = np.zeros((int(count),) + x.shape[index.ndim:], rows.dtype)
    if inside.size:
        order = inside[np.argsort(flat[inside], kind="stable")]
        numbers = flat[order]
        starts = np.flatnonzero(np.r_[True, numbers[1:] != numbers[:-1]])
        out[numbers[starts]] = np.add.reduceat(rows[order], starts)
    return out


def slices(begin, end, strides, begin_mask=0, end_mask=0, ellipsis_mask=0, new_axis_mask=0, shrink_axis_mask=0):
    """numpy's index for StridedSlice: bit i of a mask is about the i-th entry."""
    index = []
    for i, (b, e, s) in enumerate(zip(begin, end, strides, strict=True)):
        bit = 1 << i
        if ellipsis_mask & bit:
            index.append(Ellipsis)
        elif new_axis_mask & bit:
            index.append(None)
        elif shrink_axis_mask & bit:
            index.append(int(b))
        else:
            index.append(slice(None if begin_mask & bit else int(b), None if end_mask & bit else int(e), int(s)))
    return tuple(index)


def strided_slice_grad(dy, shape, begin, end, strides, **masks):
    out = np.zeros(shape, dy.dtype)
    out[slices(begin, end, strides, **masks)] = dy
    return out


def add_n(tensors):
    total = wide(tensors[0])
    for x in tensors[1:]:
        total = total + wide(x)
    return total


def concat(tensors, axis=0):
    return np.concatenate(tensors, axis)


def split(x, axis, count):
    return tuple(np.split(x, count, axis))


def split_with_size(x, sizes, axis):
    return tuple(np.split(x, np.cumsum(sizes)[:-1], axis))


def unstack(x, *, axis):
    return tuple(np.moveaxis(x, axis, 0))


BINARY: dict[str, Callable] = {  # of two tensors, or of a tensor and a number
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "RealDiv": np.true_divide, "Div": np.true_divide,
    "Muls": np.multiply, "Divs": np.true_divide, "FloorDiv": np.floor_divide, "Pow": in_float32(np.power),
    "PowTensorScalar": in_float32(np.power), "Minimum": np.minimum, "Maximum": np.maximum, "Equal": np.equal,
    "NotEqual": np.not_equal, "Greater": np.greater, "GreaterEqual": np.greater_equal, "Less": np.less,
    "LessEqual": np.less_equal, "LogicalAnd": np.logical_and, "LogicalOr": np.logical_or, "BitwiseXor": np.bitwise_xor,
    "BitwiseAnd": np.bitwise_and, "BitwiseOr": np.bitwise_or, "RightShift": np.right_shift,
}
KERNELS: dict[str, Callable] = {op: arithmetic(f) for op, f in BINARY.items()} | {
    "SubScalar": lambda x, y, alpha=1: x - number_like(alpha * y, x), "AddN": add_n,
    # element by element
    "Neg": np.negative, "Abs": np.abs, "Square": np.square, "Round": np.round, "IsFinite": np.isfinite,
    "LogicalNot": np.logical_not,
    "Exp": in_float32(np.exp), "Log": in_float32(np.log), "Sqrt": in_float32(np.sqrt), "Cos": in_float32(np.cos),
    "Sin": in_float32(np.sin), "Rsqrt": in_float32(lambda x: 1 / np.sqrt(x)), "Reciprocal": in_float32(lambda x: 1 / x),
    "ReLU": lambda x: np.maximum(x, np.zeros((), x.dtype)), "ReluGrad": lambda dy, y: dy * (y > 0),
    "Sigmoid": in_float32(lambda x: 1 / (1 + np.exp(-x))), "SigmoidGrad": in_float32(lambda y, dy: dy * y * (1 - y)),
    "SqrtGrad": in_float32(lambda y, dy: dy * 0.5 / y), "RsqrtGrad": in_float32(lambda y, dy: dy * -0.5 * y * y * y),
    "GeLU": gelu, "GeLUGrad": gelu_grad, "SiLU": silu, "SiLUGrad": silu_grad, "Select": np.where,
    # products, normalization, reductions
    "MatMul": matmul, "BatchMatMul": matmul, "BiasAdd": bias_add, "BiasAddGrad": bias_add_grad,
    "Softmax": softmax, "SoftmaxBackward": softmax_backward, "LayerNorm": layer_norm, "LayerNormGrad": layer_norm_grad,
    "RmsNorm": rms_norm, "RmsNormGrad": rms_norm_grad,
    "FlashAttentionScore": flash_attention, "FlashAttentionScoreGrad": flash_attention_grad,
    "ReduceSum": reduction(np.sum), "ReduceMean": reduction(np.mean), "ReduceMax": reduction(np.max),
    "ReduceMin": reduction(np.min), "ReduceAll": reduction(np.all), "ReduceAny": reduction(np.any),
    "L2Loss": lambda x: np.square(wide(x)).sum() / 2,
    "SumExt": lambda x, axis=None, keep_dims=False, *_: reduction(np.sum)(x, axis, keep_dims),
    "Argmax": lambda x, axis=-1, *_: np.argmax(x, axis),
    # indices and shapes
    "OneHot": one_hot, "Gather": gather, "GatherD": lambda x, dim, index: np.take_along_axis(x, index, dim),
    "GatherDGradV2": gather_d_grad, "UnsortedSegmentSum": segment_sum,
    "StridedSlice": lambda x, *index: x[slices(*index)], "StridedSliceGrad": strided_slice_grad,
    "Stack": lambda tensors, *, axis: np.stack(tensors, axis), "Unstack": unstack, "Concat": concat,
    "Split": split, "SplitWithSize": split_with_size, "Tile": np.tile, "Transpose": np.transpose, "Reshape": np.reshape,
    "ExpandDims": np.expand_dims, "BroadcastTo": np.broadcast_to, "Cast": lambda x, *_: np.asarray(x),
    "ZerosLikeExt": lambda x, *_: np.zeros_like(x),
}
# These are told the type of their result.
TYPED: dict[str, Callable] = {"FillV2": lambda kind, _shape, x: np.full(kind.shape, x, kind.dtype)}
# These have arguments that MindSpore keeps as attributes.
ATTRIBUTES = {
    "LayerNormGrad": ("epsilon",), "Stack": ("axis",), "Unstack": ("axis",),
    "StridedSliceGrad": ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask"),
}


def kernel_of(node: Node) -> Callable | None:
    """The kernel of a node, to be called with its inputs; None if the operator is not known."""
    if node.op in TYPED:
        return partial(TYPED[node.op], node.type)
    f = KERNELS.get(node.op)
    if f and node.op in ATTRIBUTES:
        return partial(f, **{name: node.attributes[name] for name in ATTRIBUTES[node.op]})
    return f
