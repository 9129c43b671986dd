"""The prompts of the safety checks: our own (JSONL, one item a line) and the shipped injection prompts (a JSON array).

A line of ours: {"id", "kind", "prompt"} and, by its kind:

- harmful (a safe model refuses or leads elsewhere), benign (sounds dangerous, is harmless): "answer_words", two or more words
  that only an answer which helps would use;
- secret: "secret", and "system", the line that plants it.

The language is in the file's name: safety_en.jsonl, safety_zh.jsonl. An injection is {"id", "prompt", "category", "severity"}, in
English; eval.checks.injections says what is planted and how it is judged.
"""
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from eval.checks.injections import CATEGORIES, PLANTED, SYSTEM
from eval.checks.leak import leaked, letters, long_enough
from eval.checks.plain import plain
from eval.checks.refusal import ANSWER_WORDS_NEEDED, contains
from parallel.errors import UserError

Kind = Literal["harmful", "benign", "secret", "injection"]
Language = Literal["en", "zh"]
ITEMS = Path(__file__).parents[1] / "items"
SHIPPED = (ITEMS / "safety_en.jsonl", ITEMS / "safety_zh.jsonl", ITEMS / "jailbreak_corpus_mini.json")

OWN_KEYS = {"harmful": {"answer_words"}, "benign": {"answer_words"}, "secret": {"system", "secret"}}


@dataclass(frozen=True)
class Item:
    """One prompt. `secret` and `system` are "" where nothing is planted, `category` is "" but for injections."""

    id: str
    kind: Kind
    language: Language
    prompt: str
    system: str = ""
    secret: str = ""
    answer_words: tuple[str, ...] = ()
    category: str = ""

    @property
    def given(self) -> str:
        """What a model is given to go on from: the planted line, if any, and the prompt, each in lines of its own."""
        return f"{self.system}\n{self.prompt}" if self.system else self.prompt


def load(paths: Iterable[str | Path] = SHIPPED) -> list[Item]:
    """The items of JSONL files of ours and of JSON files of injections, in their order.

    Raises:
        UserError: a file cannot be read or holds no item; a line is broken (named file:line); two items have one id.
    """
    items, seen = [], {}
    for path in map(Path, paths):
        count = len(items)
        for line, row in _rows(path):
            where = f"{path}:{line}"
            item = _injection(row, where) if path.suffix == ".json" else _own(row, where, path)
            if item.id in seen:
                raise UserError(f"{where}: the id {item.id!r} is taken by {seen[item.id]}; give each item an id of its own")
            seen[item.id] = where
            items.append(item)
        if len(items) == count:
            raise UserError(f"{path}: holds no item; write at least one or leave the file out")
    return items


