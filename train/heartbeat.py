"""Signs of life: what each rank is doing, in a file that `train.supervise` and people look at."""
import contextlib
import json
import os
import time
from pathlib import Path

from mindspore.train import Callback

from train.callbacks.monitor import memory_bytes
from train.clock import Clock
from train.signs import path_of

SECONDS = 2.0  # between two signs of the same phase


class Heartbeat(Callback):
    """Writes {"rank", "pid", "phase", "step", "time" (seconds since 1970), "memory_bytes", "step_seconds", "host_seconds"}.

    Phases: start (until the first step is done), step, eval, ckpt. step_seconds: of the last step, from its beginning to its end;
    host_seconds: from the end of the one before to its beginning, which other ranks wait for, less its own waiting for them.
    """

    def __init__(self, clock: Clock, run_folder: Path, rank: int, last_step: int):
        super().__init__()
        self.path, self.rank, self.step, self.phase = path_of(run_folder, rank), rank, last_step, ""
        self.temporary = self.path.with_suffix(".tmp")
        self.clock, self.met = clock, 0.0
        self.step_seconds = self.host_seconds = None
        self.ended = self.written = 0.0
        self.path.parent.mkdir(parents=True, exist_ok=True)
        clock.on_phase = self.beat
        self.beat("start")

    def beat(self, phase: str) -> None:
        """Say what begins now; kinds of time that are no phase belong to the step."""
        phase = "start" if not self.ended else phase if phase in ("eval", "ckpt") else "step"
        now = time.monotonic()
        if phase == self.phase and now - self.written < SECONDS:
            return
        self.phase, self.written = phase, now
        sign = {"rank": self.rank, "pid": os.getpid(), "phase": phase, "step": self.step, "time": time.time(),
                "memory_bytes": memory_bytes(), "step_seconds": self.step_seconds, "host_seconds": self.host_seconds}
        with contextlib.suppress(OSError):  # what matters more will fail and say so
            self.temporary.write_text(json.dumps(sign), encoding="utf-8")
            os.replace(self.temporary, self.path)  # not fsynced: after a crash of the machine nobody asks for it

    def on_train_step_begin(self, run_context):
        self.began = time.perf_counter()
        if self.ended:
            self.host_seconds = self.began - self.ended - (self.clock.seconds["meet"] - self.met)
        self.beat("step")

    def on_train_step_end(self, run_context):
        self.step += 1
        self.ended, self.met = time.perf_counter(), self.clock.seconds["meet"]
        self.step_seconds = self.ended - self.began
        self.beat("step")
