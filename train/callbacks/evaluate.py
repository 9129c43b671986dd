"""Runs the tiers at their steps, or on request, and writes their reports."""
import math
from collections.abc import Callable
from pathlib import Path

from mindspore.train import Callback

from eval.config import StageConfig
from parallel import collectives
from train import reports
from train.callbacks.monitor import Monitor
from train.clock import Clock
from train.console import say
from train.tensorboard import TensorBoard
from train.tiers import Tiers, agreed
from train.triggers import Interrupted

REQUEST = "request_deep_eval"


def due_steps(total_steps: int, every: float, every_steps: int | None = None) -> set[int]:
    """The steps nearest to every multiple of `every` (a share of the run), or every so many steps; and the last."""
    if every_steps is not None:
        return {*range(every_steps, total_steps, every_steps), total_steps}
    if every * total_steps <= 1:
        return {*range(1, total_steps + 1)}
    count = round(1 / every)
    return {max(1, round(total_steps * min(1.0, i * every))) for i in range(1, count + 1)} | {total_steps}


def better(best: dict | None, step: int, loss: float | None) -> dict | None:
    """The better of the best so far and a step's loss; one that is no finite number never counts, and never stands in the way."""
    if loss is None or not math.isfinite(loss) or best is not None and loss >= best["loss"]:
        return best
    return {"step": step, "loss": loss}


class Evaluate(Callback):
    """What a step evaluates follows from its number, and from what rank 0 found: the clock, a request. So all ranks agree.

    Args:
        stage_steps, deep_steps: the steps after which the tiers run; the last one gets what the budget has left.
        run_folder: where a file `request_deep_eval` asks for the tier `deep`; looked for every `look_every` steps.
    """

    def __init__(self, clock: Clock, tiers: Tiers, stage_steps: set[int], deep_steps: set[int], run_folder: Path,
                 look_every: int):
        super().__init__()
        self.clock, self.tiers, self.stage_steps, self.deep_steps = clock, tiers, stage_steps, deep_steps
        self.request, self.look_every = run_folder / REQUEST, look_every
        self.last: dict = {}
        self.told = False  # that the budget allows no text
        self.best: dict | None = None  # {"step", "loss"} of the lowest validation loss of the whole run
        self.dropout_spread: float | None = None  # measured at the first evaluation of this process, in its midst
        self.judge: Callable[[dict], None] = lambda report: None  # is given each report, on rank 0

    def report_to(self, monitor: Monitor, folder: Path | None, tensorboard: TensorBoard | None) -> None:
        """Who knows the step, and where rank 0 writes (None elsewhere)."""
        self.monitor, self.folder, self.tensorboard = monitor, folder, tensorboard

    def pulse(self, pulse: Callable[[], None]) -> None:
        """What is called often in the midst of evaluation, on all ranks alike: it raises Interrupted to end it."""
        for tier in (self.tiers.stage, self.tiers.deep):
            if tier:
                tier.scorer.pulse = pulse

    def warm_up(self, config: StageConfig) -> None:
        """Compile the tiers' graphs, so that their first run costs what the others do."""
        with self.clock.measure("compile"):
            self.tiers.warm_up(config)

    def on_train_step_end(self, run_context):
        step, tiers = self.monitor.step, self.tiers
        stage, deep = tiers.stage and step in self.stage_steps, tiers.deep and step in self.deep_steps
        if step % self.look_every == 0 and not deep:
            deep = self.requested()
        if not (stage or deep):
            return
        self.monitor.flush()
        try:
            self.evaluate(step, stage, deep)
        except Interrupted:
            if self.folder is not None:
                say(f"{reports.INDENT}eval   interrupted; step {step} is not evaluated")

    def evaluate(self, step: int, stage: bool, deep: bool) -> None:
        """Run the tiers, and write their report."""
        tiers = self.tiers
        with self.clock.measure("eval"):
            collectives.barrier()
            report = {"step": step}
            if stage and (found := self.evaluate_stage(step)):
                report["stage"] = found
                self.last = {"step": step, **found}
                self.best = better(self.best, step, found["all"]["loss"])
            elif stage:
                report["not_computed"] = {"stage": reports.NO_TEXT}
            if deep:
                report["deep"] = tiers.deep.run()
                if self.folder is not None:
                    self.request.unlink(missing_ok=True)
            if self.folder is not None:
                self.folder.mkdir(exist_ok=True)
                reports.write(reports.path_of(self.folder, step), report)
                reports.show(report, self.tell)
                reports.to_tensorboard(report, self.tensorboard)
                self.judge({**report, "dropout_spread": self.dropout_spread})

    def tell(self, text: str) -> None:
        """A line on the console; that the budget allows no text, once: it is in every report, and a short run has little else."""
        if text != reports.no_text() or not self.told:
            say(text)
        self.told |= text == reports.no_text()

    def requested(self) -> bool:
        """Whether somebody asks for the tier `deep` now; one that cannot be had is declined."""
        found = self.folder is not None and self.request.exists()
        if self.tiers.deep:
            return bool(agreed((float(found),))[0])
        if found:
            self.request.unlink(missing_ok=True)
            say(f"{reports.INDENT}{REQUEST}: declined, this run has no tier deep (eval.deep.enabled=false, or tp or pp above 1)")
        return False

    def evaluate_stage(self, step: int) -> dict | None:
        """The tier `stage`, as much of it as the time budget allows; None if that is nothing."""
        budget, training = self.tiers.budget, self.clock.training()
        text, tasks = agreed(budget.shares(training, step == max(self.stage_steps)))
        if not text:
            return None
        report = self.tiers.stage.run(text, tasks)
        if self.dropout_spread is None:
            self.dropout_spread = self.tiers.stage.dropout_spread()
        seconds = report["seconds"]
        budget.spend((text, tasks), (seconds["text"], seconds["tasks"]))
        return {**report, "time_fraction": budget.spent / training if training else None}

    def again(self) -> None:
        """The figures of a step that has been evaluated and written already."""
        if self.tiers.stage:
            mine = reports.shares(self.folder, self.monitor.step) if self.folder else (1.0, 1.0)
            self.last = {"step": self.monitor.step, **self.tiers.stage.run(*agreed(mine))}
