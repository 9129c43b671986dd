"""The learning rate of each step."""
import math

import mindspore as ms
from mindspore import ops
from mindspore.nn.learning_rate_schedule import LearningRateSchedule

from train.config import TrainConfig


def learning_rate(config: TrainConfig, step: int) -> float:
    """What `Schedule` gives for the step after `step` updates, computed apart from it: to hold a run's rate against."""
    share = min(max((step - config.warmup_steps) / max(1, config.total_steps - config.warmup_steps), 0.0), 1.0)
    shape = {"constant": 1.0, "linear": 1.0 - share, "cosine": 0.5 + 0.5 * math.cos(share * math.pi)}[config.schedule]
    floor = config.lr if config.schedule == "constant" else config.min_lr
    return (floor + (config.lr - floor) * shape) * min((step + 1) / max(config.warmup_steps, 1), 1.0)


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
