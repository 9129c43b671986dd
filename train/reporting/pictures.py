"""Curves as SVG inside a page: no script, no resource from elsewhere."""
import math
from dataclasses import dataclass
from html import escape

from train.console import size
from train.reporting.curves import Bucket, Curve

COLOURS = ("#1f6f8b", "#c8553d", "#2a7f62", "#8a5a9e", "#b8860b", "#5c6b73", "#a23e6b", "#3b5ba5")  # told apart also in grey
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 230, 66, 12, 10, 26
DOTS = 60         # points up to which each is drawn
LOGARITHMIC = 30  # times the lowest value that the highest must be


@dataclass
class Line:
    """One curve of a picture; `level` draws a dashed line across instead."""

    label: str
    curve: Curve | None = None
    level: float | None = None


def figure(value: float) -> str:
    """In few characters."""
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return f"{value:.4g}"
    return size(value) if 1e4 <= abs(value) < 1e15 else f"{value:.3g}"


def picture(title: str, unit: str, lines: list[Line], note: str = "", marks: list[int] | None = None) -> str:
    """A figure with its legend; "" where no line has a value.

    Args:
        marks: steps at which a small triangle stands at the top.
    """
    lines = [line for line in lines if line.level is not None or line.curve.count]
    curves = [line.curve for line in lines if line.curve]
    if not curves:
        return ""
    levels = [line.level for line in lines if line.level is not None]
    low, high = min([*(c.low for c in curves), *levels]), max([*(c.high for c in curves), *levels])
    steps = [bucket.step for curve in curves for bucket in curve.buckets]
    axes = Axes(min(steps), max(steps), low, high)
    parts = [axes.drawn()]
    for line, colour in zip(lines, _colours(lines), strict=True):
        parts.append(_level(axes, line.level, colour) if line.curve is None else _curve(axes, line.curve, colour))
    parts += [f'<path class="mark" d="M{axes.x(step):.1f} {TOP}l-4 -8h8z"/>' for step in marks or () if steps
              and min(steps) <= step <= max(steps)]
    label = escape(f"{title}, {unit}, over steps {round(min(steps)):,} to {round(max(steps)):,}")
    legend = "".join(f'<span><i style="{"border-top:2px dashed " if line.curve is None else "background:"}{colour}"></i>'
                     f'{escape(line.label)}</span>' for line, colour in zip(lines, _colours(lines), strict=True)) \
        if len(lines) > 1 else ""
    return (f'<figure><figcaption><b>{escape(title)}</b> {escape(unit)}{", logarithmic" if axes.log else ""}</figcaption>'
            f'<svg viewBox="0 -2 {WIDTH} {HEIGHT + 2}" role="img" aria-label="{label}">{"".join(parts)}</svg>'
            f'<p class="legend">{legend}<span>{escape(note)}</span></p></figure>')


def _colours(lines: list[Line]) -> list[str]:
    """A level has the colour of the curve before it."""
    colours, used = [], -1
    for line in lines:
        used += line.curve is not None or used < 0
        colours.append(COLOURS[used % len(COLOURS)])
    return colours


class Axes:
    """Where a step and a value lie. Values over more than a decade and a half, all above zero, stand on a logarithmic scale."""

    def __init__(self, first: float, last: float, low: float, high: float):
        self.log = low > 0 and high / low > LOGARITHMIC
        self.first, self.last = first, last if last > first else first + 1
        self.ticks = _log_ticks(low, high) if self.log else _ticks(low, high)
        self.low, self.high = min(low, self.ticks[0]), max(high, self.ticks[-1])
        if self.high == self.low:
            self.low, self.high = self.low - (abs(self.low) or 1.0), self.high + (abs(self.high) or 1.0)
            self.log = False

    def x(self, step: float) -> float:
        """In units of the picture."""
        return LEFT + (step - self.first) / (self.last - self.first) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """In units of the picture."""
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    def drawn(self) -> str:
        """Grid and labels."""
        parts = [f'<text x="{LEFT - 6}" y="{HEIGHT - 8}" text-anchor="end">step</text>']
        for tick in self.ticks:
            y = self.y(tick)
            parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>'
                         f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{figure(tick)}</text>')
        for tick in _ticks(self.first, self.last, 6):
            if self.first <= tick <= self.last and tick == int(tick):
                label = f"{int(tick):,}" if tick < 1e6 else size(tick)
                parts.append(f'<text x="{self.x(tick):.1f}" y="{HEIGHT - 8}" text-anchor="middle">{label}</text>')
        return "".join(parts)


def _ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Round numbers, from at most `low` to at least `high`."""
    if high <= low:
        return [low]
    rough = (high - low) / count
    unit = 10.0 ** math.floor(math.log10(rough))
    step = unit * next(factor for factor in (1, 2, 5, 10) if factor * unit >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, last + 1)] if last - first < 50 else [low, high]


def _log_ticks(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = max(1, math.ceil((last - first) / 6))
    return [10.0 ** power for power in range(first, last + every, every)]


def _level(axes: Axes, value: float, colour: str) -> str:
    return f'<path class="level" stroke="{colour}" d="M{LEFT} {axes.y(value):.1f}H{WIDTH - RIGHT}"/>'


def _curve(axes: Axes, curve: Curve, colour: str) -> str:
    """The means as a line, the extremes as a band behind it, and crosses below where values were not finite."""
    parts, buckets = [], curve.buckets
    for piece in _pieces(buckets):
        points = [f"{axes.x(b.step):.1f} {axes.y(b.mean):.1f}" for b in piece]
        if any(b.low < b.high for b in piece):
            edge = [f"{axes.x(b.step):.1f} {axes.y(b.high):.1f}" for b in piece]
            edge += [f"{axes.x(b.step):.1f} {axes.y(b.low):.1f}" for b in reversed(piece)]
            parts.append(f'<path class="band" fill="{colour}" stroke="{colour}" d="M{"L".join(edge)}z"/>')
        if len(points) > 1:
            parts.append(f'<path class="line" stroke="{colour}" d="M{"L".join(points)}"/>')
        if len(points) == 1 or len(buckets) <= DOTS:
            parts += [f'<circle cx="{x}" cy="{y}" r="2.2" fill="{colour}"/>' for x, y in (point.split() for point in points)]
    bottom = HEIGHT - BOTTOM
    parts += [f'<path class="bad" d="M{axes.x(b.step) - 3:.1f} {bottom - 6}l6 6m0 -6l-6 6"/>' for b in buckets if b.bad]
    return "".join(parts)


def _pieces(buckets: list[Bucket]) -> list[list[Bucket]]:
    """Without those that have no finite value, at which the line is broken."""
    pieces: list[list[Bucket]] = [[]]
    for bucket in buckets:
        if bucket.count:
            pieces[-1].append(bucket)
        elif pieces[-1]:
            pieces.append([])
    return [piece for piece in pieces if piece]
