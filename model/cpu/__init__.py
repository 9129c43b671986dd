"""The model's cells for CPU, in two forms of the same names: `compiled` with a C++ compiler, `pure` where there is none.

On CPU MindSpore 2.10's GeLU, LayerNorm, BiasAddGrad, Softmax's gradient and ReduceSum over rows run at a tenth of the speed of
the rest, and on one thread. Values and gradients of both forms equal those of the plain cells within float32 rounding.
"""
from types import ModuleType

from model.cpu import compiled, library, pure


def cells() -> ModuleType:
    """The module whose cells a model is built of on this machine; `library.problem()` says why it is not `compiled`."""
    return pure if library.problem() else compiled
