"""Signs of life that the ranks leave (see train/heartbeat.py), for whoever watches them."""
import json
import statistics
import time
from collections import Counter
from pathlib import Path

import psutil

from train.config import SuperviseConfig

FOLDER = "heartbeat"
SLOW_LOOKS = 10  # in a row, before a rank is called slow


def path_of(run_folder: Path, rank: int) -> Path:
    """Where a rank leaves its signs."""
    return run_folder / FOLDER / f"rank_{rank}.json"


def read(run_folder: Path) -> list[dict]:
    """The signs of all ranks, by rank; what cannot be read is left out."""
    found = []
    for path in (run_folder / FOLDER).glob("rank_*.json"):
        try:
            found.append(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            continue  # it is being replaced
    return sorted(found, key=lambda sign: sign["rank"])


def slow_ranks(signs: list[dict]) -> list[int]:
    """Ranks whose host keeps the others waiting: between two steps more than twice the median, and a tenth of a step at least."""
    known = [s for s in signs if s["host_seconds"] is not None and s["step_seconds"] is not None]
    if len(known) < 2:
        return []
    median = statistics.median_low([s["host_seconds"] for s in known])
    return [s["rank"] for s in known if s["host_seconds"] > 2 * median and s["host_seconds"] > 0.1 * s["step_seconds"]]


class RankWatch:
    """Looks at the signs of one start of a run, again and again.

    Args:
        ranks: those of this node; None: all.
    """

    def __init__(self, run_folder: Path, settings: SuperviseConfig, ranks: range | None):
        self.folder, self.ranks = run_folder, ranks
        self.limits = {"start": settings.start_minutes, "step": settings.step_minutes, "eval": settings.eval_minutes,
                       "ckpt": settings.ckpt_minutes}
        self.seen: dict[int, tuple[dict, float]] = {}  # rank -> its sign, and when that was first seen so
        self.slow: Counter[int] = Counter()

    def begin(self) -> None:
        """A new start: forget the ranks of this node, and remove what they left."""
        self.seen, self.slow = {}, Counter()
        for sign in self.signs():
            path_of(self.folder, sign["rank"]).unlink(missing_ok=True)

    def signs(self) -> list[dict]:
        """Of the ranks of this node."""
        return [sign for sign in read(self.folder) if self.ranks is None or sign["rank"] in self.ranks]

    def hung(self) -> str:
        """Which rank has given no sign for longer than its phase may take; "" if none. The clock on the wall plays no part."""
        now, silent = time.monotonic(), []
        for sign in self.signs():
            if self.seen.get(sign["rank"], ({},))[0] != sign:
                self.seen[sign["rank"]] = sign, now
            if (age := now - self.seen[sign["rank"]][1]) > 60 * self.limits[sign["phase"]]:
                silent.append((sign["step"], -age, sign))
        if not silent:
            return ""
        # The others wait for the one that hangs, and are as silent as it is; a process that is stopped gives itself away.
        _, age, first = min(silent, key=lambda found: (not _stopped(found[2]["pid"]), *found[:2]))
        how = "stopped by a signal, " if _stopped(first["pid"]) else ""
        return f"rank {first['rank']} hung (phase {first['phase']}, {how}no sign for {-age:.0f} s)"

    def newly_slow(self) -> list[int]:
        """Ranks of any node that have kept the others waiting for a while; each is named once in a start."""
        slow = slow_ranks(read(self.folder))
        self.slow = Counter({rank: n for rank, n in self.slow.items() if rank in slow or n >= SLOW_LOOKS})
        self.slow.update(slow)
        return [rank for rank in slow if self.slow[rank] == SLOW_LOOKS]


def _stopped(pid: int) -> bool:
    """Whether a process was stopped, by SIGSTOP or a debugger."""
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.Error:
        return False
