"""One training step as one compiled cell."""
import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
from mindspore.ops import functional as F

from model.config import LossScaleConfig
from train.adafactor import Adafactor
from train.clipping import Clip
from train.config import TrainConfig
from train.optimizer import AdamW
from train.schedule import Schedule


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
    """Scaled forward and backward over the micro-batches and ranks, unscale, global norm, clip, optimizer, loss scale.

    The loss is the mean over all tokens of the global batch that the mask counts, however unevenly they lie on ranks and
    micro-batches: sums of losses and of gradients are added up and divided once, by the number of tokens. When the norm is not
    finite, which all ranks see alike since they hold the same sum, weights and moments stay as they are.

    construct: tokens int32 [samples of this rank, seq + 1], positions int32 [samples] (their places in the run) ->
        loss, grad_norm (before clipping), loss_scale (used), overflow (bool), lr, tokens (of the global batch); all scalars.

    Args:
        gradients: LocalGradients or ShardedGradients of the network.
        tokens_per_batch: tokens of a full global batch; only scales the backward pass.
        vocab_size: rows of the token table without its padding.
    """

    def __init__(self, gradients: nn.Cell, config: TrainConfig, loss_scale: LossScaleConfig, tokens_per_batch: int,
                 vocab_size: int | None = None):
        super().__init__(auto_prefix=False)  # parameters keep the names that they have in the GPT
        self.gradients, self.weights = gradients, gradients.weights
        self.tokens_per_batch, self.clip = tokens_per_batch, Clip(config, len(self.weights))
        self.optimizer = AdamW(self.weights, config, self.clip.limit) if config.optimizer == "adamw" \
            else Adafactor(self.weights, config, self.clip.limit, vocab_size)
        self.schedule, self.scaler = Schedule(config), LossScaler(loss_scale)
        self.steps = Parameter(Tensor(0, ms.int32), name="steps", requires_grad=False)
        self.only_losses = Tensor([1.0, 0.0], ms.float32)
        self.sqrt, self.maximum, self.is_finite = ops.Sqrt(), ops.Maximum(), ops.IsFinite()

    def update(self, finite, grads, factors, lr):
        """The optimizer where the gradients are finite.

        A function of its own: MindSpore compiles what follows an `if` once for each of its branches.
        """
        if finite:
            self.optimizer(grads, factors, lr)
        return finite

    def construct(self, tokens, positions):
        scale = self.scaler.scale * 1.0
        loss, count, squares, each, grads = self.gradients(tokens, positions, self.only_losses * scale / self.tokens_per_batch)
        count = self.maximum(count, 1.0)
        unscale = self.tokens_per_batch / (count * scale)
        norm = self.sqrt(squares) * unscale
        finite = self.is_finite(norm)
        lr = self.schedule(self.steps)
        self.update(finite, grads, self.clip(norm, each, unscale), lr)
        norm = self.gradients.clear(norm)
        finite = self.scaler(finite)
        self.steps = self.steps + 1
        return loss / count, norm, scale, F.logical_not(finite), lr, count
