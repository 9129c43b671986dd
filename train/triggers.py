"""Reasons to save that come from outside: signals, a file, the clock. All ranks agree on them at a step's end."""
import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from parallel import collectives

REQUEST = "request_checkpoint"
STOPS, SAVES = (signal.SIGTERM, signal.SIGINT), (signal.SIGUSR1,)


class Interrupted(Exception):
    """Somebody asked this run to end, and all ranks know; raised where a step's work can be left undone."""


class Halted(Exception):
    """A health rule ended the run, which is saved; the text says which, and why."""


class RolledBack(Exception):
    """A health rule ended the run, which is to go on from a checkpoint before, and pass over some batches."""


@dataclass(frozen=True)
class Wish:
    """What all ranks have agreed on; stop: the run was interrupted; halt, roll_back: a health rule ends it.

    found: of each rank, the number of the rule that its next batch breaks, 0 for none; seconds: of each rank, what it spent on
    its own before the step, while the others may have waited for it.
    """

    save: bool
    stop: bool
    halt: bool
    roll_back: bool
    found: np.ndarray
    seconds: np.ndarray


class Triggers:
    """SIGTERM and SIGINT: save and end. SIGUSR1, the file `request_checkpoint`, or so many minutes since the last one: save.

    Args:
        folder: the run's; rank 0 looks for the file.
        every_minutes: None: the clock is no reason.
    """

    def __init__(self, folder: Path, every_minutes: float | None, rank: int):
        self.request, self.rank = folder / REQUEST, rank
        self.seconds = None if every_minutes is None else 60.0 * every_minutes
        self.stop = self.save = self.halt = self.roll_back = False
        self.saved()

    def saved(self) -> None:
        """A checkpoint holds everything up to now."""
        self.since = time.monotonic()

    @contextlib.contextmanager
    def caught(self) -> Iterator[None]:
        """Signals are noted while this lasts; a second one that ends the run ends it at once, and publishes nothing."""
        old = {number: signal.signal(number, self._note) for number in (*STOPS, *SAVES)}
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)

    def _note(self, number: int, _frame) -> None:
        if number in SAVES:
            self.save = True
        elif self.stop:
            os._exit(128 + number)
        self.stop |= number in STOPS

    def agreed(self, found: int = 0, seconds: float = 0.0) -> Wish:
        """The wishes of all ranks together; every rank has to call it. What was wished for is then done with."""
        asked = self.rank == 0 and self.request.exists()
        due = self.rank == 0 and self.seconds is not None and time.monotonic() - self.since >= self.seconds
        wishes = [float(self.save or asked or due), float(self.stop), float(self.halt), float(self.roll_back)]
        ranks = collectives.gather([*wishes, float(found), seconds])
        save, stop, halt, roll_back = ranks[:, :4].max(0) > 0
        if save:
            self.save = False
            if asked:
                self.request.unlink(missing_ok=True)
        return Wish(bool(save), bool(stop), bool(halt), bool(roll_back), ranks[:, 4], ranks[:, 5])

    def pulse(self) -> None:
        """For long work between two steps: raise Interrupted on all ranks as soon as one is asked to end."""
        if collectives.gather(float(self.stop)).max() > 0:
            raise Interrupted
