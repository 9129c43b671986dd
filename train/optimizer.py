"""AdamW, with bias correction.

Ours, since `nn.AdamWeightDecay` has no bias correction (it is not AdamW), and `mint.optim.AdamW` has no CPU kernel.
"""
import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from mindspore.ops import functional as F

from train.clipping import clipped
from train.config import TrainConfig
from train.groups import settings

_update = ops.MultitypeFuncGraph("adamw")


@_update.register("Function", "Tensor", "Tensor", "Tensor", "Tuple", "Tuple", "Number", "Tensor", "Number", "Tensor", "Tensor",
                  "Tensor", "Tensor")
def _update_one(adam, beta1, beta2, eps, rates, decays, limit, factor, setting, weight, moment1, moment2, gradient):
    return adam(weight, moment1, moment2, rates[setting], beta1, beta2, eps, decays[setting], clipped(gradient, factor, limit))


class AdamW(nn.Cell):
    """Decoupled weight decay (Loshchilov and Hutter, arXiv:1711.05101) on matrices and embeddings, not on biases and norms.

    construct: gradients (a tuple like the weights), as many float32 factors that they are multiplied by, the learning rate
    (float32). No value of a gradient counts beyond `limit` after that; 0: none.
    """

    def __init__(self, weights: ParameterTuple, config: TrainConfig, limit: float):
        super().__init__(auto_prefix=False)  # parameters keep the names that they have in the GPT
        self.weights, self.limit = weights, limit
        self.moment1 = weights.clone(prefix="moment1", init="zeros")
        self.moment2 = weights.clone(prefix="moment2", init="zeros")
        self.updates = Parameter(Tensor(0, ms.int32), name="updates", requires_grad=False)
        self.different, self.settings = settings(weights, config)
        self.beta1, self.beta2 = (Tensor(b, ms.float32) for b in config.betas)
        self.log_betas = Tensor(np.log(config.betas), ms.float32)
        self.eps, self.zero = config.eps, Tensor(0.0, ms.float32)
        self.adam, self.map, self.exp, self.sqrt = ops.AdamWeightDecay(), ops.HyperMap(), ops.Exp(), ops.Sqrt()

    @property
    def state(self) -> tuple[Parameter, ...]:
        """What a checkpoint keeps."""
        return (*self.moment1, *self.moment2)

    def construct(self, gradients, factors, lr):
        self.updates = self.updates + 1
        correction = 1.0 - self.exp(self.log_betas * F.cast(self.updates, ms.float32))
        root = self.sqrt(correction[1])
        # The fused kernel knows no bias correction, but
        # m / c1 / (sqrt(v / c2) + eps) = (sqrt(c2) / c1) m / (sqrt(v) + eps sqrt(c2)).
        rate = lr * root / correction[0]
        rates, decays = (), ()
        for lr_factor, weight_decay in self.different:
            rates += (rate if lr_factor == 1.0 else rate * lr_factor,)
            decays += (self.zero if weight_decay == 0.0 else weight_decay * correction[0] / root,)
        update = F.partial(_update, self.adam, self.beta1, self.beta2, self.eps * root, rates, decays, self.limit)
        return self.map(update, factors, self.settings, self.weights, self.moment1, self.moment2, gradients)
