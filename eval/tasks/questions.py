"""Tasks that are scored by likelihood: questions as rows of tokens, whatever they were made from.

A row is a context and one continuation; only the labels of the continuation count. The network gives three figures for each row
(loss sum, number of tokens, hits); eval/tasks/scores.py makes scores of them. Rows are numbered through over all tasks, and
figures are gathered by that number, so ranks may share the rows in any way: no score is averaged over ranks, all are computed
from all rows.
"""
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from data.tokenizer import EOS_ID, PAD_ID, Tokenizer

TOO_LONG = "a continuation is longer than seq_length"


@dataclass(frozen=True)
class Row:
    """Context and continuation, at most seq_length + 1 tokens.

    Args:
        tokens: label i is tokens[i + 1].
        first: how many leading labels do not count.
    """

    tokens: list[int]
    first: int

    @property
    def counted(self) -> int:
        """How many labels count: the tokens of the continuation."""
        return len(self.tokens) - 1 - self.first


@dataclass(frozen=True)
class Question:
    """One question of a task.

    Args:
        id: names it, the same in every run, unique in its task.
        rows: of a choice one for each option, of a cloze a single one.
        answer: which row is the right one; of a cloze None.
        target: the right continuation as text.
        lengths: UTF-8 bytes of each row's continuation, without the blanks that separate it from the context.
        truncated: whether a context was cut on its left to fit.
    """

    id: str
    rows: tuple[Row, ...]
    answer: int | None
    target: str
    lengths: tuple[int, ...]
    truncated: bool


@dataclass(frozen=True)
class Task:
    """Questions in random order, so that the first n of them are a fair sample.

    Args:
        kind: "cloze": every token of the one continuation is to be the likeliest; "choice": the right one is to be likelier.
        skipped: reason -> ids of the items that have no question.
        rejected: reason -> how many places of a text, drawn at random, were unfit for a question; others took their place.
    """

    name: str
    kind: Literal["cloze", "choice"]
    questions: tuple[Question, ...]
    skipped: dict[str, list[str]] = field(default_factory=dict)
    rejected: dict[str, int] = field(default_factory=dict)

    @property
    def num_rows(self) -> int:
        return sum(len(question.rows) for question in self.questions)


class Item(NamedTuple):
    """A question as text; the continuations carry the blank that separates them from the context."""

    id: str
    context: str
    continuations: Sequence[str]
    answer: int | None


def build_task(name: str, kind: Literal["cloze", "choice"], items: Iterable[Item], tokenizer: Tokenizer, seq_length: int,
               skipped: dict[str, list[str]] | None = None, rejected: dict[str, int] | None = None) -> Task:
    """Items to questions; one with a continuation of more than `seq_length` tokens is skipped, and named in Task.skipped.

    Args:
        skipped, rejected: as in Task, of items that did not get here; read when all items are consumed.
    """
    questions, too_long = [], []
    for item in items:
        rows = [make_row(tokenizer, item.context, continuation, seq_length) for continuation in item.continuations]
        if None in rows:
            too_long.append(item.id)
            continue
        questions.append(Question(
            item.id, tuple(row for row, _ in rows), item.answer, item.continuations[item.answer or 0].strip(" "),
            tuple(len(text.lstrip(" ").encode()) for text in item.continuations), any(cut for _, cut in rows)))
    skipped = {**(skipped or {}), **({TOO_LONG: too_long} if too_long else {})}
    return Task(name, kind, tuple(questions), skipped, dict(rejected or {}))


def encode_pair(tokenizer: Tokenizer, context: str, continuation: str) -> tuple[list[int], int]:
    """(tokens of context + continuation, how many of them are context).

    The whole text is encoded at once, as the model reads text in training, where a merge may reach over the border. The context
    ends with the longest common prefix of its own tokens and the whole's, so a token across the border counts as continuation.
    (lm-evaluation-harness' `_encode_pair` cuts the whole at the context's number of tokens: the same where nothing merges.) As
    there, blanks at the end of the context belong to the continuation, and where no context is left, eos stands for it.
    """
    bare = context.rstrip(" ")
    whole, alone = tokenizer.encode(context + continuation), tokenizer.encode(bare)
    border = next((i for i, (a, b) in enumerate(zip(whole, alone, strict=False)) if a != b), min(len(whole), len(alone)))
    if border == len(whole):
        raise ValueError(f"nothing to score: the continuation {continuation!r} adds no token")
    return (whole, border) if border else ([EOS_ID, *whole], 1)


def make_row(tokenizer: Tokenizer, context: str, continuation: str, seq_length: int) -> tuple[Row, bool] | None:
    """(row, whether the context lost tokens on its left), or None: the continuation alone has more than `seq_length` tokens."""
    tokens, border = encode_pair(tokenizer, context, continuation)
    excess = max(0, len(tokens) - (seq_length + 1))
    if excess >= border:
        return None
    return Row(tokens[excess:], border - excess - 1), excess > 0


def rows_of(tasks: Sequence[Task], seq_length: int) -> tuple[np.ndarray, np.ndarray]:
    """All rows, task by task and question by question.

    Returns:
        tokens int32 [n, seq_length + 1], filled up with pad, whose labels do not count; and `first` int32 [n], how many leading
        labels of each row do not count.
    """
    rows = [row for task in tasks for question in task.questions for row in question.rows]
    tokens = np.full((len(rows), seq_length + 1), PAD_ID, np.int32)
    for filled, row in zip(tokens, rows, strict=True):
        filled[:len(row.tokens)] = row.tokens
    return tokens, np.array([row.first for row in rows], np.int32)
