"""The tiers that a config switches on, for a run and for `python -m eval`."""
from collections.abc import Iterator
from dataclasses import dataclass, replace

from data.manifest import Manifest
from data.tokenizer import Tokenizer
from eval.budget import Budget
from eval.config import StageConfig
from eval.deep import Deep
from eval.rows import RowScorer
from eval.stage import Stage
from eval.tasks.held_out import cloze, continuation, read_held_out
from eval.tasks.questions import Task
from eval.tasks.shipped import bbh, bbh_exact, mmlu
from model.gpt import GPT
from parallel import collectives
from parallel.mesh import Mesh
from train.build import build_eval_step, compiled
from train.config import RunConfig


@dataclass
class Tiers:
    """None: switched off."""

    stage: Stage | None
    deep: Deep | None
    budget: Budget | None = None

    def warm_up(self, config: StageConfig) -> None:
        """Compile, and measure what the tier `stage` takes."""
        if self.stage:
            self.budget = Budget(config.time_budget, config.num_batches, *self.stage.measure())
        if self.deep:
            self.deep.warm_up()


def agreed(values: tuple[float, ...]) -> tuple[float, ...]:
    """Rank 0's, on every rank: what ranks decide by must be equal on all."""
    return tuple(collectives.gather(values)[0])


def build_tiers(gpt: GPT, config: RunConfig, mesh: Mesh, num_micro_batches: int, manifest: Manifest) -> Tiers:
    """The tiers for a model."""
    stage, deep = config.eval.stage, config.eval.deep
    tokenizer = Tokenizer.load(config.data.prepared_dir / "tokenizer.model")
    step = build_eval_step(gpt, config, mesh, num_micro_batches).set_train(False)
    batch_size = config.train.global_batch_size // mesh.dp // num_micro_batches
    scorer = RowScorer(step, compiled(step, config, mesh), mesh, batch_size)
    texts = None
    if deep.enabled and mesh.tp * mesh.pp == 1:
        texts = Deep(gpt, scorer, tokenizer, deep, config.model.seq_length, config.run.seed)
    if not stage.enabled:
        return Tiers(None, texts)
    return Tiers(Stage(scorer, tokenizer, manifest, config.data, stage.num_batches * config.train.global_batch_size,
                       list(tasks_of(config, tokenizer, manifest))), texts)


def tasks_of(config: RunConfig, tokenizer: Tokenizer, manifest: Manifest) -> Iterator[Task]:
    """The tasks of eval.stage.tasks: those made of held-out text for each corpus that has some."""
    stage, data = config.eval.stage, config.data
    made = [make for name, make in (("cloze", cloze), ("continuation", continuation)) if name in stage.tasks]
    for name in manifest.valid_sets if made else ():
        if manifest.sets[name].samples:
            text = read_held_out(manifest, data, name, tokenizer)
            for make in made:
                yield make(text, tokenizer, data.seq_length, stage.max_questions)
    for name, make in (("mmlu", mmlu), ("bbh", bbh), ("bbh_exact", bbh_exact)):
        if name in stage.tasks:
            task = make(tokenizer, data.seq_length)
            yield replace(task, questions=task.questions[:stage.max_questions])
