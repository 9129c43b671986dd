"""What goes into and comes out of every cell of a network, forward and backward, for one call under PyNative.

A compiled graph shows nothing of its inside; PyNative runs the same cells one by one. MindSpore's hooks would do, but its forward
hooks are not called for cells with a gradient of their own (`bprop`), which most of the CPU forms are; so `construct` and `bprop`
of each cell are wrapped. Values and gradients stay the same to the bit; a test holds them to that.
"""
import contextlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from mindspore._c_expression import MixedPrecisionType

from model.layers import Corner

# What `to_float` makes of a cell's inputs: a compiled graph casts them, PyNative does not where a cell has a gradient of its own.
HALVES = {MixedPrecisionType.FP16: ms.float16, MixedPrecisionType.BF16: ms.bfloat16, MixedPrecisionType.FP32: ms.float32}
FLOATS = (ms.float32, ms.float16, ms.bfloat16, ms.float64)


def figures(x: Tensor | np.ndarray) -> dict:
    """shape, dtype; min, max and abs_max of the finite values (None: there are none); nonfinite: the share of the others."""
    name = str(x.dtype).lower()
    if isinstance(x, Tensor):
        x = (x.astype(ms.float32) if x.dtype == ms.bfloat16 else x).asnumpy()
    good = x[np.isfinite(x)]
    low, high = (float(good.min()), float(good.max())) if good.size else (None, None)
    return {"shape": list(x.shape), "dtype": name, "min": low, "max": high,
            "abs_max": max(abs(low), abs(high)) if good.size else None,
            "nonfinite": 1.0 - good.size / x.size if x.size else 0.0}


def is_float(x) -> bool:
    """Whether it is a tensor that can be other than finite."""
    return isinstance(x, Tensor) and x.dtype in FLOATS


@dataclass
class Passage:
    """One call of a cell, in one direction: backward its inputs are the gradients of its outputs, and the other way round.

    Figures by name: arguments and parameters as the cell calls them, results by their place.
    """

    cell: str
    direction: str
    inputs: dict[str, dict] = field(default_factory=dict)
    outputs: dict[str, dict] = field(default_factory=dict)

    @property
    def nonfinite(self) -> bool:
        """Whether something that comes out is not finite."""
        return any(f["nonfinite"] for f in self.outputs.values())


class Probes:
    """The passages of a network's cells, each direction in the order in which their first result was there.

    Args:
        network: as it is called; its cells stay wrapped.
    """

    def __init__(self, network: nn.Cell):
        self.network = network.set_train().set_grad()
        self.weights = ParameterTuple(network.trainable_params())
        self.grad = ops.GradOperation(get_by_list=True, sens_param=True)
        self.passages: list[Passage] = []
        self.gradients: dict[str, dict] = {}  # parameter -> figures, in the order in which they came
        for name, cell in network.cells_and_names():
            # A Corner is part of a constant: of the mask, whose -1e30 is infinite in float16, and is meant to be.
            if not isinstance(cell, nn.CellList | Corner):
                self._wrap(cell, name)
        for weight in self.weights:
            weight.register_hook(lambda gradient, name=weight.name: self.gradients.setdefault(name, figures(gradient)) and None)

    def run(self, tokens: np.ndarray, positions: np.ndarray, sens: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        """One call and its gradients under PyNative. Returns the network's output, and the gradients of `weights`.

        Args:
            sens: the gradient of the network's output.
        """
        self.passages, self.gradients, self.output = [], {}, None
        with pynative():
            found = self.grad(self.network, self.weights)(Tensor(tokens), Tensor(positions), Tensor(sens))
            return self.output.asnumpy(), [g.asnumpy() for g in found]

    def _wrap(self, cell: nn.Cell, name: str) -> None:
        # Not by setattr: a Cell keeps what it is given among its parameters and cells.
        if cell.has_bprop:
            object.__setattr__(cell, "bprop", self._seen_bprop(cell, name, cell.bprop))
            if half := HALVES.get(cell.mixed_precision_type):
                cell.register_forward_pre_hook(lambda _, inputs: tuple(x.astype(half) if is_float(x) else x for x in inputs))
        object.__setattr__(cell, "construct", self._seen_construct(cell, name, cell.construct))

    def _seen_construct(self, cell: nn.Cell, name: str, construct):
        own = {key: p for key, p in cell.parameters_dict(recurse=False).items() if is_float(p)}
        names = list(inspect.signature(construct).parameters)

        def seen(*inputs):
            # What is called once the network's output is there belongs to somebody's `bprop`.
            now = Passage(name, "forward" if self.output is None else "backward")
            now.inputs = _figures_of({**dict(zip(names, inputs, strict=False)), **own})
            later = None if cell.has_bprop or self.output is not None else Passage(name, "backward")
            if later:
                inputs = tuple(self._hooked(x, later, later.outputs, key) for key, x in zip(names, inputs, strict=True))
            found = construct(*inputs)
            results = _numbered(found)
            now.outputs = _figures_of(results)
            self._add(now)
            if later:
                hooked = tuple(self._hooked(x, later, later.inputs, key) for key, x in results.items())
                found = hooked if isinstance(found, tuple) else hooked[0]
            if not name:
                self.output = found
            return found
        return seen

    def _seen_bprop(self, cell: nn.Cell, name: str, bprop):
        names = list(inspect.signature(cell.construct).parameters)

        def seen(*arguments):  # inputs, outputs, gradients of the outputs
            found = bprop(*arguments)
            self._add(Passage(name, "backward", _figures_of(_numbered(arguments[-1])),
                              _figures_of(dict(zip(names, found, strict=True)))))
            return found
        return seen

    def _hooked(self, x, passage: Passage, side: dict[str, dict], key: str):
        """x, whose gradient goes into the passage's figures."""
        if not is_float(x) or isinstance(x, Parameter):  # a parameter has a hook of its own, and must stay one
            return x

        def seen(gradients):
            side[key] = figures(gradients[0])
            if side is passage.outputs and len(side) == 1:
                self._add(passage)
        return ops.HookBackward(seen)(x)

    def _add(self, passage: Passage) -> None:
        if passage.outputs:
            self.passages.append(passage)


def _numbered(values) -> dict[str, object]:
    return {str(i): x for i, x in enumerate(values if isinstance(values, tuple) else (values,))}


def _figures_of(values: dict[str, object]) -> dict[str, dict]:
    return {key: figures(x) for key, x in values.items() if is_float(x)}


@contextlib.contextmanager
def pynative() -> Iterator[None]:
    """PyNative mode for a while."""
    before = ms.get_context("mode")
    ms.set_context(mode=ms.PYNATIVE_MODE)
    try:
        yield
    finally:
        ms.set_context(mode=before)
