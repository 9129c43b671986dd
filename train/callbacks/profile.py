"""Profiles some steps by mindspore.profiler: by the schedule of the section `profile`, or when somebody asks for it."""
import contextlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import mindspore as ms
from mindspore.train import Callback

from parallel.files import replace_text
from train.callbacks.monitor import memory_bytes
from train.clock import Clock
from train.config import ProfileConfig
from train.console import say, shown
from train.profiling.windows import FOLDER, Mark, Marks, Window, folder_of, scheduled
from train.reports import INDENT

REQUEST = "request_profile"
ORDER = "request.json"  # below FOLDER: rank 0 tells the other ranks of a request


def start_profiler(folder: Path, window: Window):
    """mindspore.profiler for the steps of a window, running; its files go below `folder`.

    On Ascend with what communication and memory need (Level1), and parsed in a process of its own, so that no rank keeps the
    others waiting for minutes.
    """
    from mindspore import profiler as p  # late: a run that is not profiled does not load it
    ascend = ms.get_context("device_target") == "Ascend"
    level = p._ExperimentalConfig(profiler_level=p.ProfilerLevel.Level1, aic_metrics=p.AicoreMetrics.PipeUtilization) \
        if ascend else None
    ready = p.tensorboard_trace_handler(str(folder), async_mode=ascend)  # first: it says where the files go
    if ready is None:  # it only logs what is wrong, and would write to the current folder
        raise RuntimeError(f"mindspore.profiler does not take the folder {folder}")
    return p.profile(activities=[p.ProfilerActivity.CPU, *([p.ProfilerActivity.NPU] if ascend else [])], profile_memory=True,
                     record_shapes=ascend, schedule=p.schedule(wait=0, warmup=window.warmup, active=window.active, repeat=1),
                     on_trace_ready=ready, experimental_config=level)


class Profile(Callback):
    """Second in the list of callbacks, after the clock. Between windows it compares two numbers, and looks for one file.

    Nothing that goes wrong here ends the run: it is said in one line, and this rank profiles no more.

    A request: rank 0 finds the file, removes it, and tells the others by a file of its own from which step on. It names the step
    after the next. The others look for it at each step's end, and no step ends on one rank before all have ended the one
    before, so they begin together without a collective for it.

    Args:
        start: makes the profiler: it has step() and stop().
    """

    def __init__(self, clock: Clock, config: ProfileConfig, run_folder: Path, rank: int, world_size: int, last_step: int,
                 start: Callable = start_profiler):
        super().__init__()
        self.clock, self.config, self.folder, self.rank, self.world_size = clock, config, run_folder, rank, world_size
        self.step, self.start = last_step, start
        self.takes = config.takes(rank)
        self.planned = scheduled(config, last_step) if config.enabled and self.takes else []
        self.request, self.order = run_folder / REQUEST, run_folder / FOLDER / ORDER
        self.window: Window | None = None  # the one that is being profiled
        self.requested: Window | None = None
        self.off, self.profiler, self.marks = not (self.takes or rank == 0), None, []
        if rank == 0:
            with self.guarded():
                self.order.unlink(missing_ok=True)  # of an earlier start

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """What fails in the `with` block is said, and ends profiling, not training."""
        try:
            with self.clock.measure("profile"):
                yield
        except Exception as error:  # noqa: BLE001  whatever a profiler does, the run goes on
            self.off, profiler, self.profiler, self.window = True, self.profiler, None, None
            say(f"{INDENT}note   profile: rank {self.rank} profiles no more, {type(error).__name__}: "
                f"{' '.join(str(error).split())[:300]}")
            with contextlib.suppress(Exception):
                if profiler:
                    profiler.stop()

    def on_train_begin(self, run_context):
        self.begin_if_due()

    def on_train_step_begin(self, run_context):
        if self.window:
            self.began, self.gap = time.time(), Counter(self.clock.seconds) - self.before

    def on_train_step_end(self, run_context):
        self.step += 1
        if self.off:
            return
        if self.window:
            with self.guarded():
                self.note()
            self.snap()
        elif os.path.exists(self.request if self.rank == 0 else self.order):  # unlike Path's, it never raises
            with self.guarded():
                self.listen()
        if self.rank == 0 and self.requested and self.step >= self.requested.first:
            with self.guarded():
                self.order.unlink(missing_ok=True)
                self.requested = None
        self.begin_if_due()

    def listen(self) -> None:
        """Somebody asks for a profile."""
        c = self.config
        if self.rank:
            first = json.loads(self.order.read_text(encoding="utf-8"))["first"]
        else:
            self.request.unlink(missing_ok=True)
            first = self.step + (1 if self.world_size == 1 else 2)
            if self.world_size > 1:
                self.order.parent.mkdir(parents=True, exist_ok=True)
                replace_text(self.order, json.dumps({"first": first}))
            say(f"{INDENT}profile   as requested: steps {first + c.warmup} to {first + c.warmup + c.active - 1}")
            self.requested = Window(first, c.warmup, c.active) if self.world_size > 1 else None
        if self.takes and first > self.step:
            self.planned = sorted({*self.planned, Window(first, c.warmup, c.active)}, key=lambda window: window.first)

    def begin_if_due(self) -> None:
        """Start the profiler where the next step is the first of a window; those that another one ran over are left out."""
        if self.off or self.window or not self.planned:
            return
        self.planned = [window for window in self.planned if window.first > self.step]
        if not self.planned or self.planned[0].first != self.step + 1:
            return
        with self.guarded():
            window = self.planned.pop(0)
            self.place = folder_of(self.folder, window, self.rank)
            self.place.mkdir(parents=True, exist_ok=True)
            self.profiler, self.marks, self.window = self.start(self.place, window), [], window
        self.snap()

    def snap(self) -> None:
        """From here on the next step's time runs: not before the profiler's own has been counted."""
        self.started, self.before = time.time(), Counter(self.clock.seconds)

    def note(self) -> None:
        """A step of the window is done."""
        if self.step in self.window.told:
            self.marks.append(Mark(self.step, self.started, self.began, time.time(), dict(self.gap), memory_bytes()))
        self.profiler.step()
        if self.step == self.window.last:
            self.finish()

    def finish(self) -> None:
        """Write the marks; the profiler has written its files."""
        window, self.window = self.window, None
        profiler, self.profiler = self.profiler, None
        profiler.stop()
        Marks(self.rank, self.world_size, ms.get_context("device_target"), window.first, self.marks).write(self.place)
        if not any(self.place.glob("*_ascend_ms/*/*")):
            raise RuntimeError(f"mindspore.profiler wrote nothing to {shown(self.place)}")
        if self.rank == (0 if self.config.takes(0) else min(self.config.ranks)):
            say(f"{INDENT}profile   steps {window.told[0]} to {window.told[-1]} are in {shown(self.place.parent)}; read them: "
                f"python -m train.profile_report {shown(self.folder)}")

    def close(self) -> None:
        """The run ends, perhaps in the midst of a window: what was profiled of it is written."""
        if self.window:
            with self.guarded():
                self.finish()
