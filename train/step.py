"""One training step as one compiled cell."""
import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from mindspore.ops import functional as F

from parallel.mesh import Mesh
from train.config import LossScaleConfig, TrainConfig
from train.optimizer import AdamW
from train.reduction import sum_over_ranks
from train.schedule import Schedule

_add = ops.MultitypeFuncGraph("add")
_half_square_sum = ops.MultitypeFuncGraph("half_square_sum")


@_add.register("Tensor", "Tensor")
def _add_two(x, y):
    return x + y


@_half_square_sum.register("Function", "Tensor")
def _half_square_sum_of_one(l2_loss, x):
    return l2_loss(x)


class LossScaler(nn.Cell):
    """Dynamic loss scale (Micikevicius et al., arXiv:1710.03740): halves at overflow, doubles after a row of good steps."""

    def __init__(self, config: LossScaleConfig):
        super().__init__(auto_prefix=False)
        self.scale = Parameter(Tensor(config.initial, ms.float32), name="loss_scale", requires_grad=False)
        self.good_steps = Parameter(Tensor(0, ms.int32), name="good_steps", requires_grad=False)
        self.dynamic, self.interval = config.dynamic, config.growth_interval
        self.lowest, self.highest = Tensor(config.min, ms.float32), Tensor(config.max, ms.float32)
        self.minimum, self.maximum = ops.Minimum(), ops.Maximum()

    def construct(self, finite):
        """Adjust the scale after a step whose gradients were finite, or not (bool scalar)."""
        if self.dynamic:
            if finite:
                self.good_steps = self.good_steps + 1
                if self.good_steps >= self.interval:
                    self.scale = self.minimum(self.scale * 2.0, self.highest)
                    self.good_steps = self.good_steps * 0
            else:
                self.scale = self.maximum(self.scale * 0.5, self.lowest)
                self.good_steps = self.good_steps * 0
        return finite


class TrainStep(nn.Cell):
    """Scaled forward and backward over the micro-batches, sum over ranks, unscale, global norm, clip, AdamW, loss scale.

    The loss is the mean over all tokens of the global batch that the mask counts, however unevenly they lie on ranks and
    micro-batches: sums of losses and of gradients are added up and divided once, by the number of tokens. When the norm is not
    finite, which all ranks see alike since they hold the same sums, weights and moments stay as they are.

    construct: tokens int32 [samples of this rank, seq + 1] ->
        loss, grad_norm (before clipping), loss_scale (used), overflow (bool), lr, tokens (of the global batch); all scalars.

    Args:
        network: (tokens, positions) -> (sum of losses, number of tokens), as model.gpt.GPTLoss.
        tokens_per_batch: tokens of a full global batch; only scales the backward pass.
    """

    def __init__(self, network: nn.Cell, config: TrainConfig, loss_scale: LossScaleConfig, mesh: Mesh, num_micro_batches: int,
                 tokens_per_batch: int):
        super().__init__(auto_prefix=False)  # parameters keep the names that they have in the GPT
        self.network = network.set_grad()
        self.weights = ParameterTuple(network.trainable_params())
        self.optimizer, self.schedule, self.scaler = AdamW(self.weights, config), Schedule(config), LossScaler(loss_scale)
        self.steps = Parameter(Tensor(0, ms.int32), name="steps", requires_grad=False)
        self.consumed_samples = Parameter(Tensor(0, ms.int32), name="consumed_samples", requires_grad=False)
        self.grad = ops.GradOperation(get_by_list=True, sens_param=True)
        share = config.global_batch_size // mesh.dp
        self.num_micro_batches, self.micro_batch_size = num_micro_batches, share // num_micro_batches
        self.global_batch_size, self.tokens_per_batch = config.global_batch_size, tokens_per_batch
        self.clip_norm = config.clip_norm
        self.rows = Tensor(np.arange(mesh.dp_rank * share, (mesh.dp_rank + 1) * share), ms.int32)  # places in the global batch
        self.distributed = mesh.dp > 1
        self.map, self.l2_loss, self.sqrt = ops.HyperMap(), ops.L2Loss(), ops.Sqrt()
        self.minimum, self.maximum, self.is_finite = ops.Minimum(), ops.Maximum(), ops.IsFinite()
        if self.distributed:
            self.sum_over_ranks = sum_over_ranks(self.weights, mesh.dp)

    def micro_batch(self, tokens, positions, index, sens):
        """(loss sum, tokens, gradients) of one micro-batch."""
        lo, hi = index * self.micro_batch_size, (index + 1) * self.micro_batch_size
        tokens, positions = tokens[lo:hi], positions[lo:hi]
        loss, count = self.network(tokens, positions)
        return loss, count, self.grad(self.network, self.weights)(tokens, positions, (sens, F.zeros_like(sens)))

    def construct(self, tokens):
        scale = self.scaler.scale * 1.0
        sens = scale / self.tokens_per_batch
        positions = self.rows + self.consumed_samples
        loss, count, grads = self.micro_batch(tokens, positions, 0, sens)
        for i in range(1, self.num_micro_batches):
            # depend: one micro-batch after the other, or all their activations would be alive at once.
            more_loss, more_count, more = self.micro_batch(F.depend(tokens, grads), positions, i, sens)
            loss, count, grads = loss + more_loss, count + more_count, self.map(_add, grads, more)
        if self.distributed:
            loss, count, grads = self.sum_over_ranks(loss, count, grads)
        count = self.maximum(count, 1.0)
        unscale = self.tokens_per_batch / (count * scale)
        norm = self.sqrt(F.addn(self.map(F.partial(_half_square_sum, self.l2_loss), grads)) * 2.0) * unscale
        finite = self.is_finite(norm)
        factor = unscale
        if self.clip_norm is not None:
            factor = unscale * self.minimum(self.clip_norm / (norm + 1e-6), 1.0)
        lr = self.schedule(self.steps)
        if finite:
            self.optimizer(grads, factor, lr)
        self.scaler(finite)
        self.steps = self.steps + 1
        self.consumed_samples = self.consumed_samples + self.global_batch_size
        return loss / count, norm, scale, F.logical_not(finite), lr, count
