"""A rank's log: one file, set aside under the next number when it has grown, and at each new start; the oldest parts go.

msrun opens the file and hands it to the worker as standard output and error, so the worker itself has to take a new one: its
own lines, those of MindSpore's C++, and Python's traceback at the end all go there. What it has started before keeps the old one.
"""
import contextlib
import os
import re
import threading
import time
from pathlib import Path

PART = 64 * 2**20  # bytes of one part
ALL = 2**30  # bytes of all earlier parts of a rank; a flood of warnings must not fill the disk
LOOK = 2.0  # seconds between two looks at the size


def set_aside(log: Path, all_bytes: int = ALL) -> None:
    """`rank_0.log` becomes `rank_0.<n>.log`, n counting up; then the oldest parts go until the others fit into all_bytes."""
    parts = {int(found[1]): path for path in log.parent.glob(f"{log.stem}.*.log")
             if (found := re.fullmatch(rf"{re.escape(log.stem)}\.(\d+)\.log", path.name))}
    if log.exists():
        number = max(parts, default=0) + 1
        parts[number] = log.rename(log.with_name(f"{log.stem}.{number}.log"))
    size = 0
    for number in sorted(parts, reverse=True):
        size += parts[number].stat().st_size
        if size > all_bytes and number != max(parts):
            parts[number].unlink()


def watch(part_bytes: int = PART, all_bytes: int = ALL) -> None:
    """From now on keep this process's log within its size; nothing if its output is no rank's log."""
    try:
        log = Path(os.readlink("/proc/self/fd/1"))
    except OSError:
        return
    if re.fullmatch(r"rank_\d+\.log", log.name):
        threading.Thread(target=_watch, args=(log, part_bytes, all_bytes), name="log", daemon=True).start()


def _watch(log: Path, part_bytes: int, all_bytes: int) -> None:
    while True:
        with contextlib.suppress(OSError):  # a full disk, a folder that went away: what matters more will say so
            if os.fstat(1).st_size > part_bytes:
                set_aside(log, all_bytes)
                new = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
                for descriptor in (1, 2):
                    os.dup2(new, descriptor)
                os.close(new)
        time.sleep(LOOK)
