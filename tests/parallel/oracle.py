"""MindSpore itself as the oracle: compile a cell for CPU, run it by MindSpore's kernels, and interpret the graph that it made."""
import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.graph.api import _cell_graph_executor as executor

from parallel.lockstep import mindir
from parallel.lockstep.rank import Rank
from parallel.lockstep.schedule import run


def compile_on_cpu(cell: nn.Cell, *inputs: np.ndarray) -> mindir.Program:
    """The graph that MindSpore makes of a cell; one that has been called is not compiled again."""
    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
    phase, _ = executor.compile(cell, *map(Tensor, inputs), phase=cell.phase)
    return mindir.read(executor._graph_executor.get_func_graph_proto(phase, "mind_ir", False))


def rank_of(cell: nn.Cell, program: mindir.Program) -> Rank:
    """A job of one rank, with the cell's parameters as they are now."""
    return Rank(program, {p.name: p.asnumpy() for p in cell.get_parameters()}, 0)


def interpret(rank: Rank, *inputs: np.ndarray):
    """What the interpreter returns for one step."""
    return run({0: rank}, {0: inputs})[0][0]


def plain(x):
    """MindSpore's outputs as arrays."""
    return tuple(map(plain, x)) if isinstance(x, tuple | list) else x.asnumpy() if isinstance(x, Tensor) else x


def check_same(got, want) -> None:
    """Same structure, dtypes and shapes; same integers; floats within a few units of the last place of the largest."""
    if isinstance(want, tuple):
        assert len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            check_same(g, w)
        return
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if want.dtype.kind == "f":
        units = 40 if want.dtype == np.float32 else 2
        largest = np.abs(want[np.isfinite(want)]).max(initial=1.0)
        assert np.allclose(got, want, rtol=0, atol=units * np.finfo(want.dtype).eps * largest, equal_nan=True)
    else:
        assert np.array_equal(got, want)


class Apply(nn.Cell):
    """A primitive on the inputs, followed by constants; packed: the inputs as one tuple; output: which, if it has several."""

    def __init__(self, primitive, *constants, packed: bool = False, output: int | None = None):
        super().__init__()
        self.primitive, self.constants, self.packed, self.output = primitive, constants, packed, output

    def construct(self, *xs):
        y = self.primitive(xs, *self.constants) if self.packed else self.primitive(*xs, *self.constants)
        return y if self.output is None else y[self.output]


class WithGradient(nn.Cell):
    """(y, gradients of all inputs) for the incoming gradient cos(y)."""

    def __init__(self, cell: nn.Cell):
        super().__init__()
        self.inner, self.cos = cell, ops.Cos()
        self.grad = ops.GradOperation(get_all=True, sens_param=True)

    def construct(self, *xs):
        y = self.inner(*xs)
        return y, self.grad(self.inner)(*xs, self.cos(y))


class Together(nn.Cell):
    """Cells side by side, each on its own inputs, so that one compilation serves them all."""

    def __init__(self, cells: list[nn.Cell], counts: list[int]):
        super().__init__()
        ends = np.cumsum(counts).tolist()
        self.parts, self.spans = nn.CellList(cells), tuple(zip([0, *ends[:-1]], ends, strict=True))

    def construct(self, *xs):
        results = ()
        for i in range(len(self.spans)):
            results += (self.parts[i](*xs[self.spans[i][0]:self.spans[i][1]]),)
        return results
