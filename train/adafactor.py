"""Adafactor: of a matrix's second moment it keeps the means of rows and columns alone, and no first moment.

Ours, since `nn.AdaFactor` of MindSpore 2.10 takes its learning rate when it is built, and its construct, a `jit` of its own, ends
in "Graph cycle exists" when another cell's graph calls it.
"""
import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from mindspore.ops import functional as F

from parallel.cost.parameters import COLUMNS, ROWS, TABLES
from train.clipping import clipped
from train.config import TrainConfig
from train.groups import settings

DECAY, LARGEST_RMS = -0.8, 1.0  # of the paper's table; the last is the RMS above which an update is scaled down
TINY = 1e-37  # in float32 a row without a gradient beside one with a large one would give 1 / 0

_pick = ops.MultitypeFuncGraph("pick")
_matrix = ops.MultitypeFuncGraph("adafactor_matrix")
_vector = ops.MultitypeFuncGraph("adafactor_vector")


@_pick.register("Tuple", "Number")
def _pick_one(values, index):
    return values[index]


def _moved(rates, decays, setting, elements, weight, update):
    """The weight after an update that is scaled down to a root mean square of LARGEST_RMS."""
    rms = ops.sqrt(ops.square(update).sum() / elements)
    rate = rates[setting] / ops.maximum(rms / LARGEST_RMS, 1.0)
    return F.assign(weight, weight - weight * decays[setting] - update * rate)


@_matrix.register("Tensor", "Number", "Tuple", "Tuple", "Number", "Tensor", "Number", "Number", "Tensor", "Tensor", "Tensor",
                  "Tensor")
def _update_matrix(beta2, eps, rates, decays, limit, factor, setting, count, weight, rows, columns, gradient):
    gradient = clipped(gradient, factor, limit)
    squares = ops.square(gradient)
    row = rows * beta2 + squares.mean(-1) * (1.0 - beta2)
    column = columns * beta2 + squares.sum(-2) / count * (1.0 - beta2)
    # V = R C / mean(R), of the rows that count. Averages of squares + eps are averages of squares, + eps: added here, it does
    # not become a gradient of the rows that pad the token table.
    by_row = ops.rsqrt(ops.maximum((row + eps) / (row.sum() / count + eps), TINY))
    update = gradient * ops.expand_dims(by_row, -1) * ops.expand_dims(ops.rsqrt(column + eps), -2)
    done = F.assign(rows, row), F.assign(columns, column)
    return F.depend(_moved(rates, decays, setting, count * weight.shape[1], weight, update), done)


@_vector.register("Tensor", "Number", "Tuple", "Tuple", "Number", "Tensor", "Number", "Tensor", "Tensor", "Tensor")
def _update_vector(beta2, eps, rates, decays, limit, factor, setting, weight, moment, gradient):
    gradient = clipped(gradient, factor, limit)
    square = moment * beta2 + ops.square(gradient) * (1.0 - beta2)
    done = F.assign(moment, square)
    update = gradient * ops.rsqrt(square + eps)
    return F.depend(_moved(rates, decays, setting, weight.shape[0], weight, update), done)


class Adafactor(nn.Cell):
    """Shazeer and Stern, arXiv:1804.04235, algorithm 4, with the schedule's learning rate in place of its relative step, and
    weight decay as in AdamW. Row and column means of each matrix, the whole second moment of vectors. What is added to squared
    gradients is the square of train.eps.

    construct: as AdamW's.

    Args:
        vocab_size: rows of the token table that count; None: all.
    """

    def __init__(self, weights: ParameterTuple, config: TrainConfig, limit: float, vocab_size: int | None = None):
        super().__init__(auto_prefix=False)
        self.weights, self.limit, self.eps = weights, limit, config.eps**2
        self.matrices, self.vectors = (tuple(i for i, w in enumerate(weights) if (len(w.shape) > 1) == wanted)
                                       for wanted in (True, False))
        matrices, vectors = ([weights[i] for i in chosen] for chosen in (self.matrices, self.vectors))
        self.of_matrices, self.of_vectors = ParameterTuple(matrices), ParameterTuple(vectors)
        self.rows = ParameterTuple(_zeros(f"{ROWS}{w.name}", w.shape[:1]) for w in matrices)
        self.columns = ParameterTuple(_zeros(f"{COLUMNS}{w.name}", w.shape[1:]) for w in matrices)
        self.moment2 = ParameterTuple(_zeros(f"moment2.{w.name}", w.shape) for w in vectors)
        self.counts = tuple(float(vocab_size) if vocab_size and w.name in TABLES else float(w.shape[0]) for w in matrices)
        self.updates = Parameter(Tensor(0, ms.int32), name="updates", requires_grad=False)
        self.different, self.settings = settings(weights, config)
        self.map, self.exp, self.log = ops.HyperMap(), ops.Exp(), ops.Log()

    @property
    def state(self) -> tuple[Parameter, ...]:
        """What a checkpoint keeps."""
        return (*self.rows, *self.columns, *self.moment2)

    def chosen(self, values, indices):
        """Those of a tuple's elements."""
        return self.map(F.partial(_pick, values), indices)

    def construct(self, gradients, factors, lr):
        self.updates = self.updates + 1
        beta2 = 1.0 - self.exp(self.log(F.cast(self.updates, ms.float32)) * DECAY)
        rates, decays = (), ()
        for lr_factor, weight_decay in self.different:
            rates += (lr * lr_factor,)
            decays += (lr * lr_factor * weight_decay,)
        matrix = F.partial(_matrix, beta2, self.eps, rates, decays, self.limit)
        vector = F.partial(_vector, beta2, self.eps, rates, decays, self.limit)
        m, v = self.matrices, self.vectors
        return (self.map(matrix, self.chosen(factors, m), self.chosen(self.settings, m), self.counts, self.of_matrices, self.rows,
                         self.columns, self.chosen(gradients, m)),
                self.map(vector, self.chosen(factors, v), self.chosen(self.settings, v), self.of_vectors, self.moment2,
                         self.chosen(gradients, v)))


def _zeros(name: str, shape: tuple[int, ...]) -> Parameter:
    return Parameter(Tensor(np.zeros(shape), ms.float32), name=name, requires_grad=False)
