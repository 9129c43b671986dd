"""Which steps are profiled, and what a rank notes of them itself: step marks.

    profile/step_<first>/rank_<rank>/marks.json          ours, see Marks
    profile/step_<first>/rank_<rank>/<name>_ascend_ms/   mindspore.profiler's

The CPU's profiler knows operators and no steps, and neither knows what the loop waited for: hence the marks.
"""
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from parallel.files import replace_text
from train.config import ProfileConfig
from train.profiling.tables import Broken, read_json

FOLDER, MARKS = "profile", "marks.json"
APART = ("eval", "ckpt", "profile", "compile")  # kinds of time in a gap that are no part of a training step


@dataclass(frozen=True)
class Window:
    """Steps first, first + 1, ... of the run: warmup of them untold, then active ones."""

    first: int
    warmup: int
    active: int

    @property
    def last(self) -> int:
        """The last step."""
        return self.first + self.warmup + self.active - 1

    @property
    def told(self) -> range:
        """The steps that are profiled."""
        return range(self.first + self.warmup, self.last + 1)


def scheduled(config: ProfileConfig, last_step: int) -> list[Window]:
    """The windows of a start that goes on after `last_step`: as mindspore.profiler.schedule, which counts from the same."""
    length = config.wait + config.warmup + config.active
    begin = last_step + 1 + config.skip_first + config.wait
    return [Window(begin + cycle * length, config.warmup, config.active) for cycle in range(config.repeat)]


def folder_of(run_folder: Path, window: Window, rank: int) -> Path:
    """Where a rank's profile of a window lies."""
    return run_folder / FOLDER / f"step_{window.first:08d}" / f"rank_{rank}"


@dataclass(frozen=True)
class Mark:
    """One step; start (the end of the step before), begin, end: seconds since 1970. gap: seconds of the loop between start and
    begin by kind, as train/clock.py has them (`data`: waiting for the batch). memory_bytes: held at the end."""

    step: int
    start: float
    begin: float
    end: float
    gap: dict[str, float]
    memory_bytes: int

    @property
    def seconds(self) -> float:
        """Of training: from the end of the step before, without what is no part of it."""
        return self.end - self.start - self.apart

    @property
    def apart(self) -> float:
        """Seconds of the gap that belong to no step: evaluation, checkpoints, the profiler's own work."""
        return sum(self.gap.get(kind, 0.0) for kind in APART)


@dataclass(frozen=True)
class Marks:
    """What a rank notes of a window; first: the profiler's step 0."""

    rank: int
    world_size: int
    device: str
    first: int
    steps: list[Mark]

    def write(self, folder: Path) -> None:
        """As JSON."""
        replace_text(folder / MARKS, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> "Marks":
        """Raises Broken."""
        found = read_json(folder / MARKS)
        try:
            return TypeAdapter(cls).validate_python(found)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise Broken(f"{folder / MARKS}: not the step marks that a run writes ({where}: {first['msg']})") from None
