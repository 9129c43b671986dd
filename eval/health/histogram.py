"""Histograms in fixed buckets, so that those of several ranks add up exactly."""
from dataclasses import dataclass

import numpy as np

_POSITIVE = 10.0 ** np.arange(-12, 6.01, 0.25)  # a quarter of a decade: 73 buckets each way cover every number that trains
LIMITS = np.concatenate((-_POSITIVE[::-1], [0.0], _POSITIVE, [np.inf]))  # upper ends
SAMPLE = 1024  # values of a tensor that are counted at most, evenly spread over it


def sample(x: np.ndarray, size: int = SAMPLE) -> np.ndarray:
    """At most `size` values of an array, at even distances, as [n]."""
    flat = x.reshape(-1)
    return flat[::-(-flat.size // size)]


@dataclass
class Histogram:
    """counts: int [len(LIMITS)], bucket i holding what is above limit i - 1 and at most limit i; and what TensorBoard shows."""

    counts: np.ndarray
    low: float
    high: float
    total: float
    squares: float

    @staticmethod
    def of(values: np.ndarray) -> "Histogram":
        """Of the finite ones among float values [n]; the others have no place in a picture."""
        values = values[np.isfinite(values)].astype(np.float64)
        if not values.size:
            return Histogram(np.zeros(len(LIMITS), np.int64), np.inf, -np.inf, 0.0, 0.0)
        counts = np.bincount(np.searchsorted(LIMITS, values), minlength=len(LIMITS))
        return Histogram(counts, float(values.min()), float(values.max()), float(values.sum()), float(values @ values))

    def __add__(self, other: "Histogram") -> "Histogram":
        return Histogram(self.counts + other.counts, min(self.low, other.low), max(self.high, other.high),
                         self.total + other.total, self.squares + other.squares)
