"""Memory over a run's steps: whether it leaks; and over a window: what the allocator holds in vain."""
import math
from statistics import median

import numpy as np

from train.reporting.curves import number

FEWEST = 40  # figures that a leak is told from
WARM = 0.25  # share of them that allocators and caches take to settle
LEAK = 0.02  # growth after that, of what is held, from which on it is one
FRAGMENTED, BLOCK = 0.2, 2**30  # share of the reserved that is in vain; MindSpore's pool grows by 1 GiB at least


def trend(steps: list[int], held: list[float]) -> dict:
    """{"slope_bytes_per_step", "growth", "leak", "steps", "held_bytes"}: Theil-Sen slope (median of the slopes of pairs, which
    neither peaks nor a single jump move) after the settling; growth: over these steps, a share of what is held.

    A leak grows on and on: the medians of four quarters rise, each by a quarter of the even share at least. A jump that stays
    (an evaluation's buffers) or a curve that flattens out is none. Values are None below FEWEST figures.
    """
    if len(steps) < FEWEST:
        return {"slope_bytes_per_step": None, "growth": None, "leak": None, "steps": len(steps),
                "held_bytes": held[-1] if held else None}
    start = int(len(steps) * WARM)
    x, y = np.array(steps[start:], float), np.array(held[start:], float)
    chosen = np.linspace(0, len(x) - 1, min(len(x), 400)).astype(int)
    i, j = np.triu_indices(len(chosen), 1)
    a, b = x[chosen], y[chosen]
    apart = a[j] > a[i]
    slope = float(np.median((b[j] - b[i])[apart] / (a[j] - a[i])[apart]))
    level = float(np.median(y))
    growth = slope * float(x[-1] - x[0]) / level if level else 0.0
    quarters = [median(part) for part in np.array_split(y, 4)]
    rises = [after - before for before, after in zip(quarters, quarters[1:], strict=False)]
    leak = growth > LEAK and all(rise > growth * level / 16 for rise in rises)
    return {"slope_bytes_per_step": slope, "growth": growth, "leak": bool(leak), "steps": len(x), "held_bytes": float(y[-1])}


def of_run(rows: list[dict]) -> dict:
    """The trend of metrics.jsonl's `memory_bytes`, and "curve": [(step, bytes)], 400 of them at most."""
    points = sorted({row["step"]: (row["step"], held) for row in rows if isinstance(row.get("step"), int)
                     and (held := number(row.get("memory_bytes"))) is not None}.values())
    curve = points[::max(1, len(points) // 200)]
    return {**trend([step for step, _ in points], [value for _, value in points]), "curve": curve}


def of_window(points: list[tuple[float, float, float]]) -> dict | None:
    """{"peak_allocated_bytes", "peak_reserved_bytes", "fragmentation"}: what of the reserved was allocated not even at the peak.
    None without figures."""
    if not points:
        return None
    allocated, reserved = (max(point[k] for point in points) for k in (1, 2))
    share = 1.0 - allocated / reserved if reserved > 0 else math.nan
    return {"peak_allocated_bytes": allocated, "peak_reserved_bytes": reserved,
            "fragmentation": max(0.0, share) if math.isfinite(share) else None}


def fragmented(window: dict) -> bool:
    """Whether that is worth a word: a pool of one block alone is as small as it can be."""
    vain = window["peak_reserved_bytes"] - window["peak_allocated_bytes"]
    return (window["fragmentation"] or 0.0) > FRAGMENTED and vain > BLOCK
