"""The learning rate of each step."""
import math

import mindspore as ms
from mindspore import ops
from mindspore.nn.learning_rate_schedule import LearningRateSchedule

from train.config import TrainConfig


def learning_rate(config: TrainConfig, step: int) -> float:
    """What `Schedule` gives for the step after `step` updates, computed apart from it: to hold a run's rate against."""
    warmup, f = config.warmup_steps, config.decay_fraction
    share = min(max((step - warmup) / max(1, config.total_steps - warmup), 0.0), 1.0)
    if config.schedule == "inverse_sqrt":
        rate = max(config.min_lr, config.lr * math.sqrt(max(warmup, 1) / max(step + 1, warmup, 1)))
    else:
        shape = {"constant": 1.0, "linear": 1.0 - share, "cosine": 0.5 + 0.5 * math.cos(share * math.pi),
                 "wsd": 1.0 - max(0.0, (share - (1.0 - f)) / f)}[config.schedule]
        floor = config.lr if config.schedule == "constant" else config.min_lr
        rate = floor + (config.lr - floor) * shape
    return rate * min((step + 1) / max(warmup, 1), 1.0)


class Schedule(LearningRateSchedule):
    """Linear warm-up to `lr`, then a shape that ends at `min_lr` with the run.

    constant; linear; cosine (Loshchilov and Hutter, arXiv:1608.03983); wsd: constant, and linear over the last `decay_fraction`
    of the steps after the warm-up (Hu et al., arXiv:2404.06395); inverse_sqrt: lr * sqrt(warmup / step), not below `min_lr`
    (Vaswani et al., arXiv:1706.03762), which does not know where the run ends.

    construct: int32 scalar, the number of updates before this one (0 at the first) -> float32 scalar.
    """

    def __init__(self, config: TrainConfig):
        super().__init__()
        self.peak, self.floor, self.shape = config.lr, config.min_lr, config.schedule
        self.warmup, self.rest = config.warmup_steps, max(1, config.total_steps - config.warmup_steps)
        self.decay = config.decay_fraction
        self.minimum, self.maximum = ops.Minimum(), ops.Maximum()
        self.cos, self.sqrt, self.cast = ops.Cos(), ops.Sqrt(), ops.Cast()

    def construct(self, step):
        step = self.cast(step, ms.float32)
        share = self.maximum(self.minimum((step - self.warmup) / self.rest, 1.0), 0.0)
        if self.shape == "constant":
            lr = self.peak + share * 0.0
        elif self.shape == "linear":
            lr = self.peak + (self.floor - self.peak) * share
        elif self.shape == "wsd":
            lr = self.peak + (self.floor - self.peak) * self.maximum((share - (1.0 - self.decay)) / self.decay, 0.0)
        elif self.shape == "inverse_sqrt":
            first = max(self.warmup, 1)
            lr = self.maximum(self.peak * self.sqrt(first / self.maximum(step + 1.0, first)), self.floor)
        else:
            lr = self.floor + (self.peak - self.floor) * (0.5 + 0.5 * self.cos(share * math.pi))
        if self.warmup > 0:
            lr = self.minimum((step + 1.0) / self.warmup, 1.0) * lr
        return lr
