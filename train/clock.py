"""Where the time of a run goes."""
import time
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager

from mindspore.train import Callback


class Clock(Callback):
    """Seconds of this process by kind: `compile` (all until the first step is done), `data` (waiting for batches), `meet` (for
    the other ranks, at a step's end), `fetch`, `log`, `health`, `eval`, `ckpt`, `profile`.

    First in the list of callbacks: the gap between the end of one step and the beginning of the next, less what the other
    callbacks measured in it, is the time that the loop waited for data.
    """

    def __init__(self):
        super().__init__()
        self.seconds = Counter()
        self.started = time.perf_counter()
        self.gap_from = None
        self.own = 0.0  # seconds that this rank's host spent on its own before the last step: of kind `data`
        self.on_phase: Callable[[str], None] = lambda kind: None  # is told each kind as it begins, "step" as it ends

    @contextmanager
    def measure(self, kind: str):
        """Count the time of a `with` block as `kind`."""
        began = time.perf_counter()
        self.on_phase(kind)
        try:
            yield
        finally:
            self.seconds[kind] += time.perf_counter() - began
            self.on_phase("step")

    def total(self) -> float:
        """Seconds since the first step was done."""
        return time.perf_counter() - self.started - self.seconds["compile"]

    def training(self) -> float:
        """Of `total`, the seconds spent on training steps, data included."""
        return self.total() - self.seconds["eval"] - self.seconds["ckpt"] - self.seconds["profile"]

    def on_train_begin(self, run_context):
        self.first_step = run_context.original_args().cur_step_num + 1

    def on_train_step_begin(self, run_context):
        self.step_began = time.perf_counter()
        if self.gap_from is not None:
            before, others = self.gap_from
            self.own = self.step_began - before - (self._others() - others)
            self.seconds["data"] += self.own

    def on_train_step_end(self, run_context):
        now = time.perf_counter()
        if run_context.original_args().cur_step_num == self.first_step:
            self.seconds = Counter(compile=now - self.started)
        self.gap_from = now, self._others()

    def _others(self) -> float:
        return sum(self.seconds.values()) - self.seconds["data"]
