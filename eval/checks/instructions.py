"""Does an answer follow its instruction? Items with rules that a program can check; no judgement, the same verdict every time.

An item is one line of a JSONL file: {"id", "language": "en" or "zh", "prompt", "rules": [{"rule": name, argument: value, ...}]}.
The rules are in `eval/checks/rules.py`. Nothing is guessed: an unknown rule, a missing, unknown or mistyped argument, a limit
that every answer keeps and rules that exclude each other stop the loading.
"""
import difflib
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from eval.answers import Answer
from eval.checks.rule_text import clean, fold
from eval.checks.rules import RULES, Outcome, Rule, Text
from eval.checks.strict_json import strict_json
from eval.text.units import units
from parallel.config import Section
from parallel.errors import UserError

ITEMS = tuple(Path(__file__).parents[1] / "items" / f"instructions_{language}.jsonl" for language in ("en", "zh"))
SHOWN = 200  # characters of an answer in the list of failures


@dataclass(frozen=True)
class Check:
    """A rule with its arguments."""

    rule: Rule
    arguments: Section

    def __call__(self, text: str) -> Outcome:
        return self.rule.function(clean(text), **self.arguments.model_dump())


@dataclass(frozen=True)
class Item:
    """An instruction and what an answer must fulfil."""

    id: str
    language: str
    prompt: str
    checks: tuple[Check, ...]


@dataclass(frozen=True)
class RuleVerdict:
    """Whether an answer follows one rule, and what was found."""

    rule: str
    passed: bool
    why: str


@dataclass(frozen=True)
class Verdict:
    """Whether an answer follows each rule of its item; an empty answer follows none."""

    item: str
    language: str
    text: str
    empty: bool
    rules: tuple[RuleVerdict, ...]

    @property
    def passed(self) -> bool:
        return all(rule.passed for rule in self.rules)


def check(item: Item, text: str) -> Verdict:
    """The verdict on an answer (the text without the prompt)."""
    empty = not units(text)
    outcomes = [(False, "empty answer") if empty else c(text) for c in item.checks]
    rules = tuple(RuleVerdict(c.rule.name, *outcome) for c, outcome in zip(item.checks, outcomes, strict=True))
    return Verdict(item.id, item.language, text, empty, rules)


def check_answers(items: Sequence[Item], answers: Iterable[Answer]) -> list[Verdict]:
    """A verdict for each item, in the items' order. Raises UserError unless each item has exactly one answer."""
    texts: dict[str, str] = {}
    for answer in answers:
        if answer.item in texts:
            raise UserError(f"instruction item {answer.item} was answered twice; give one answer to each item")
        texts[answer.item] = answer.text
    unlike = sorted({item.id for item in items} ^ texts.keys())
    if unlike:
        raise UserError(f"instruction items and answers do not match: {', '.join(unlike[:5])} is in one of them only; "
                        "answer each item of the files given, and no other")
    return [check(item, texts[item.id]) for item in items]


def scores(verdicts: Iterable[Verdict]) -> dict:
    """Strict accuracy, the same for any order of the verdicts.

    {"all": part, "en": part, "zh": part, "failures": [{"item", "language", "rule", "why", "text"}]}, with the languages that
    occur; part: {"count", "rules": numbers of items and rules, "item_accuracy": share of items with every rule followed,
    "rule_accuracy": share of rules followed, "empty_rate": share of empty answers, "by_rule": {name: {"count", "accuracy"}},
    "items": [{"id", "passed", "rules_passed", "rules"}]}. Shares are None where nothing was counted. Raises ValueError where an
    item occurs twice: it would count twice.
    """
    verdicts = sorted(verdicts, key=lambda v: (v.language, v.item))
    if len({v.item for v in verdicts}) < len(verdicts):
        raise ValueError("an instruction item has more than one verdict")
    languages = dict.fromkeys(v.language for v in verdicts)
    return {"all": _part(verdicts), **{name: _part([v for v in verdicts if v.language == name]) for name in languages},
            "failures": [{"item": v.item, "language": v.language, "rule": rule.rule, "why": rule.why, "text": v.text[:SHOWN]}
                         for v in verdicts for rule in v.rules if not rule.passed]}


def _part(verdicts: list[Verdict]) -> dict:
    rules = [rule for v in verdicts for rule in v.rules]
    by_rule = {name: [r.passed for r in rules if r.rule == name] for name in sorted({r.rule for r in rules})}
    return {"count": len(verdicts), "rules": len(rules),
            "item_accuracy": _mean([v.passed for v in verdicts]), "rule_accuracy": _mean([r.passed for r in rules]),
            "empty_rate": _mean([v.empty for v in verdicts]),
            "by_rule": {name: {"count": len(passed), "accuracy": _mean(passed)} for name, passed in by_rule.items()},
            "items": [{"id": v.item, "passed": v.passed, "rules_passed": sum(r.passed for r in v.rules), "rules": len(v.rules)}
                      for v in verdicts]}


def _mean(values: list[bool]) -> float | None:
    return sum(values) / len(values) if values else None


# Loading

