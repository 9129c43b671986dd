"""Level, spread and spikes of the loss over the last steps, and how often a step was skipped."""
import math
from collections import deque

import numpy as np

MIN_HISTORY = 20         # steps before a spike can be told from the beginning of a run
NORMAL = 1.4826          # the standard deviation of normal values is this times their median absolute deviation
SMALLEST_SPREAD = 0.005  # of the median: a loss that hardly moves would make a spike of any ripple


class LossWindow:
    """The last `size` steps. What is not finite, or a spike, is counted but never becomes part of what spikes are told by.

    Args:
        size: steps.
        spike_z: a loss is a spike from this many robust standard deviations above the median on.
    """

    def __init__(self, size: int, spike_z: float):
        self.spike_z = spike_z
        self.normal: deque[float] = deque(maxlen=size)
        self.spikes: deque[bool] = deque(maxlen=size)
        self.skipped: deque[bool] = deque(maxlen=size)
        self.z: float | None = None

    def add(self, loss: float, overflow: bool) -> None:
        """One step's loss (nats), and whether it was skipped since its gradients were not finite."""
        self.z = self._score(loss)
        spike = not math.isfinite(loss) or (self.z is not None and self.z >= self.spike_z)
        self.spikes.append(spike)
        self.skipped.append(overflow)
        if not spike:
            self.normal.append(loss)

    def _score(self, loss: float) -> float | None:
        if len(self.normal) < MIN_HISTORY or not math.isfinite(loss):
            return None
        median = float(np.median(self.normal))
        spread = NORMAL * float(np.median(np.abs(np.asarray(self.normal) - median)))
        return (loss - median) / max(spread, SMALLEST_SPREAD * abs(median), 1e-12)

    def figures(self) -> dict:
        """loss_mean and loss_std (nats) without spikes, loss_z of the last step (robust standard deviations above the median),
        spikes (how many), overflow_rate (share of the steps). None: not known yet."""
        return {"loss_mean": float(np.mean(self.normal)) if self.normal else None,
                "loss_std": float(np.std(self.normal)) if len(self.normal) > 1 else None,
                "loss_z": self.z, "spikes": sum(self.spikes),
                "overflow_rate": sum(self.skipped) / len(self.skipped) if self.skipped else None}
