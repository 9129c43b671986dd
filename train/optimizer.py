"""AdamW, with bias correction.

Ours, since `nn.AdamWeightDecay` has no bias correction (it is not AdamW), and `mint.optim.AdamW` has no CPU kernel.
"""
import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from mindspore.ops import functional as F

from train.clipping import clipped
from train.config import TrainConfig

_update = ops.MultitypeFuncGraph("adamw")


@_update.register("Function", "Tensor", "Tensor", "Tensor", "Tensor", "Tensor", "Tensor", "Number", "Tensor", "Number", "Tensor",
                  "Tensor", "Tensor", "Tensor")
def _update_one(adam, lr, beta1, beta2, eps, weight_decay, zero, limit, factor, decays, weight, moment1, moment2, gradient):
    decay = weight_decay if decays else zero
    return adam(weight, moment1, moment2, lr, beta1, beta2, eps, decay, clipped(gradient, factor, limit))


class AdamW(nn.Cell):
    """Decoupled weight decay (Loshchilov and Hutter, arXiv:1711.05101) on matrices and embeddings, not on biases and norms.

    construct: gradients (a tuple like the weights), as many float32 factors that they are multiplied by, the learning rate (float32).
    No value of a gradient counts beyond `limit` after that; 0: none.
    """

    def __init__(self, weights: ParameterTuple, config: TrainConfig, limit: float):
        super().__init__(auto_prefix=False)  # parameters keep the names that they have in the GPT
        self.weights, self.limit = weights, limit
        self.moment1 = weights.clone(prefix="moment1", init="zeros")
        self.moment2 = weights.clone(prefix="moment2", init="zeros")
        self.updates = Parameter(Tensor(0, ms.int32), name="updates", requires_grad=False)
        # LayerNorm's weights and all biases are vectors; everything else is a matrix.
        self.decays = tuple(int(len(w.shape) > 1) for w in weights)
        self.beta1, self.beta2 = (Tensor(b, ms.float32) for b in config.betas)
        self.log_betas = Tensor(np.log(config.betas), ms.float32)
        self.eps, self.zero, self.weight_decay = config.eps, Tensor(0.0, ms.float32), config.weight_decay
        self.adam, self.map, self.exp, self.sqrt = ops.AdamWeightDecay(), ops.HyperMap(), ops.Exp(), ops.Sqrt()

    def construct(self, gradients, factors, lr):
        self.updates = self.updates + 1
        correction = 1.0 - self.exp(self.log_betas * F.cast(self.updates, ms.float32))
        root = self.sqrt(correction[1])
        # The fused kernel knows no bias correction, but
        # m / c1 / (sqrt(v / c2) + eps) = (sqrt(c2) / c1) m / (sqrt(v) + eps sqrt(c2)).
        rate = lr * root / correction[0]
        decay = self.weight_decay * correction[0] / root
        update = F.partial(_update, self.adam, rate, self.beta1, self.beta2, self.eps * root, decay, self.zero, self.limit)
        return self.map(update, factors, self.decays, self.weights, self.moment1, self.moment2, gradients)
