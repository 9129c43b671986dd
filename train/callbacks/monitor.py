"""The figures of each step, to the console, metrics.jsonl and TensorBoard."""
import resource
from pathlib import Path
from typing import Protocol

import mindspore as ms
from mindspore.train import Callback

from data.order import Reading
from train.clock import Clock

STATM = Path("/proc/self/statm")  # psutil, which reads it too, takes ten times as long


def peak_memory_bytes() -> int:
    """The most memory that this process has held: on the device, or resident in the host where the host is the device."""
    if ms.get_context("device_target") == "CPU":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return int(ms.runtime.max_memory_allocated())


def memory_bytes() -> int:
    """The memory that this process holds now, of the same kind."""
    if ms.get_context("device_target") == "CPU":
        return int(STATM.read_text().split()[1]) * resource.getpagesize()
    return int(ms.runtime.memory_allocated())


class Examiner(Protocol):
    """Who has something to say of the steps."""

    def examine(self, rows: list[dict]) -> None:
        """See each step's row once, in order; may add to it."""


class Monitor(Callback):
    """Keeps the step's outputs on the device and fetches them every `every` steps, so that no step waits for the host.

    Args:
        sinks: objects with write(rows), sync() and close(); none on ranks other than 0.
        last_step: the step that this process starts after.
        reading: where in the order the run is; this counts its steps.
        examiner: sees the rows before the sinks do.
    """

    def __init__(self, clock: Clock, sinks: list, every: int, last_step: int, reading: Reading, examiner: Examiner | None = None):
        super().__init__()
        self.examiner = examiner
        self.clock, self.sinks, self.every = clock, sinks, every
        self.reading = reading
        self.step, self.pending, self.rows_written = last_step, [], 0
        self.last_row, self.tokens, self.added = {}, 0, {}
        self.mark = self._now()

    def add(self, **figures: float) -> None:
        """Figures for the row of the step that is next written last."""
        self.added |= figures

    def _now(self) -> tuple[float, float]:
        return self.clock.training(), self.clock.seconds["data"]

    def on_train_step_end(self, run_context):
        self.step += 1
        self.reading.batches += 1
        self.pending.append((self.step, self.reading.consumed, run_context.original_args().net_outputs))
        if self.rows_written == 0 and len(self.pending) == 1:
            self.mark = self._now()  # the first step compiles: its time does not count, nor do its tokens
        if self.step % self.every == 0:
            self.flush()

    def flush(self) -> None:
        """Fetch what is pending and hand it to the sinks, on disk as far as the operating system is concerned."""
        if not self.pending:
            return
        with self.clock.measure("fetch"):  # on an asynchronous device this waits for the steps themselves
            fetched = [(step, consumed, [x.asnumpy().item() for x in outputs]) for step, consumed, outputs in self.pending]
        (t0, d0), (t1, d1) = self.mark, self._now()
        timed = fetched[1:] if self.rows_written == 0 else fetched
        seconds, tokens = max(t1 - t0, 1e-9), sum(values[5] for *_, values in timed)
        shared = {"tokens_per_second": tokens / seconds, "step_seconds": seconds / len(timed), "data_wait": (d1 - d0) / seconds} \
            if timed else {"tokens_per_second": None, "step_seconds": None, "data_wait": None}
        rows = [{"step": step, "loss": loss, "lr": lr, "grad_norm": norm, "loss_scale": scale, "overflow": bool(overflow),
                 "consumed_samples": consumed, "tokens": int(count), **shared, "memory_bytes": memory_bytes()}
                for step, consumed, (loss, norm, scale, overflow, lr, count) in fetched]
        rows[-1] |= self.added
        self.added = {}
        if self.examiner:
            self.examiner.examine(rows)
        with self.clock.measure("log"):
            for sink in self.sinks:
                sink.write(rows)
        self.pending, self.rows_written, self.tokens = [], self.rows_written + len(rows), self.tokens + tokens
        self.last_row, self.mark = rows[-1], self._now()

    def sync(self) -> None:
        """Everything up to this step is on disk when this returns."""
        self.flush()
        with self.clock.measure("log"):
            for sink in self.sinks:
                sink.sync()

    def on_train_end(self, run_context):
        self.flush()

    def close(self) -> None:
        """Write out what is pending, also after an error, and close the sinks."""
        self.flush()
        for sink in self.sinks:
            sink.close()
