"""Tier `stage`: held-out text of each corpus and of all together, and tasks that likelihood decides."""
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from data.config import DataConfig
from data.dataset import valid_dataset
from data.manifest import Manifest
from data.tokenizer import PAD_ID, Tokenizer
from eval.metrics import perplexity, token_scores, unigram_losses
from eval.rows import RowScorer
from eval.tasks import scores as choice
from eval.tasks.questions import Task, rows_of
from parallel import collectives

CORPUS = "valid_"


class Stage:
    """Evaluates the same samples and questions each time, all ranks together.

    Args:
        num_samples: of each corpus, from its beginning.
        tasks: whose questions stand in an order of their own, so that any first part of them is a fair sample.
    """

    def __init__(self, scorer: RowScorer, tokenizer: Tokenizer, manifest: Manifest, config: DataConfig, num_samples: int,
                 tasks: Sequence[Task]):
        self.scorer, self.manifest, self.config, self.tasks = scorer, manifest, config, tasks
        self.num_samples = num_samples
        self.bytes = tokenizer.byte_lengths()
        self.unigram = unigram_losses(np.load(config.prepared_dir / "token_counts.npy"))
        longest = max((len(row.tokens) for task in tasks for question in task.questions for row in question.rows), default=0) - 1
        # A graph of its own where that at least halves what is computed.
        self.task_width = longest if 2 * longest <= config.seq_length else config.seq_length

    def samples(self, share: float = 1.0) -> dict[str, int]:
        """How many samples of each corpus a share of the text is."""
        return {name.removeprefix(CORPUS): min(self.manifest.sets[name].samples, round(share * self.num_samples))
                for name in self.manifest.valid_sets}

    def measure(self) -> tuple[float, float]:
        """Compile, and time a batch of each kind: the seconds that the whole text and all questions should take."""
        steps = self.scorer.steps
        work = ((self.config.seq_length, sum(map(steps, self.samples().values()))),
                (self.task_width, sum(steps(task.num_rows) for task in self.tasks)))
        seconds = []
        for width, batches in work:
            nothing = np.full((1, width + 1), PAD_ID, np.int32), np.zeros(1, np.int32)
            if batches:
                self.scorer.score_rows(*nothing)
            began = time.perf_counter()
            if batches:
                self.scorer.score_rows(*nothing)
            seconds.append((time.perf_counter() - began) * batches)
        return tuple(seconds)

    def run(self, text: float = 1.0, tasks: float = 1.0) -> dict:
        """{"corpora": {name: scores}, "all": scores, "tasks": {name: scores}, "shares", "seconds", "not_computed": {name: why}}.

        Scores of text are those of eval.metrics.token_scores, with the number of samples and the perplexity of the training
        text's token frequencies on the same tokens: what knowing no context gives. Those of tasks: eval.tasks.scores.

        Args:
            text, tasks: the shares of `num_samples` and of each task's questions.
        """
        began = time.perf_counter()
        rows = {name: self._corpus(name, count) for name, count in self.samples(text).items()}
        report = {"corpora": {name: {**_scores(found), "items": _items(found)} for name, found in rows.items()},
                  "all": _scores(np.concatenate(list(rows.values()))), "tasks": {}, "shares": {"text": text, "tasks": tasks},
                  "not_computed": {name: why for name, found in rows.items() if (why := _why_not(found))}}
        between = time.perf_counter()
        for task in self.tasks:
            count = self._count(task, tasks)
            if count or not task.questions:
                report["tasks"][task.name] = scores = self._task(replace(task, questions=task.questions[:count]))
                if scores["not_computed"]:
                    report["not_computed"][task.name] = scores["not_computed"]
            else:
                report["not_computed"][task.name] = f"the time budget allows none of its {len(task.questions)} questions now"
        report["seconds"] = {"text": between - began, "tasks": time.perf_counter() - between}
        return report

    def dropout_spread(self) -> float:
        """By what share the losses of two equal rows differ that have other keys for dropout: 0, up to rounding, if it is off.

        The label that counts in one of them and not in the other is a pad, which counts in none.
        """
        tokens = np.random.RandomState(0).randint(PAD_ID + 1, len(self.bytes), (1, self.config.seq_length + 1)).astype(np.int32)
        tokens[0, 1] = PAD_ID
        losses = self.scorer.score_rows(np.repeat(tokens, 2, 0), np.arange(2, dtype=np.int32))[:, 0]
        return float(abs(losses[1] - losses[0]) / abs(losses[0]))

    def _corpus(self, name: str, samples: int) -> np.ndarray:
        """float64 [samples, 5], in the order of the samples: loss sum, tokens, right guesses, bytes, loss sum of the unigram."""
        mesh, more = self.scorer.mesh, []
        if not samples:
            return np.zeros((0, 5))
        dataset = valid_dataset(self.manifest, self.config, CORPUS + name, samples, self.scorer.batch_size, mesh.dp_rank, mesh.dp)
        figures = self.scorer.score(self._batches(dataset, more))
        more = np.concatenate(collectives.gather_arrays(np.concatenate(more))[self.scorer.counting])
        return np.concatenate((figures, more), 1)[:samples]  # the rest only fills up the last batches

    def _batches(self, dataset, more: list[np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The dataset's batches; bytes and unigram losses of each row, float32 [batch_size, 2], go to `more`."""
        for (tokens,) in dataset.create_tuple_iterator(num_epochs=1, output_numpy=True):
            labels, counted = tokens[:, 1:], tokens[:, 1:] != PAD_ID
            sums = [(table[labels] * counted).sum(1) for table in (self.bytes, self.unigram)]
            more.append(np.stack(sums, 1).astype(np.float32))
            yield tokens, np.zeros(len(tokens), np.int32)

    def _count(self, task: Task, share: float) -> int:
        """How many of a task's questions fit into the share of its batches."""
        steps = self.scorer.steps
        rows = np.cumsum([len(question.rows) for question in task.questions])
        return int(np.searchsorted([steps(int(n)) for n in rows], share * steps(task.num_rows), "right"))

    def _task(self, task: Task) -> dict:
        tokens, first = rows_of([task], self.task_width)
        return choice.scores(task, *(self.scorer.score_rows(tokens, first) if len(tokens) else np.zeros((0, 3))).T)


def _scores(rows: np.ndarray) -> dict:
    *sums, unigram = rows.sum(0)
    return {**token_scores(*sums), "unigram_perplexity": perplexity(unigram / sums[1]) if sums[1] else None, "samples": len(rows)}


def _why_not(rows: np.ndarray) -> str | None:
    """Why some samples have no scores; None: they have."""
    if not len(rows):
        return "there is no validation text"
    broken = int((~np.isfinite(rows[:, 0])).sum())
    return f"the loss of {broken} of its {len(rows)} samples is not finite" if broken else None


def _items(rows: np.ndarray) -> list[dict]:
    """What each sample counts, for intervals (see eval.comparison.bootstrap)."""
    return [{"id": str(i), "loss_sum": row[0], "tokens": int(row[1]), "hits": int(row[2]), "bytes": int(row[3])}
            for i, row in enumerate(rows.tolist())]
