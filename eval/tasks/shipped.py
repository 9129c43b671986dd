"""Tasks made of item files (JSON lines): multiple-choice questions of MMLU, choices and exact answers of BIG-Bench Hard.

Prompts are zero-shot, in the form of lm-evaluation-harness' mmlu_continuation and bbh_zeroshot, without their description of the
subject, which would push the question out of a short context. MMLU's options are continuations only, not part of the prompt.
"""
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from data.tokenizer import Tokenizer
from eval.tasks.questions import Item, Task, build_task
from parallel.errors import UserError

ITEMS = Path(__file__).parents[1] / "items"
MMLU_FILE, BBH_FILE = ITEMS / "mmlu_fewshot_mc.jsonl", ITEMS / "bbh_fewshot.jsonl"
# Answers that are a choice even where the question does not list them.
PAIRS = (("True", "False"), ("Yes", "No"), ("yes", "no"))
GENERATION = "left to bbh_exact: the answer is none of a few given ones"

Text = Annotated[str, StringConstraints(pattern=r"\S")]


class _Item(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class MmluItem(_Item):
    """A question with its options; `answer` is the number of the right one, from 0."""

    subject: Text
    question: Text
    choices: list[Text] = Field(min_length=2)
    answer: int = Field(ge=0)

    @model_validator(mode="after")
    def _answer_is_a_choice(self) -> "MmluItem":
        if self.answer >= len(self.choices):
            raise ValueError(f"answer {self.answer} is none of the {len(self.choices)} choices, numbered from 0")
        if self.choices.count(self.choices[self.answer]) > 1:
            raise ValueError(f"the right choice {self.choices[self.answer]!r} is there twice")
        return self


class BbhItem(_Item):
    """A question with the text of its answer."""

    task: Text
    input: Text
    answer: Text

    @model_validator(mode="after")
    def _answer_is_an_option(self) -> "BbhItem":
        if (listed := self.listed_options()) and self.answer not in listed:
            raise ValueError(f"answer {self.answer!r} is none of the options {listed}")
        return self

    def listed_options(self) -> list[str]:
        """The options that the question lists: "(A)", "(B)"... or the words behind dashes; none: it lists none."""
        _, _, tail = self.input.partition("Options:\n")
        return re.findall(r"^\([A-Z]\)(?= )", tail, re.M) or re.findall(r"^- (.*\S)", tail, re.M)


ItemType = TypeVar("ItemType", bound=_Item)


def read_items(path: Path, item_type: type[ItemType]) -> Iterator[tuple[int, ItemType]]:
    """(line number from 1, item) of each line of a file.

    Raises:
        UserError: the file cannot be read, or a line is no such item: "file:line: what is wrong".
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    for number, line in enumerate(lines, 1):
        try:
            item = item_type.model_validate(json.loads(line.decode(), object_pairs_hook=_without_duplicates))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            problem = f"{where}: {first['msg']}" if where else first["msg"]
            raise UserError(f"{path}:{number}: {problem}; fields are {', '.join(item_type.model_fields)}") from error
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}:{number}: not a JSON object in UTF-8 on one line ({error})") from error
        yield number, item


def _without_duplicates(pairs: list[tuple]) -> dict:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a field is given twice")
    return fields


def mmlu(tokenizer: Tokenizer, seq_length: int, path: Path = MMLU_FILE) -> Task:
    """Questions with the text of each option as continuation.

    Raises:
        UserError: a broken line.
    """
    items = [Item(f"{item.subject}:{line}", f"Question: {item.question.strip()}\nAnswer:",
                  [f" {choice}" for choice in item.choices], item.answer) for line, item in read_items(path, MmluItem)]
    return build_task("mmlu", "choice", _mixed(items), tokenizer, seq_length)


def bbh(tokenizer: Tokenizer, seq_length: int, path: Path = BBH_FILE) -> Task:
    """The likelihood of the right answer among the options that a question lists, or that the answers of its task are a pair of.

    Items of other tasks (numbers, lists of words) are those of `bbh_exact` alone: Task.skipped names them.

    Raises:
        UserError: a broken line.
    """
    lines = list(read_items(path, BbhItem))
    answers: dict[str, set[str]] = {}
    for _, item in lines:
        answers.setdefault(item.task, set()).add(item.answer)
    items, skipped = [], {}
    for line, item in lines:
        options = item.listed_options() or next((list(pair) for pair in PAIRS if answers[item.task] <= set(pair)), None)
        if options:
            items.append(Item(f"{item.task}:{line}", f"Q: {item.input}\nA:", [f" {option}" for option in options],
                              options.index(item.answer)))
        else:
            skipped.setdefault(GENERATION, []).append(f"{item.task}:{line}")
    return build_task("bbh", "choice", _mixed(items), tokenizer, seq_length, skipped)


def bbh_exact(tokenizer: Tokenizer, seq_length: int, path: Path = BBH_FILE) -> Task:
    """Whether the likeliest continuation of each question, token by token, begins with its answer: exact match, greedy decoding.

    Raises:
        UserError: a broken line.
    """
    items = [Item(f"{item.task}:{line}", f"Q: {item.input}\nA:", [f" {item.answer}"], None)
             for line, item in read_items(path, BbhItem)]
    return build_task("bbh_exact", "cloze", _mixed(items), tokenizer, seq_length)


def _mixed(items: list[Item]) -> list[Item]:
    """In an order that mixes the subjects, always the same."""
    return [items[i] for i in np.random.RandomState(0).permutation(len(items))]
