"""Level, spread and spikes of the loss over the last steps, and how often a step was skipped."""
import math
from collections import deque

import numpy as np

RECENT = 5               # a spike is above all of so many losses before it: a descent that slows down is none
MIN_HISTORY = 20         # steps before a spike can be told from the beginning of a run
NORMAL = 1.4826          # the standard deviation of normal values is this times their median absolute deviation
SMALLEST_SPREAD = 0.005  # of the median: a loss that hardly moves would make a spike of any ripple


def middle(values: np.ndarray) -> float:
    """The median of [n]; np.median takes five times as long over so few."""
    ordered = np.sort(values)
    return 0.5 * float(ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2])


class LossWindow:
    """The last `size` steps. What is not finite, or a spike, is counted but never becomes part of what spikes are told by.

    Unless it stays: when most of the last MIN_HISTORY steps are spikes the loss has another level, and that is learned anew.

    Args:
        size: steps.
        spike_z: a loss is a spike from this many robust standard deviations above the median on, with the descent counted in.
    """

    def __init__(self, size: int, spike_z: float):
        self.spike_z = spike_z
        self.normal: deque[float] = deque(maxlen=size)  # what spikes are told by
        self.finite: deque[float] = deque(maxlen=size)
        self.spikes: deque[bool] = deque(maxlen=size)
        self.steps: deque[tuple[bool, bool]] = deque(maxlen=size)  # not finite, skipped
        self.z: float | None = None

    def add(self, loss: float | None, overflow: bool) -> None:
        """One step's loss (nats; None: not finite), and whether it was skipped since its gradients were not finite."""
        finite = loss is not None and math.isfinite(loss)
        self.z = self._score(loss) if finite else None
        spike = self.z is not None and self.z >= self.spike_z
        self.spikes.append(spike)
        self.steps.append((not finite, overflow))
        if finite:
            self.finite.append(loss)
        if finite and not spike:
            self.normal.append(loss)
        elif sum(list(self.spikes)[-MIN_HISTORY:]) > MIN_HISTORY // 2:
            self.normal.clear()

    def _score(self, loss: float) -> float | None:
        if len(self.normal) < MIN_HISTORY:
            return None
        losses = np.fromiter(self.normal, float, len(self.normal))
        x = np.arange(len(losses)) - len(losses)  # the step to be told is at 0
        centred = x - x.mean()
        slope = centred @ losses / (centred @ centred)  # least squares; np.polyfit takes twenty times as long
        level = losses - slope * x  # without the descent, which would hide a spike in its spread
        median = middle(level)
        spread = NORMAL * middle(np.abs(level - median))
        score = (loss - median) / max(spread, SMALLEST_SPREAD * abs(median), 1e-12)
        return score if score < self.spike_z or loss > losses[-RECENT:].max() else 0.0

    def figures(self) -> dict:
        """loss_mean and loss_std (nats) of the finite ones, loss_z of the last step (robust standard deviations above the median
        of those that are no spikes), spikes and nonfinite_steps (how many), overflow_rate (share of the steps). None: not known.
        """
        nonfinite, skipped = np.sum(self.steps, 0) if self.steps else (0, 0)
        return {"loss_mean": float(np.mean(self.finite)) if self.finite else None,
                "loss_std": float(np.std(self.finite)) if len(self.finite) > 1 else None,
                "loss_z": self.z, "spikes": sum(self.spikes), "nonfinite_steps": int(nonfinite),
                "overflow_rate": float(skipped / len(self.steps)) if self.steps else None}