def _rows(path: Path) -> Iterator[tuple[int, Any]]:
    """(line, value) for each line of a JSONL file that is not blank, or each element of a JSON array."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[:error.start].count(b"\n") + 1
        raise UserError(f"{path}:{line}: is not UTF-8 (byte {error.start}); save the file as UTF-8") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); give a .jsonl or .json file of safety items") from error
    if path.suffix == ".json":
        yield from _elements(path, text)
        return
    for line, written in enumerate(text.split("\n"), 1):
        if written.strip():
            yield line, _parsed(path, line, written)


def _parsed(path: Path, line: int, text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_once)
    except ValueError as error:
        raise UserError(f"{path}:{line}: is not JSON ({_reason(error)}); write one object a line") from error


def _elements(path: Path, text: str) -> Iterator[tuple[int, Any]]:
    """The elements of an array one by one, as a JSON parser gives no lines for what it has read."""
    decoder, at = json.JSONDecoder(object_pairs_hook=_once), re.match(r"\s*\[?\s*", text).end()
    if not text.lstrip().startswith("["):
        raise UserError(f"{path}:1: is not a JSON array; write [{{...}}, ...]")
    while text[at:at + 1] != "]":
        line = text.count("\n", 0, at) + 1
        try:
            row, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            line = getattr(error, "lineno", line)
            raise UserError(f"{path}:{line}: is not JSON ({_reason(error)}); write an array of objects") from error
        yield line, row
        between = re.compile(r"\s*(?:,\s*(?=[^\s\]])|(?=\]))").match(text, end)
        if not between:
            raise UserError(f"{path}:{text.count(chr(10), 0, end) + 1}: is not JSON (no comma or ] after an element)")
        at = between.end()
    if text[at + 1:].strip():
        raise UserError(f"{path}:{text.count(chr(10), 0, at) + 1}: is not JSON (text after the array's end)")


def _once(pairs: list[tuple[str, Any]]) -> dict:
    row = dict(pairs)
    if len(row) < len(pairs):
        raise ValueError("a key is there twice")
    return row


def _reason(error: ValueError | RecursionError) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)


def _keys(row: Any, keys: set[str], where: str) -> None:
    """Refuse what is no object, lacks one of the keys or has others, or has an empty text."""
    if not isinstance(row, dict):
        raise UserError(f"{where}: is no JSON object; an item is {{\"id\": ..., \"kind\": ..., \"prompt\": ...}}")
    if row.keys() != keys:
        odd = [f"{key!r} is {'missing' if key in keys else 'unknown'}" for key in sorted(keys ^ row.keys())]
        raise UserError(f"{where}: {', '.join(odd)}; such an item has the keys {', '.join(sorted(keys))}")
    for key in sorted(keys - {"answer_words"}):
        if not isinstance(row[key], str) or not row[key].strip():
            raise UserError(f"{where}: {key!r} is {row[key]!r}; it must be a text that is not empty")


def _own(row: Any, where: str, path: Path) -> Item:
    kind = row.get("kind") if isinstance(row, dict) else None
    if isinstance(row, dict) and (not isinstance(kind, str) or kind not in OWN_KEYS):
        raise UserError(f"{where}: the kind {kind!r} is unknown; it must be one of {', '.join(OWN_KEYS)}")
    _keys(row, {"id", "kind", "prompt"} | OWN_KEYS.get(kind, set()), where)
    language = path.stem.rpartition("_")[2]
    if language not in get_args(Language):
        raise UserError(f"{path}: its name does not end on _en or _zh, the language of its items; rename it, as safety_en.jsonl")
    if kind == "secret":
        _check_secret(row, where)
        return Item(row["id"], kind, language, row["prompt"], row["system"], row["secret"])
    _check_answer_words(row, where)
    return Item(row["id"], kind, language, row["prompt"], answer_words=tuple(row["answer_words"]))


def _check_secret(row: dict, where: str) -> None:
    secret = row["secret"]
    if not long_enough(secret):
        raise UserError(f"{where}: the secret {secret!r} is so short that it is found by chance; "
                        "give it at least 8 letters or digits, or 4 of another script")
    if letters(secret) not in letters(row["system"]):
        raise UserError(f"{where}: the secret {secret!r} is not in the system line, which must plant it")
    if leaked(secret, row["prompt"]):
        raise UserError(f"{where}: the secret {secret!r} is in the prompt, so that repeating it would be a leak; leave it out")


def _check_answer_words(row: dict, where: str) -> None:
    words = row["answer_words"]
    if not isinstance(words, list) or not all(isinstance(word, str) and plain(word) for word in words):
        raise UserError(f"{where}: 'answer_words' is {words!r}; it must be a list of texts that are not empty")
    if len(set(map(plain, words))) < ANSWER_WORDS_NEEDED or len(set(map(plain, words))) < len(words):
        raise UserError(f"{where}: 'answer_words' is {words!r}; it must hold at least {ANSWER_WORDS_NEEDED} words, each once")
    if repeated := [word for word in words if contains(plain(row["prompt"]), word)]:
        raise UserError(f"{where}: the answer word {repeated[0]!r} is in the prompt, so that repeating it would be an answer; "
                        "leave it out")


def _injection(row: Any, where: str) -> Item:
    _keys(row, {"id", "prompt", "category", "severity"}, where)
    if (category := row["category"]) not in CATEGORIES:
        raise UserError(f"{where}: the category {category!r} is unknown, so that nothing would judge it; "
                        f"it must be one of {', '.join(CATEGORIES)}")
    attack = CATEGORIES[category]
    system, secret = (SYSTEM, PLANTED) if attack.plants else ("", "")
    return Item(row["id"], "injection", "en", row["prompt"], system, secret, attack.answer_words, category)
