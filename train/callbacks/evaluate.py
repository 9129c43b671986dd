"""Runs the tiers at their steps, and writes their reports."""
import json
from pathlib import Path

from mindspore.train import Callback

from eval.deep import Samples
from eval.stage import Validation
from parallel import collectives
from parallel.files import replace_text
from train.callbacks.monitor import Monitor
from train.clock import Clock
from train.console import say
from train.metrics_log import finite
from train.tensorboard import TensorBoard


def due_steps(total_steps: int, every: float) -> set[int]:
    """The steps nearest to every multiple of `every` (a share of the run), and the last."""
    count = round(1 / every)
    return {max(1, round(total_steps * min(1.0, i * every))) for i in range(1, count + 1)} | {total_steps}


class Evaluate(Callback):
    """Which step evaluates follows from the step's number alone, so all ranks agree on it.

    Args:
        validation, samples: the tiers; None: switched off.
        stage_steps, deep_steps: the steps after which they run.
    """

    def __init__(self, clock: Clock, validation: Validation | None, samples: Samples | None, stage_steps: set[int],
                 deep_steps: set[int]):
        super().__init__()
        self.clock, self.validation, self.samples = clock, validation, samples
        self.stage_steps, self.deep_steps = stage_steps, deep_steps
        self.last: dict = {}

    def report_to(self, monitor: Monitor, folder: Path | None, tensorboard: TensorBoard | None) -> None:
        """Who knows the step, and where rank 0 writes (None elsewhere)."""
        self.monitor, self.folder, self.tensorboard = monitor, folder, tensorboard

    def warm_up(self) -> None:
        """Compile the tiers' graphs, so that their first run costs what the others do."""
        with self.clock.measure("compile"):
            if self.validation:
                self.validation.warm_up()
            if self.samples:
                self.samples.run(max_new_tokens=1)

    def on_train_step_end(self, run_context):
        step = self.monitor.step
        stage, deep = self.validation and step in self.stage_steps, self.samples and step in self.deep_steps
        if not (stage or deep):
            return
        self.monitor.flush()
        with self.clock.measure("eval"):
            collectives.barrier()
            report = {"step": step}
            if stage:
                report["stage"] = self.last = self.validation.run()
            if deep:
                report["samples"] = self.samples.run()
            if self.folder is not None:
                self.write(step, report)

    def again(self) -> None:
        """The figures of a step that has been evaluated and written already."""
        if self.validation:
            self.last = self.validation.run()

    def write(self, step: int, report: dict) -> None:
        """One JSON file, TensorBoard, and a few lines on the console."""
        self.folder.mkdir(exist_ok=True)
        replace_text(self.folder / f"step_{step:08d}.json",
                     json.dumps(finite(report), indent=1, ensure_ascii=False, allow_nan=False) + "\n")
        if stage := report.get("stage"):
            for name, scores in {**stage["corpora"], "all": stage["all"]}.items():
                self.tensorboard.scalars(step, {f"valid_{name}/{key}": scores[key] for key in ("loss", "perplexity", "accuracy")})
            scores = stage["all"]
            if scores["tokens"]:
                parts = " ".join(f"{n} {s['perplexity']:.1f}" for n, s in stage["corpora"].items() if s["tokens"])
                say(f"{'':8} valid  loss {scores['loss']:.4f}  perplexity {scores['perplexity']:.1f} ({parts})  "
                    f"accuracy {scores['accuracy']:.1%}")
            for name, why in stage["not_computed"].items():
                say(f"{'':8} valid  {name}: not computed, {why}")
        for i, sample in enumerate(report.get("samples", ())):
            text = " ".join(sample["text"].split())
            say(f"{'':8} sample {sample['prompt'][:30]} | {text[:30]}")
            self.tensorboard.text(step, f"samples/{i}", f"**{sample['prompt']}** {sample['text']}")
