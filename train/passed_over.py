"""Batches that a run does not train on: `passed_over.json` in its folder, and in the state of each checkpoint.

Each is a range of positions of the sample order, so the list means the same on every mesh. The file is written before anything
follows from it. A checkpoint whose state does not name a range that it has read was made with those samples: it is not resumed
from, and so a roll-back is nothing but a start with a longer list.
"""
from collections.abc import Iterable
from pathlib import Path

from pydantic import Field, TypeAdapter, ValidationError

from ckpt import store
from ckpt.tensors import BrokenCheckpoint
from eval.health.rules.base import Event
from parallel.config import Section
from parallel.errors import UserError
from parallel.files import replace_text
from train.triggers import Triggers

FILE = "passed_over.json"
REMEMBERED = 1000  # steps whose batches can be named


class PassedOver(Section):
    """Positions first <= p < stop of the order; step: at which they were found out; rule, message: why."""

    first: int = Field(ge=0)
    stop: int = Field(ge=1)
    step: int = 0
    rule: str = ""
    message: str = ""

    @property
    def range(self) -> tuple[int, int]:
        """(first, stop)."""
        return self.first, self.stop


_LIST = TypeAdapter(list[PassedOver])


def load(run_folder: Path, state: dict | None = None) -> list[PassedOver]:
    """What a run passes over, by its folder and the state of the checkpoint that it starts from. Raises UserError."""
    path = run_folder / FILE
    try:
        found = _LIST.validate_json(path.read_bytes()) if path.exists() else []
        found += _LIST.validate_python((state or {}).get("passed_over", []))
    except (OSError, ValidationError) as error:
        raise UserError(f"{path} cannot be read ({' '.join(str(error).split())}): expected a list of "
                        '{"first": position, "stop": position}; mend it, or remove it to pass over nothing') from None
    return sorted({one.range: one for one in reversed(found)}.values(), key=lambda one: one.range)


def write(run_folder: Path, entries: Iterable[PassedOver]) -> None:
    """The whole list, durable when this returns."""
    replace_text(run_folder / FILE, _LIST.dump_json(list(entries), indent=1).decode() + "\n")


def as_state(entries: Iterable[PassedOver]) -> list[dict]:
    """For a checkpoint's state."""
    return _LIST.dump_python(list(entries))


def spoilt(state: dict, entries: Iterable[PassedOver]) -> str:
    """Why a checkpoint with this state is not to be gone on with; "": it is."""
    known = {(one["first"], one["stop"]) for one in state.get("passed_over", [])}
    for one in entries:
        if state["consumed_samples"] > one.first and one.range not in known:
            return f"it was trained on the samples {one.first} to {one.stop - 1}, which are passed over ({one.rule})"
    return ""


def spoilt_checkpoints(root: Path, entries: list[PassedOver]) -> list[Path]:
    """The run's own checkpoints that are spoilt; copies under other names stay what they are."""
    found = []
    for folder in store.steps(root):
        try:
            state = store.read_state(folder)
        except BrokenCheckpoint:
            continue
        if folder == store.folder_of(root, state["step"]) and spoilt(state, entries):
            found.append(folder)
    return found


class Ledger:
    """What this run passes over, the same on every rank; rank 0 writes it down.

    Args:
        most: entries that there may be.
    """

    def __init__(self, run_folder: Path, entries: list[PassedOver], most: int, rank: int):
        self.folder, self.entries, self.most, self.rank = run_folder, entries, most, rank

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """Of positions, in order."""
        return [one.range for one in self.entries]

    @property
    def room(self) -> int:
        """How many more there may be."""
        return max(0, self.most - len(self.entries))

    def full(self) -> str:
        """Why nothing more can be passed over; "": it can."""
        return "" if self.room else f"{len(self.entries)} skips and roll-backs were made already (health.max_passed_over)"

    def add(self, entry: PassedOver) -> str:
        """Pass over one more range from now on. Returns why not; "": it is written down."""
        if why := self.full():
            return why
        self.entries = sorted([*self.entries, entry], key=lambda one: one.range)
        if self.rank == 0:
            write(self.folder, self.entries)
        return ""


class RollBack:
    """Turns an event into a range of the order, on rank 0.

    Args:
        batches: passed over, that of the step where it began and those before it: what a step shows, the update before may
            have done.
    """

    def __init__(self, ledger: Ledger, batches: int, triggers: Triggers, start: int, step: int):
        self.ledger, self.batches, self.triggers = ledger, batches, triggers
        self.ends: dict[int, int] = {step: start}  # step -> position behind what it read
        self.wanted: PassedOver | None = None

    def see(self, row: dict) -> None:
        """A step's row, before its events."""
        self.ends[row["step"]] = row["consumed_samples"]
        self.ends.pop(row["step"] - REMEMBERED, None)

    def ask(self, event: Event) -> str:
        """Ask all ranks for the roll-back. Returns why it cannot be; "": it is asked for, or was by an earlier event."""
        if why := self.ledger.full():
            return why
        if self.wanted is None:
            last = event.step if event.began is None else event.began
            known = [step for step in self.ends if last - self.batches <= step < last]
            if not known or last not in self.ends:
                return f"what step {last} read is not known any more"
            self.wanted = PassedOver(first=self.ends[min(known)], stop=self.ends[last], step=event.step, rule=event.rule,
                                     message=event.message)
            self.triggers.roll_back = True
        return ""

    def settle(self) -> None:
        """All ranks have agreed: write it down. What follows is the next start's."""
        self.ledger.add(self.wanted)
