"""Writes checkpoints behind the training: a copy is handed over, and the training goes on while it is written."""
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ckpt import writing
from ckpt.writing import Part


class Saver:
    """At most one checkpoint is being written; whoever hands over the next waits for it.

    An error while writing is raised by the next call of any method, whatever it is.

    Args:
        ranks: how many write parts of their own; 1: this process has everything.
        meet: waits for the other ranks that write, and is called in the thread that trains.
        fence: raises SaveError where this process must write no more, since another has taken its place.
        writer: names this start of the run, so that two never write to one place.
    """

    def __init__(self, root: Path, keep_last: int, rank: int = 0, ranks: int = 1, meet: Callable[[], None] = lambda: None,
                 fence: Callable[[], None] = lambda: None, writer: str = ""):
        self.root, self.keep_last, self.rank, self.ranks, self.meet = root, keep_last, rank, ranks, meet
        self.fence, self.writer = fence, writer
        self.thread: threading.Thread | None = None
        self.error: BaseException | None = None
        self.given_up = False
        self.written: list[dict] = []  # {"step", "write_seconds"} of each checkpoint that is whole

    def check(self) -> None:
        """Raise what went wrong since."""
        if self.error:
            error, self.error = self.error, None
            raise error

    def wait(self) -> None:
        """Until what is being written is whole."""
        if self.thread:
            self.thread.join()
            self.thread = None
        self.check()

    def start(self, part: Part, total_bytes: int, state: dict, config: str) -> None:
        """Begin to write; what `part` holds must not change until the next `wait`.

        Args:
            total_bytes: of the parts of all ranks.
        """
        self.wait()
        temporary = writing.temporary_of(self.root, state["step"], self.writer)
        if self.rank == 0:
            try:
                self.fence()
                writing.begin(self.root, state["step"], total_bytes, self.writer)
            except OSError as error:
                raise writing.explained(self.root, state["step"], error) from error
        self.meet()
        self.thread = threading.Thread(target=self._write, args=(temporary, part, state, config), name="checkpoint", daemon=True)
        self.thread.start()

    def _write(self, temporary: Path, part: Part, state: dict, config: str) -> None:
        began = time.perf_counter()
        try:
            if self.ranks == 1:
                files = writing.write_part(temporary, part)
            else:
                self._write_beside_others(temporary, part)
                if self.rank:
                    return
                files = writing.gather_notes(temporary, range(self.ranks), lambda: self.given_up)
            self.fence()
            writing.publish(self.root, temporary, state, config, files, self.keep_last)
            self.written.append({"step": state["step"], "write_seconds": time.perf_counter() - began})
        except OSError as error:
            self.error = writing.explained(self.root, state["step"], error)
        except BaseException as error:
            self.error = error

    def _write_beside_others(self, temporary: Path, part: Part) -> None:
        try:
            writing.leave_note(temporary, self.rank, {"files": writing.write_part(temporary, part)})
        except OSError as error:
            writing.leave_note(temporary, self.rank, {"error": str(error)})
            raise

    def close(self) -> None:
        """Let what is being written become whole if it can without the others; for the end of a run that failed."""
        self.given_up = True
        if self.thread:
            self.thread.join()
