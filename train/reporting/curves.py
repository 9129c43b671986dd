"""Curves of any length in bounded memory: the steps are put into buckets that widen as the run grows, and no extreme is lost."""
import math
from dataclasses import dataclass

POINTS = 400        # buckets of a curve: at most twice as many
LARGEST = 1e100     # what is beyond is no figure of a run, and sums of it would overflow
LAST_STEP = 2**40   # of any run; a larger number in a damaged line would widen all buckets


def number(value: object) -> float | None:
    """A JSON value as a finite number; None: it is none."""
    if type(value) is float or type(value) is int:  # a bool is none
        return float(value) if -LARGEST < value < LARGEST else None
    return None


@dataclass
class Bucket:
    """Neighbouring steps: the lowest and highest of their values, sums for the means, and how many values were not finite."""

    low: float = math.inf
    high: float = -math.inf
    total: float = 0.0
    steps: float = 0.0
    count: int = 0
    bad: int = 0

    def add(self, step: int, value: float | None) -> None:
        """One step's value; None: it was not finite."""
        self.steps += step
        if value is None:
            self.bad += 1
            return
        if value < self.low:
            self.low = value
        if value > self.high:
            self.high = value
        self.total += value
        self.count += 1

    def join(self, other: "Bucket") -> None:
        """Take in what another one holds."""
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self.total, self.steps = self.total + other.total, self.steps + other.steps
        self.count, self.bad = self.count + other.count, self.bad + other.bad

    @property
    def step(self) -> float:
        """The mean of its steps."""
        return self.steps / (self.count + self.bad)

    @property
    def mean(self) -> float | None:
        """Of the finite values; None: there is none."""
        return self.total / self.count if self.count else None


class Curve:
    """step -> value, in the order in which they come, which need not be that of the steps."""

    def __init__(self):
        self.width, self._buckets = 1, {}
        self.last: tuple[int, float] | None = None

    def add(self, step: int, value: object) -> None:
        """A JSON value at a step; what is no finite number is counted as such."""
        figure = number(value)
        bucket = self._buckets.get(step // self.width)
        if bucket is None:
            while len(self._buckets) >= 2 * POINTS:  # more than once where values stand far apart
                self._widen()
            bucket = self._buckets.setdefault(step // self.width, Bucket())
        bucket.add(step, figure)
        if figure is not None and (self.last is None or step >= self.last[0]):
            self.last = step, figure

    def _widen(self) -> None:
        old, self._buckets, self.width = self._buckets, {}, 2 * self.width
        for key, bucket in old.items():
            self._buckets.setdefault(key // 2, Bucket()).join(bucket)

    @property
    def buckets(self) -> list[Bucket]:
        """In the order of the steps."""
        return [bucket for _, bucket in sorted(self._buckets.items())]

    @property
    def low(self) -> float:
        """The lowest value; infinity if there is none."""
        return min((bucket.low for bucket in self._buckets.values()), default=math.inf)

    @property
    def high(self) -> float:
        """The highest value; minus infinity if there is none."""
        return max((bucket.high for bucket in self._buckets.values()), default=-math.inf)

    @property
    def count(self) -> int:
        """Of finite values."""
        return sum(bucket.count for bucket in self._buckets.values())

    @property
    def bad(self) -> int:
        """Of values that were not finite."""
        return sum(bucket.bad for bucket in self._buckets.values())
