"""metrics.jsonl: one line a step, each step once."""
import json
import math
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path

from parallel.files import replace_text


def finite(value):
    """The value, also nested in dicts and lists, with None for NaN and infinities, which JSON does not have."""
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


REMEMBERED = 1000  # rows of earlier starts


class MetricsLog:
    """Append rows (dicts with `step`) to a file. On opening, lines of steps after `last_step` go: they will be written again.

    last_rows: the last rows that were there already.

    Args:
        fence: raises where this process must write no more (see train/nodes.py).
    """

    def __init__(self, path: Path, last_step: int, fence: Callable[[], None] = lambda: None):
        self.fence = fence
        kept, self.last_rows = [], deque(maxlen=REMEMBERED)
        if path.exists():
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
                try:
                    if line.endswith("\n") and (row := json.loads(line))["step"] <= last_step:
                        kept.append(line)
                        self.last_rows.append(row)
                except (ValueError, TypeError, KeyError):
                    continue  # half a line: the process was killed while it wrote a step that comes again
        replace_text(path, "".join(kept))
        self.file = open(path, "a", encoding="utf-8")  # noqa: SIM115  open for the whole run

    def write(self, rows: list[dict]) -> None:
        """Append rows; they reach the operating system at once."""
        self.fence()
        for row in rows:
            self.file.write(json.dumps(finite(row), allow_nan=False) + "\n")
        self.file.flush()

    def sync(self) -> None:
        """Make what was written durable: called before a checkpoint counts on it."""
        os.fsync(self.file.fileno())

    def close(self) -> None:
        """Close the file."""
        self.file.close()
