"""The learning rate of each step."""
import math

import mindspore as ms
from mindspore import ops
from mindspore.nn.learning_rate_schedule import LearningRateSchedule

from train.config import TrainConfig


class Schedule(LearningRateSchedule):
    """Linear warm-up to `lr`, then cosine, linear or constant down to `min_lr` at the end of the run.

    construct: int32 scalar, the number of updates before this one (0 at the first) -> float32 scalar.
    """

    def __init__(self, config: TrainConfig):
        super().__init__()
        self.peak, self.floor, self.shape = config.lr, config.min_lr, config.schedule
        self.warmup, self.rest = config.warmup_steps, max(1, config.total_steps - config.warmup_steps)
        self.cos, self.cast, self.minimum, self.maximum = ops.Cos(), ops.Cast(), ops.Minimum(), ops.Maximum()

    def construct(self, step):
        step = self.cast(step, ms.float32)
        share = self.maximum(self.minimum((step - self.warmup) / self.rest, 1.0), 0.0)
        if self.shape == "constant":
            lr = self.peak + share * 0.0
        elif self.shape == "linear":
            lr = self.peak + (self.floor - self.peak) * share
        else:
            lr = self.floor + (self.peak - self.floor) * (0.5 + 0.5 * self.cos(share * math.pi))
        if self.warmup > 0:
            lr = self.minimum((step + 1.0) / self.warmup, 1.0) * lr
        return lr