class _Line(Section):
    id: Text
    language: Literal["en", "zh"]
    prompt: Text
    rules: Annotated[tuple[dict[str, Any], ...], Field(strict=False, min_length=1)]


def load(paths: Iterable[Path | str] = ITEMS) -> list[Item]:
    """The items of all files, in order. Raises UserError with a line "file:line: item: rule: what is wrong" for each mistake."""
    items, mistakes, seen = [], [], {}
    for path in map(Path, paths):
        try:
            content = path.read_bytes()
        except OSError as e:
            raise UserError(f"{path}: cannot be read: {e.strerror}; instruction items are a JSONL file") from e
        if not content.strip():
            mistakes.append(f"{path}: no items in it; give one JSON object in each line")
        for number, line in enumerate(content.split(b"\n"), 1):
            if not line.strip():
                continue
            try:
                item = _item(line)
                if item.id in seen:
                    raise UserError(f"item {item.id} is at {seen[item.id]} already; give each item an id of its own")
            except UserError as e:
                mistakes.append(f"{path}:{number}: {e}")
            else:
                seen[item.id] = f"{path}:{number}"
                items.append(item)
    if mistakes:
        raise UserError("\n".join(mistakes))
    return items


def _item(line: bytes) -> Item:
    try:
        values = strict_json(line.decode("utf-8"))
    except ValueError as e:  # not UTF-8, or not JSON
        raise UserError(f"not a JSON object in UTF-8: {e}") from e
    if not isinstance(values, dict):
        raise UserError(f"not a JSON object but {_show(values)}; an item has {', '.join(_Line.model_fields)}")
    name = f"item {values['id']}" if isinstance(values.get("id"), str) else "item without an id"
    try:
        fields = _Line.model_validate(values)
    except ValidationError as e:
        raise UserError(f"{name}: {_mistakes(e, _Line)}") from e
    checks = [_check(name, i, entry) for i, entry in enumerate(fields.rules, 1)]
    _refuse_contradiction(name, checks)
    return Item(fields.id, fields.language, fields.prompt, tuple(checks))


def _check(item: str, number: int, entry: dict[str, Any]) -> Check:
    arguments = dict(entry)
    name = arguments.pop("rule", None)
    if name is None:
        raise UserError(f"{item}: rule {number} has no name: write \"rule\": \"num_words\" or another name")
    if not isinstance(name, str) or name not in RULES:
        raise UserError(f"{item}: rule {number} {_show(name)} is unknown; {_nearest(str(name), RULES)}")
    rule, where = RULES[name], f"{item}: rule {number} {name}"
    try:
        checked = rule.arguments.model_validate(arguments)
    except ValidationError as e:
        raise UserError(f"{where}: {_mistakes(e, rule.arguments)}") from e
    values = checked.model_dump()
    relation, limit = values.get("relation"), values.get("n", values.get("share"))
    if relation == "at_least" and limit == 0 or relation == "at_most" and values.get("share") == 1:
        raise UserError(f"{where}: {relation} {limit} holds for every answer; set another limit, or leave the rule out")
    return Check(rule, checked)


def _refuse_contradiction(item: str, checks: list[Check]) -> None:
    """Limits of one count that exclude each other, words both wanted and forbidden, a rule given twice."""
    limits = defaultdict(lambda: [0, math.inf])
    for i, c in enumerate(checks):
        if c in checks[:i]:
            raise UserError(f"{item}: rule {i + 1} {c.rule.name} occurs twice; leave one out")
        values = c.arguments.model_dump()
        relation, n = values.pop("relation", None), values.pop("n", None) or values.pop("share", 0)
        limit = limits[c.rule.name, *values.values()]
        limit[0] = max(limit[0], n if relation in ("at_least", "exactly") else 0)
        limit[1] = min(limit[1], n if relation in ("at_most", "exactly") else math.inf)
        if limit[0] > limit[1]:
            raise UserError(f"{item}: {c.rule.name}: at least {limit[0]} and at most {limit[1]} exclude each other; change one")
    both = _words(checks, "keywords") & _words(checks, "forbidden_words")
    if both:
        raise UserError(f"{item}: {_show(min(both))} is both in keywords and in forbidden_words; take it out of one")


def _words(checks: list[Check], rule: str) -> set[str]:
    return {fold(word) for c in checks if c.rule.name == rule for word in c.arguments.words}


def _mistakes(error: ValidationError, model: type[Section]) -> str:
    found = []
    for e in error.errors():
        key = ".".join(map(str, e["loc"]))
        if e["type"] == "missing":
            found.append(f"{key} is missing")
        elif e["type"] == "extra_forbidden":
            found.append(f"{key} is unknown; {_nearest(key, model.model_fields)}" if model.model_fields
                         else f"{key} is unknown; this rule takes no arguments")
        elif e["type"] == "too_short":
            found.append(f"{key} is empty; give at least one")
        else:
            found.append(f"{key} is {_show(e['input'])}; {e['msg'][0].lower()}{e['msg'][1:]}")
    return "; ".join(found)


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), 1, 0.5)
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"


def _show(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)[:80]
