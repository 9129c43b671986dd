"""Confidence intervals by resampling the items, for a figure that is a mean or a ratio of sums.

Percentile intervals: Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapter 13. They are too narrow for few
items: of normal values a 95 % interval held the mean in 85 % of 600 trials with 5 items, 91 % with 10, 93 % with 20, 94 % with
100. What is resampled is the item, so a paired form asks of both sides the same items in the same order.
"""
from collections.abc import Callable

import numpy as np

RESAMPLES = 2000
LEVEL = 0.95
# Indices drawn at once, which bounds the memory whatever the number of items.
DRAWN_AT_ONCE = 2**21

Interval = tuple[float, float]
Transform = Callable[[np.ndarray], np.ndarray]


def same(x: np.ndarray) -> np.ndarray:
    """x."""
    return x


def mean_interval(values, seed: int) -> Interval:
    """95 % interval of the mean of values, float [items] with at least two finite numbers; ValueError otherwise."""
    return _interval(seed, lambda total: total[:, 0] / len(values), values)


def ratio_interval(numerators, denominators, seed: int, transform: Transform = same) -> Interval:
    """95 % interval of transform(sum of numerators / sum of denominators).

    Args:
        numerators: float [items], such as the summed token losses of each passage.
        denominators: positive [items], such as its number of tokens.
        transform: of the ratio; np.exp makes a perplexity of a loss.
    """
    _check_positive(denominators)
    return _interval(seed, lambda total: transform(total[:, 0] / total[:, 1]), numerators, denominators)


def mean_difference_interval(a, b, seed: int) -> Interval:
    """95 % interval of mean(b) - mean(a) of the same items, float [items] each."""
    return mean_interval(np.asarray(b, np.float64) - np.asarray(a, np.float64), seed)


def ratio_difference_interval(a, b, seed: int, transform: Transform = same) -> Interval:
    """95 % interval of b's transformed ratio less a's, each (numerators, denominators) of the same items: see ratio_interval."""
    _check_positive(a[1])
    _check_positive(b[1])
    return _interval(seed, lambda total: transform(total[:, 2] / total[:, 3]) - transform(total[:, 0] / total[:, 1]), *a, *b)


def _check_positive(denominators) -> None:
    if not (np.asarray(denominators, np.float64) > 0).all():
        raise ValueError("a denominator is not positive: leave out the items that have nothing to count")


def _interval(seed: int, statistic: Transform, *columns) -> Interval:
    """Percentiles of statistic(sums of a resample's items), where sums is float64 [resamples, columns]."""
    table = np.stack([np.asarray(c, np.float64) for c in columns])
    n = table.shape[1]
    finite = np.isfinite(table).all(0).sum()
    if n < 2 or finite < n:
        raise ValueError(f"the bootstrap takes at least two items, all of them finite; {finite} of {n} are")
    rng, sums = np.random.default_rng(seed), []
    for first in range(0, RESAMPLES, rows := max(1, DRAWN_AT_ONCE // n)):
        drawn = rng.integers(0, n, (min(rows, RESAMPLES - first), n))
        sums.append(np.stack([column[drawn].sum(1) for column in table], 1))
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(statistic(np.concatenate(sums)), [tail, 1 - tail])
    return float(low), float(high)
