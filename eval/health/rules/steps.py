"""Rules over the figures of every step."""
from bisect import bisect_left, insort
from collections import deque

import numpy as np

from eval.health.losses import NORMAL, middle
from eval.health.rules.base import Facts, Rule, finite
from eval.health.rules.config import RuleConfig

FEWEST = 20  # values that a median, a spread or a share is told from


class WindowRule(Rule):
    """Looks back over its window; `values` are what it keeps of the steps."""

    def __init__(self, setting: RuleConfig, facts: Facts):
        super().__init__(setting, facts)
        self.values: deque[float] = deque(maxlen=max(self.window, FEWEST))
        self.ordered: list[float] = []

    def keep(self, value: float) -> None:
        """The next of the values."""
        if len(self.values) == self.values.maxlen:
            self.ordered.pop(bisect_left(self.ordered, self.values[0]))
        self.values.append(value)
        insort(self.ordered, value)

    @property
    def usual(self) -> float:
        """The median; 0 until there are enough."""
        n = len(self.ordered)
        return 0.5 * (self.ordered[(n - 1) // 2] + self.ordered[n // 2]) if n >= FEWEST else 0.0


class LossSpike(Rule):
    """By the robust score of the row's loss, `loss_z` (see eval.health.losses)."""

    def see(self, row: dict) -> str | None:
        z = row.get("loss_z")
        if z is None or z < self.limit:
            return None
        return (f"loss {row['loss']:.3f} is {z:.0f} robust standard deviations above the steps before. Look at the data of this "
                "step; if it comes again, lower train.lr or train.clip_norm")


class LossVariance(Rule):
    """Of two windows, next to each other: the spread around each one's own straight line, so that a steep descent is none."""

    def __init__(self, setting: RuleConfig, facts: Facts):
        super().__init__(setting, facts)
        self.losses: deque[float] = deque(maxlen=2 * max(self.window, FEWEST))

    def see(self, row: dict) -> str | None:
        if not finite(row["loss"]):
            return None
        self.losses.append(row["loss"])
        if len(self.losses) < self.losses.maxlen:
            return None
        losses, half = np.fromiter(self.losses, float), len(self.losses) // 2
        before, now = self._spread(losses[:half]), self._spread(losses[half:])
        if now < self.limit * max(before, 1e-3):
            return None
        return (f"the loss's spread over {half} steps grew from {before:.3f} to {now:.3f}. Lower train.lr, or "
                "raise train.global_batch_size")

    @staticmethod
    def _spread(losses: np.ndarray) -> float:
        x = np.arange(len(losses)) - (len(losses) - 1) / 2
        rest = losses - x * (x @ losses / (x @ x))  # least squares, but for the level
        return NORMAL * middle(np.abs(rest - middle(rest)))  # which a single spike leaves alone


class LearningNothing(Rule):
    """The loss stays where a model is that knows no context."""

    def __init__(self, setting: RuleConfig, facts: Facts):
        super().__init__(setting, facts)
        self.level, self.warmup, self.count = facts.unigram - setting.threshold, facts.warmup_steps, 0
        self.uniform = facts.uniform

    def see(self, row: dict) -> str | None:
        self.count = self.count + 1 if finite(row["loss"]) and row["loss"] > self.level else 0
        if self.count < self.window or row["step"] < self.warmup:
            return None
        knows = "nothing at all" if row["loss"] > self.uniform - 0.1 else "no more than how frequent tokens are"
        return (f"for {self.count} steps the loss has not come below {self.level:.2f}; it is {row['loss']:.2f}, that of a model "
                f"that knows {knows}. Check that labels are the next tokens, that the data is text, and train.lr")


class GradientExplosion(WindowRule):
    """Above the running median of norms that were none themselves."""

    def see(self, row: dict) -> str | None:
        norm, usual = row["grad_norm"], self.usual
        if not finite(norm):
            return None
        if usual and norm > self.limit * usual:
            return (f"the gradient's norm is {norm:.3g}, {norm / usual:.0f} times the usual {usual:.3g}. Look at the data of "
                    "this step; keep train.clip_norm near the usual norm")
        self.keep(norm)
        return None


class GradientVanishing(WindowRule):
    """Below a share of the running median, or nothing at all."""

    def see(self, row: dict) -> str | None:
        norm, usual = row["grad_norm"], self.usual
        if not finite(norm):
            return None
        if norm == 0 or norm < self.limit * usual:
            return (f"the gradient's norm is {norm:.3g}, usually {usual:.3g}: hardly anything is learned. Look at the layers' "
                    "gradients and saturation; check the initialisation and the loss scale")
        self.keep(norm)
        return None


class OverflowStreak(Rule):
    """Steps that were skipped one after the other."""

    count = 0

    def see(self, row: dict) -> str | None:
        self.count = self.count + 1 if row["overflow"] else 0
        if self.count < self.limit:
            return None
        return (f"{self.count} steps in a row were skipped, since gradients were not finite; the loss scale is "
                f"{row['loss_scale']:g}. Look for a NaN in data or weights, and for the layer whose activations grew; start "
                "again from a checkpoint before")

    def began(self, step: int) -> int:
        return step - self.count + 1


class OverflowRate(WindowRule):
    """Share of the steps that were skipped."""

    def see(self, row: dict) -> str | None:
        self.keep(row["overflow"])
        rate = sum(self.values) / len(self.values)
        if len(self.values) < self.values.maxlen or rate <= self.limit:
            return None
        return (f"{rate:.0%} of the last {len(self.values)} steps were skipped, since gradients were not finite. Lower "
                "precision.loss_scale.max or train.lr")


class LearningRate(Rule):
    """Against the schedule, computed apart."""

    def __init__(self, setting: RuleConfig, facts: Facts):
        super().__init__(setting, facts)
        self.expected, self.least = facts.expected_lr, 1e-3 * facts.peak_lr

    def see(self, row: dict) -> str | None:
        expected = self.expected(row["step"])
        # Near the end of a schedule that ends at 0, float32 leaves few digits of what is subtracted from the peak.
        if abs(row["lr"] - expected) <= self.limit * max(expected, self.least):
            return None
        return (f"the learning rate is {row['lr']:.3g}, the schedule says {expected:.3g}: a resume from a checkpoint of another "
                "schedule, or a broken step counter")


class Throughput(WindowRule):
    """Against the running median."""

    def see(self, row: dict) -> str | None:
        speed, usual = row["tokens_per_second"], self.usual
        if not finite(speed):
            return None
        self.keep(speed)
        if speed >= self.limit * usual:
            return None
        return (f"{speed:,.0f} tokens/s, usually {usual:,.0f}. See data_wait, other loads on the machine, and "
                "train.supervise --status for a slow rank")


class SlowRank(Rule):
    """By what each rank's host spends between two steps on its own, its wait for the others apart (see train.callbacks.gate).

    A rank whose device is slower cannot be told so: in the step all wait for it, and all take as long.
    """

    def __init__(self, setting: RuleConfig, facts: Facts):
        super().__init__(setting, facts)
        self.slow: deque[int | None] = deque(maxlen=self.window)

    def see(self, row: dict) -> str | None:
        if "slowest_rank" not in row or not finite(row.get("step_seconds")):
            return None
        seconds, usual = row["slowest_rank_seconds"], row["usual_rank_seconds"]
        waits = seconds > 2 * usual and seconds - usual > self.limit * row["step_seconds"]
        self.slow.append(row["slowest_rank"] if waits else None)
        count = self.slow.count(row["slowest_rank"])
        if not waits or len(self.slow) < self.window or 2 * count <= self.window:
            return None
        return (f"in {count} of {self.window} steps the others waited for rank {row['slowest_rank']}: its host spends "
                f"{seconds:.3g} s between two steps, the others' {usual:.3g} s. Look at its data, its disk, and other loads on "
                "its machine")


class MemoryGrowth(Rule):
    """Against a window before."""

    def __init__(self, setting: RuleConfig, facts: Facts):
        super().__init__(setting, facts)
        self.sizes: deque[int] = deque(maxlen=self.window + 1)

    def see(self, row: dict) -> str | None:
        self.sizes.append(row["memory_bytes"])
        if len(self.sizes) < self.sizes.maxlen or self.sizes[-1] < self.limit * self.sizes[0]:
            return None
        return (f"memory grew from {self.sizes[0] / 1e9:.2f} to {self.sizes[-1] / 1e9:.2f} GB in {self.window} steps. Look for "
                "what is kept: outputs, logs, callbacks")
