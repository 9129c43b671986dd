"""The order in which samples are read: a function of (seed, epoch, index), and of nothing else.

Position p of a run (the p-th sample it consumes) lies in epoch p // n at index p % n of n samples. Each epoch has its own
permutation of the n samples, which is computed point by point and never stored, so that any position is reached at once, and 10^9
samples cost no memory. The order knows no ranks: which rank reads a position is cut from it afterwards (see data/dataset.py).
"""
from collections.abc import Iterable

import numpy as np

ROUNDS = 8


class SampleOrder:
    """Sample numbers in [0, num_samples) by global position.

    The permutation is a Feistel network on numbers written as left + a * right with a * b >= n, a and b about sqrt(n); rounds add
    a keyed hash of one half to the other. A result outside [0, n) is put in again until it falls inside ("cycle walking").
    Black and Rogaway, Ciphers with Arbitrary Finite Domains, CT-RSA 2002, section 5 and 3; the hash is that of SplitMix64.
    """

    def __init__(self, num_samples: int, seed: int):
        if num_samples < 1:
            raise ValueError(f"num_samples must be at least 1, not {num_samples}")
        self.num_samples = num_samples
        self.seed = seed
        self._a = np.uint64(np.ceil(np.sqrt(num_samples)))
        self._b = np.uint64(-(-num_samples // int(self._a)))
        self._seed_key = _mix(np.array([seed % 2**64], np.uint64))

    def indices(self, start: int, count: int) -> np.ndarray:
        """Sample numbers at the positions start, ..., start + count - 1: int64 [count]."""
        return self.at(np.arange(start, start + count, dtype=np.int64))

    def at(self, positions: np.ndarray) -> np.ndarray:
        """Sample numbers at any positions: integers >= 0 to int64 of the same shape."""
        epochs, index = np.divmod(positions.astype(np.uint64), np.uint64(self.num_samples))
        keys = _mix(self._seed_key + epochs)
        result = self._permute(index, keys)
        while (outside := result >= self.num_samples).any():
            result[outside] = self._permute(result[outside], keys[outside])
        return result.astype(np.int64)

    def _permute(self, numbers: np.ndarray, keys: np.ndarray) -> np.ndarray:
        right, left = np.divmod(numbers, self._a)
        for round_ in range(ROUNDS):
            round_keys = keys + np.uint64(round_)
            if round_ % 2 == 0:
                left = (left + _mix(round_keys ^ _mix(right)) % self._a) % self._a
            else:
                right = (right + _mix(round_keys ^ _mix(left)) % self._b) % self._b
        return left + self._a * right


class Places:
    """The positions that a run reads from `start` on: all, but for the ranges [first, stop) that it passes over.

    Any index is reached at once, as in the order itself, and what is passed over depends on no mesh.
    """

    def __init__(self, start: int, passed_over: Iterable[tuple[int, int]] = ()):
        self.start, here, read, gone = start, start, 0, 0
        kept, missing = [], [0]
        for first, stop in sorted(passed_over):
            first = max(first, here)
            if stop > first:
                read, gone, here = read + first - here, gone + stop - first, stop
                kept.append(read)
                missing.append(gone)
        self._kept, self._missing = np.array(kept, np.int64), np.array(missing, np.int64)

    def at(self, index: np.ndarray) -> np.ndarray:
        """The positions that are read index-th from `start` on: integers >= 0 to int64 of the same shape."""
        return self.start + index + self._missing[np.searchsorted(self._kept, index, "right")]


class Reading:
    """How far a run has read, in global batches of `size` samples."""

    def __init__(self, places: Places, size: int):
        self.places, self.size, self.batches = places, size, 0

    @property
    def consumed(self) -> int:
        """The position behind what was read: where a resume goes on."""
        return int(self.places.at(np.int64(self.batches * self.size - 1))) + 1 if self.batches else self.places.start

    def next_batch(self) -> np.ndarray:
        """The positions of the batch that comes next: int64 [size]."""
        return self.places.at(np.arange(self.batches * self.size, (self.batches + 1) * self.size, dtype=np.int64))


def _mix(x: np.ndarray) -> np.ndarray:
    """The output function of SplitMix64 on uint64: a bijection in which each input bit reaches all output bits."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
