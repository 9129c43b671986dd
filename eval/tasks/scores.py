"""Scores of a task from the figures of its rows: loss sum, number of tokens and hits, as the network counts them.

A choice is right if the right option is strictly likelier than every other: a tie is wrong, so a model that cannot tell the
options apart gets no credit. `accuracy` compares sums of log-likelihoods (lm-evaluation-harness: acc), `accuracy_norm` the sums
divided by the continuation's UTF-8 bytes (there: acc_bytes; its acc_norm divides by characters, the same for ASCII). A cloze is
right if every token of its target is a hit. What is not a number is never right, and is counted.
"""
from collections import Counter
from collections.abc import Sequence

import numpy as np

from eval.tasks.questions import Task


def all_scores(tasks: Sequence[Task], loss_sums: np.ndarray, tokens: np.ndarray, hits: np.ndarray) -> dict[str, dict]:
    """{name of task: its scores}, from figures [n] of all rows in the order of eval.tasks.questions.rows_of."""
    total = sum(task.num_rows for task in tasks)
    if len(loss_sums) != total:
        raise ValueError(f"figures of {len(loss_sums)} rows, the tasks have {total}")
    results, start = {}, 0
    for task in tasks:
        part = slice(start, start := start + task.num_rows)
        results[task.name] = scores(task, loss_sums[part], tokens[part], hits[part])
    return results


def scores(task: Task, loss_sums: np.ndarray, tokens: np.ndarray, hits: np.ndarray) -> dict:
    """Scores of one task.

    Args:
        loss_sums, tokens, hits: float or int [task.num_rows]: nats, labels that counted, and those of them that were likeliest.

    Returns:
        {"kind", "questions", "accuracy", "accuracy_norm" (choice) or "loss" (cloze: nats per token of the targets), "baseline",
        "truncated", "nonfinite", "skipped", "rejected", "not_computed", "items"}. `baseline` is the accuracy of guessing (choice)
        or of always giving the most frequent target (cloze); `truncated` and `nonfinite` count questions; `skipped` and
        `rejected` are the task's; `items` has {"id", "correct", and "correct_norm", or "loss_sum" and "tokens"} of each question.
        Where there are no questions, accuracies, loss and baseline are None and "not_computed" says why.

    Raises:
        ValueError: a row's number of tokens is not the one it was built with, so these are not its figures.
    """
    expected = [row.counted for question in task.questions for row in question.rows]
    if list(tokens) != expected:
        raise ValueError(f"{task.name}: the rows count {list(tokens)[:4]}... tokens, not {expected[:4]}...")
    loss_sums = np.asarray(loss_sums, np.float64)
    parts = np.split(loss_sums, np.cumsum([len(question.rows) for question in task.questions])[:-1]) if task.questions else []
    if task.kind == "cloze":
        items, own = _cloze(task, parts, hits)
    else:
        items, own = _choice(task, parts)
    return {"kind": task.kind, "questions": len(items), "accuracy": _mean(item["correct"] for item in items), **own,
            "baseline": _baseline(task), "truncated": sum(question.truncated for question in task.questions),
            "nonfinite": sum(not np.isfinite(part).all() for part in parts), "skipped": task.skipped, "rejected": task.rejected,
            "not_computed": None if items else _why_empty(task), "items": items}


def _choice(task: Task, parts: list[np.ndarray]) -> tuple[list[dict], dict]:
    items = [{"id": question.id, "correct": _wins(-losses, question.answer),
              "correct_norm": _wins(-losses / question.lengths, question.answer)}
             for question, losses in zip(task.questions, parts, strict=True)]
    return items, {"accuracy_norm": _mean(item["correct_norm"] for item in items)}


def _cloze(task: Task, parts: list[np.ndarray], hits: np.ndarray) -> tuple[list[dict], dict]:
    items, loss_sum, count = [], 0.0, 0
    for question, (loss,), hit in zip(task.questions, parts, hits, strict=True):
        counted, finite = question.rows[0].counted, bool(np.isfinite(loss))
        items.append({"id": question.id, "correct": finite and bool(hit == counted), "loss_sum": float(loss) if finite else None,
                      "tokens": counted})
        if finite:
            loss_sum, count = loss_sum + float(loss), count + counted
    return items, {"loss": loss_sum / count if count else None}


def _wins(values: np.ndarray, answer: int) -> bool:
    """Whether one value is greater than all others; never if it or another is NaN."""
    return bool((values[answer] > np.delete(values, answer)).all())


def _mean(values) -> float | None:
    values = list(values)
    return sum(values) / len(values) if values else None


def _baseline(task: Task) -> float | None:
    if task.kind == "choice":
        return _mean(1 / len(question.rows) for question in task.questions)
    targets = Counter(question.target for question in task.questions)
    return max(targets.values()) / len(task.questions) if targets else None


def _why_empty(task: Task) -> str:
    reasons = [f"{reason} ({len(ids)})" for reason, ids in task.skipped.items()]
    reasons += [f"{reason} ({count})" for reason, count in task.rejected.items()]
    return f"no question could be made: {'; '.join(reasons) or 'there is no text or item'}"
