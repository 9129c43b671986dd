"""Saves the whole state: every so many steps or minutes, at milestones, on request, and before the run ends."""
import time
from collections.abc import Callable

from mindspore.train import Callback

from ckpt.saver import Saver
from ckpt.writing import Part
from parallel import collectives
from train.callbacks.gate import Gate
from train.callbacks.monitor import Monitor
from train.clock import Clock
from train.console import say
from train.messages import message
from train.triggers import Triggers, Wish


class Save(Callback):
    """The training waits for the copy to host memory; the Saver writes it behind.

    Args:
        capture: copies what this rank writes, and gives it with the state that goes beside it.
        steps: after which to save whatever else happens; the last one of this process among them.
        milestones: those of them that rotation never takes.
        writes: whether this rank has a part in a checkpoint.
    """

    def __init__(self, clock: Clock, monitor: Monitor, capture: Callable[[bool], tuple[Part, dict]], saver: Saver, config: str,
                 triggers: Triggers, steps: Callable[[int], bool], milestones: set[int], writes: bool):
        super().__init__()
        self.clock, self.monitor, self.capture, self.saver, self.config = clock, monitor, capture, saver, config
        self.triggers, self.steps, self.milestones, self.writes = triggers, steps, milestones, writes
        self.interrupted = self.halted = self.rolled_back = False
        self.gate: Gate | None = None  # looks at the next batch, and has a say in what is agreed

    def on_train_step_end(self, run_context):
        self.saver.check()
        self.report()
        step = self.monitor.step
        if due := self.steps(step) or step in self.milestones:
            self.monitor.sync()  # before all agree: what rules find in these figures may forbid the checkpoint
        wish = self.agreed()
        self.halted, self.rolled_back = wish.halt, wish.roll_back and not wish.halt
        self.interrupted = wish.stop and not (wish.halt or wish.roll_back)
        if not self.rolled_back and (due or wish.save or wish.stop or wish.halt):
            if not due:
                self.monitor.sync()  # a resume from this checkpoint relies on the figures of the steps before it
            self.save(step)
        if wish.stop or wish.halt or wish.roll_back:
            run_context.request_stop()

    def agreed(self) -> Wish:
        """All ranks' wishes; the one place of a step where they wait for each other."""
        with self.clock.measure("meet"):
            wish = self.triggers.agreed(self.gate.found if self.gate else 0, self.clock.own)
        return self.gate.heed(wish) if self.gate else wish

    def save(self, step: int) -> None:
        """Wait for the last one, copy, go on."""
        self.triggers.saved()
        with self.clock.measure("ckpt"):
            began = time.perf_counter()
            if self.writes:
                self.saver.wait()
                waited = time.perf_counter()
                part, state = self.capture(step in self.milestones)
                self.monitor.add(checkpoint_wait_seconds=waited - began, checkpoint_copy_seconds=time.perf_counter() - waited)
                total = part.nbytes if self.saver.ranks == 1 else int(collectives.gather(part.nbytes).sum())
                self.saver.start(part, total, state, self.config)

    def report(self) -> None:
        """What has become whole since goes into the next row."""
        while self.saver.written:
            done = self.saver.written.pop(0)
            self.monitor.add(checkpoint_step=done["step"], checkpoint_write_seconds=done["write_seconds"])

    def on_train_end(self, run_context):
        with self.clock.measure("ckpt"):
            self.saver.wait()
        self.report()
        collectives.barrier()  # no rank ends before the last checkpoint is whole
        if self.interrupted and self.saver.rank == 0:
            say(message("interrupted", step=self.monitor.step))
