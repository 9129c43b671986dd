"""Saves the whole state every so many steps, and at the end."""
from collections.abc import Callable
from pathlib import Path

from mindspore.train import Callback

from ckpt import store
from parallel import collectives
from train.callbacks.monitor import Monitor
from train.clock import Clock


class Save(Callback):
    """Rank 0 writes (all data-parallel ranks hold the same); the others wait until the checkpoint is whole.

    Args:
        capture: makes the checkpoint of the state now.
        last_step: the step at which this process ends.
    """

    def __init__(self, clock: Clock, monitor: Monitor, capture: Callable[[], store.Checkpoint], root: Path, every_steps: int,
                 keep_last: int, last_step: int, rank: int):
        super().__init__()
        self.clock, self.monitor, self.capture, self.root = clock, monitor, capture, root
        self.every_steps, self.keep_last, self.last_step, self.rank = every_steps, keep_last, last_step, rank

    def on_train_step_end(self, run_context):
        step = self.monitor.step
        if step % self.every_steps and step != self.last_step:
            return
        self.monitor.sync()  # a resume from this checkpoint relies on the figures of the steps before it
        with self.clock.measure("ckpt"):
            checkpoint = self.capture()  # of a cut model all ranks have a part in it
            if self.rank == 0:
                store.save(self.root, checkpoint, self.keep_last)
            collectives.barrier()
