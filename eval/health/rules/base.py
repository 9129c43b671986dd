"""What a rule knows and says."""
import math
from collections.abc import Callable
from dataclasses import dataclass

from eval.health.rules.config import RuleConfig


@dataclass(frozen=True)
class Event:
    """A rule that was broken: at which step, how grave it is, and what to say of it.

    began: the step at which it did, where that is another.
    """

    step: int
    rule: str
    level: str
    message: str
    began: int | None = None


@dataclass(frozen=True)
class Facts:
    """What rules need to know of a run.

    Args:
        unigram: nats; the loss of a model that knows no context, only how frequent each token is.
        uniform: nats; the loss of a model that knows nothing at all, log(vocab_size).
        warmup_steps: before them nothing is expected to be learned.
        peak_lr: the schedule's largest learning rate.
        expected_lr: step -> the schedule's learning rate.
    """

    unigram: float
    warmup_steps: int
    peak_lr: float
    expected_lr: Callable[[int], float]
    uniform: float = math.inf


class Rule:
    """Sees each step's row once, in order (see train.callbacks.monitor and .health)."""

    def __init__(self, setting: RuleConfig, facts: Facts):
        self.limit, self.window = setting.threshold, setting.window

    def see(self, row: dict) -> str | None:
        """What is wrong and what to try first; None: nothing."""
        raise NotImplementedError

    def began(self, step: int) -> int | None:
        """The step at which began what is found at this one; None: here."""
        return None


def finite(value: float | None) -> bool:
    """Whether there is a number."""
    return value is not None and math.isfinite(value)
