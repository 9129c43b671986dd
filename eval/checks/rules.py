"""Rules that an answer follows or not, by its text alone: pure functions (answer, arguments) -> (passed, why).

A rule's keyword arguments are its argument set: `arguments` of each entry of RULES checks them strictly ("10" is no number).
Answers come in cleaned (`rule_text.clean`) and not empty; what counts as a word, a sentence or a list is told in `rule_text`.
Comparisons fold both sides (`rule_text.fold`): width, quotes, case and blanks make no difference, words are whole.
"""
import inspect
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, create_model

from eval.checks import rule_text
from eval.checks.rule_text import fold
from eval.checks.strict_json import strict_json
from eval.text.units import units
from parallel.config import Section

Outcome = tuple[bool, str]


def _not_blank(value: str) -> str:
    if not units(value):
        raise ValueError("nothing in it can be seen")
    return value


def _not_zero(value: int) -> int:
    if not value:
        raise ValueError("1 is the first, -1 the last")
    return value


Text = Annotated[str, AfterValidator(_not_blank)]
Texts = Annotated[tuple[Text, ...], Field(strict=False, min_length=1)]
Relation = Literal["at_least", "at_most", "exactly"]
Count = Annotated[int, Field(ge=0)]
NotZero = Annotated[int, AfterValidator(_not_zero)]
Separator = Literal["lines", "sentences", "commas"]


@dataclass(frozen=True)
class Rule:
    """A rule's name, the class that checks its arguments, and the function."""

    name: str
    arguments: type[Section]
    function: Callable[..., Outcome]


RULES: dict[str, Rule] = {}


def rule(function: Callable[..., Outcome]) -> Callable[..., Outcome]:
    """Enter a function in RULES; its keyword parameters, all annotated, become the argument set."""
    parameters = list(inspect.signature(function).parameters.values())[1:]
    fields: dict[str, Any] = {p.name: (p.annotation, ... if p.default is p.empty else p.default) for p in parameters}
    RULES[function.__name__] = Rule(function.__name__, create_model(function.__name__, __base__=Section, **fields), function)
    return function


def _compare(found: int, what: str, relation: Relation, n: int) -> Outcome:
    passed = {"at_least": found >= n, "at_most": found <= n, "exactly": found == n}[relation]
    return passed, f"{found} {what}, wanted {relation.replace('_', ' ')} {n}"


def _share(found: float, what: str, relation: str, share: float) -> Outcome:
    passed = found >= share if relation == "at_least" else found <= share
    return passed, f"{found:.1%} {what}, wanted {relation.replace('_', ' ')} {share:.1%}"


def _quoted(texts) -> str:
    return ", ".join(f'"{t}"' for t in texts)


# Counts: each names its unit. Chinese has no word count here: num_han counts its characters.

@rule
def num_words(answer: str, *, relation: Relation, n: Count) -> Outcome:
    return _compare(len(rule_text.words(answer)), "words", relation, n)


@rule
def num_han(answer: str, *, relation: Relation, n: Count) -> Outcome:
    return _compare(len(rule_text.han(answer)), "Han characters", relation, n)


@rule
def num_characters(answer: str, *, relation: Relation, n: Count) -> Outcome:
    """Unicode code points of the NFC text; spaces and line ends inside count, those at either end do not."""
    return _compare(len(answer), "characters", relation, n)


@rule
def num_sentences(answer: str, *, relation: Relation, n: Count) -> Outcome:
    return _compare(len(rule_text.sentences(answer)), "sentences", relation, n)


@rule
def num_lines(answer: str, *, relation: Relation, n: Count) -> Outcome:
    """Lines that are not blank."""
    return _compare(len(rule_text.lines(answer)), "lines", relation, n)


@rule
def num_paragraphs(answer: str, *, relation: Relation, n: Count) -> Outcome:
    return _compare(len(rule_text.paragraphs(answer)), "paragraphs", relation, n)


@rule
def num_numbers(answer: str, *, relation: Relation, n: Count) -> Outcome:
    """Numbers in digits."""
    return _compare(len(rule_text.numbers(answer)), "numbers in digits", relation, n)


@rule
def num_capital_words(answer: str, *, relation: Relation, n: Count) -> Outcome:
    """Words of two letters or more, all of them capitals."""
    capital = [word for word in rule_text.words(answer) if word.isupper() and sum(map(str.isalpha, word)) > 1]
    return _compare(len(capital), "words in capitals", relation, n)


@rule
def num_items(answer: str, *, separator: Separator, relation: Relation, n: Count) -> Outcome:
    return _compare(len(rule_text.items(answer, separator)), f"items parted by {separator}", relation, n)


@rule
def num_parts(answer: str, *, separator: Text, relation: Relation, n: Count) -> Outcome:
    """Parts that are not blank, between separators such as ***."""
    parts = [part for part in rule_text.width(answer).split(rule_text.width(separator)) if part.strip()]
    return _compare(len(parts), f'parts between "{separator}"', relation, n)


@rule
def each_line(answer: str, *, unit: Literal["words", "han", "characters"], relation: Relation, n: Count) -> Outcome:
    """Every line that is not blank has this many."""
    cut = {"words": rule_text.words, "han": rule_text.han, "characters": list}[unit]
    outcomes = [_compare(len(cut(line)), f"{unit} in line {i}", relation, n) for i, line in enumerate(rule_text.lines(answer), 1)]
    return next((o for o in outcomes if not o[0]), outcomes[-1])


# Words

@rule
def keywords(answer: str, *, words: Texts) -> Outcome:
    """All of them occur."""
    missing = [word for word in words if not rule_text.occurrences(word, answer)]
    return not missing, f"missing: {_quoted(missing)}" if missing else f"all there: {_quoted(words)}"


@rule
def any_keyword(answer: str, *, words: Texts) -> Outcome:
    """At least one of them occurs."""
    found = [word for word in words if rule_text.occurrences(word, answer)]
    return bool(found), f"found: {_quoted(found)}" if found else f"none of {_quoted(words)}"


@rule
def keyword_count(answer: str, *, word: Text, relation: Relation, n: Count) -> Outcome:
    return _compare(len(rule_text.occurrences(word, answer)), f'times "{word}"', relation, n)


@rule
def forbidden_words(answer: str, *, words: Texts) -> Outcome:
    found = [word for word in words if rule_text.occurrences(word, answer)]
    return not found, f"forbidden: {_quoted(found)}" if found else f"none of {_quoted(words)}"


@rule
def character_count(answer: str, *, character: Annotated[Text, Field(max_length=1)], relation: Relation, n: Count) -> Outcome:
    """How often a letter or mark occurs, capitals and full-width forms included."""
    return _compare(fold(answer).count(fold(character)), f'times "{character}"', relation, n)


@rule
def no_commas(answer: str) -> Outcome:
    """Neither , nor full-width ，; the Chinese enumeration mark 、 is no comma."""
    found = rule_text.width(answer).count(",")
    return not found, f"{found} commas, wanted none"


# Format

def _json_answer(answer: str) -> Any:
    """The whole answer is JSON, or one code block of it."""
    fenced = re.fullmatch(r"```(?:json|JSON)?\s*\n(.*?)\n?\s*```", answer, re.DOTALL)
    return strict_json(fenced[1] if fenced else answer)


@rule
def json_object(answer: str, *, keys: Texts) -> Outcome:
    """The answer is one JSON object, with at least these keys (compared exactly); nothing around it but a code block's fence."""
    try:
        value = _json_answer(answer)
    except ValueError as e:
        return False, f"not JSON: {e}"
    if not isinstance(value, dict):
        return False, f"JSON, but no object: {type(value).__name__}"
    missing = [key for key in keys if key not in value]
    return not missing, f"missing keys: {_quoted(missing)}" if missing else "a JSON object with all keys"


@rule
def json_array(answer: str, *, relation: Relation, n: Count, of: Literal["any", "text", "number", "object"] = "any") -> Outcome:
    """The answer is one JSON array with so many elements, all of one kind."""
    try:
        value = _json_answer(answer)
    except ValueError as e:
        return False, f"not JSON: {e}"
    if not isinstance(value, list):
        return False, f"JSON, but no array: {type(value).__name__}"
    kind = {"any": object, "text": str, "number": (int, float), "object": dict}[of]
    wrong = [x for x in value if not isinstance(x, kind) or of == "number" and isinstance(x, bool)]
    return (False, f"not {of}: {json.dumps(wrong[0], ensure_ascii=False)}") if wrong else \
        _compare(len(value), "elements", relation, n)


@rule
def numbered_list(answer: str, *, relation: Relation, n: Count) -> Outcome:
    """Lines numbered 1, 2, 3 ... without a gap; other lines may stand between."""
    found = [number for number, _ in rule_text.numbered(answer)]
    if found != list(range(1, len(found) + 1)):
        return False, f"numbered {found}, wanted 1, 2, 3 ..."
    return _compare(len(found), "numbered items", relation, n)


@rule
def bullet_list(answer: str, *, relation: Relation, n: Count) -> Outcome:
    """Lines with a bullet; other lines may stand between."""
    return _compare(len(rule_text.bullets(answer)), "bullet points", relation, n)


@rule
def heading(answer: str, *, level: Annotated[int, Field(ge=1, le=6)], relation: Relation, n: Count) -> Outcome:
    """Markdown headings of one level: # is 1."""
    return _compare(rule_text.headings(answer).count(level), f"headings of level {level}", relation, n)


@rule
def enclosed(answer: str, *, left: Text, right: Text, relation: Relation, n: Count) -> Outcome:
    """Parts of a line enclosed in two marks, such as [placeholder], **bold**, 《title》."""
    begin, end = re.escape(rule_text.width(left)), re.escape(rule_text.width(right))
    found = re.findall(rf"{begin}(?!\s*{end})((?:(?!{begin}|{end}).)+){end}", rule_text.width(answer))
    return _compare(len(found), f"parts in {left} {right}", relation, n)


@rule
def upper_case(answer: str) -> Outcome:
    """Every letter that has two cases is a capital, and there is one."""
    small = [word for word in rule_text.words(answer) if word != word.upper()]
    return (False, f"not in capitals: {_quoted(small[:3])}") if small else (answer.isupper(), "letters in capitals only")


@rule
def lower_case(answer: str) -> Outcome:
    """Every letter that has two cases is small, and there is one."""
    capital = [word for word in rule_text.words(answer) if word != word.lower()]
    return (False, f"not in small letters: {_quoted(capital[:3])}") if capital else (answer.islower(), "small letters only")


@rule
def wrapped_in_quotes(answer: str) -> Outcome:
    """One pair of quotation marks, double or Chinese, around the whole answer."""
    pairs = {'"': '"', "＂": "＂", "“": "”", "「": "」", "『": "』", "«": "»"}
    left, right = answer[0], pairs.get(answer[0])
    if len(answer) < 3 or answer[-1] != right:
        return False, f"begins with {left} and ends with {answer[-1]}"
    depth = 0
    for c in answer[:-1]:
        depth += (c == left) - (c == right != left)
        if depth != 1 and (depth == 0 or left == right):
            return False, "the first quotation mark closes before the end"
    return depth == 1, "one pair of quotation marks around all"


@rule
def starts_with(answer: str, *, text: Text) -> Outcome:
    return rule_text.begins(answer, text), f'begins with "{answer[:40]}", wanted "{text}"'


@rule
def ends_with(answer: str, *, text: Text) -> Outcome:
    return rule_text.ends(answer, text), f'ends with "{answer[-40:]}", wanted "{text}"'


@rule
def paragraph_starts_with(answer: str, *, paragraph: NotZero, text: Text) -> Outcome:
    """Paragraph 1 is the first, -1 the last."""
    parts = rule_text.paragraphs(answer)
    index = paragraph - (paragraph > 0)
    if not -len(parts) <= index < len(parts):
        return False, f"{len(parts)} paragraphs, no number {paragraph}"
    return rule_text.begins(parts[index], text), f'paragraph {paragraph} begins with "{parts[index][:40]}", wanted "{text}"'


@rule
def one_of(answer: str, *, options: Texts) -> Outcome:
    """The whole answer is one of the options; quotation marks around it and a last full stop make no difference."""
    def bare(text):
        return fold(text).strip("\"'「」 ").rstrip(".。!").strip("\"'「」 ")
    return bare(answer) in map(bare, options), f'"{answer[:40]}", wanted one of {_quoted(options)}'


# Language

@rule
def script_share(answer: str, *, script: Literal["han", "latin"], relation: Literal["at_least", "at_most"],
                 share: Annotated[float, Field(ge=0, le=1)]) -> Outcome:
    """The share of a script in all letters; digits, marks and blanks do not count."""
    letters = [c for c in rule_text.width(answer) if c.isalpha()]
    if not letters:
        return False, "no letters"
    found = rule_text.han("".join(letters)) if script == "han" else [c for c in letters if "LATIN" in unicodedata.name(c, "")]
    return _share(len(found) / len(letters), f"{script} letters", relation, share)


# Order

@rule
def in_order(answer: str, *, texts: Annotated[Texts, Field(min_length=2)]) -> Outcome:
    """The texts occur, each after the one before."""
    position = 0
    for text in texts:
        found = next((m for m in rule_text.occurrences(text, answer) if m.start() >= position), None)
        if found is None:
            return False, f'"{text}" is missing or comes too early'
        position = found.end()
    return True, f"in order: {_quoted(texts)}"


@rule
def sorted_list(answer: str, *, separator: Separator, by: Literal["alphabetical", "numeric"],
                order: Literal["ascending", "descending"]) -> Outcome:
    """Two items or more in order. Alphabetical: Latin letters without accents; numeric: one number in each item."""
    items = rule_text.items(answer, separator)
    if len(items) < 2:
        return False, f"{len(items)} items, nothing to sort"
    keys = [_alphabetical(item) if by == "alphabetical" else _numeric(item) for item in items]
    bad = [item for item, key in zip(items, keys, strict=True) if key is None]
    if bad:
        return False, f'no {by} order for "{bad[0][:40]}"'
    wrong = [pair for pair, (a, b) in zip(pairwise(items), pairwise(keys), strict=True)
             if (a > b if order == "ascending" else a < b)]
    return not wrong, f'"{wrong[0][0][:40]}" before "{wrong[0][1][:40]}"' if wrong else f"{len(items)} items in {by} order"


def _alphabetical(item: str) -> str | None:
    plain = "".join(c for c in unicodedata.normalize("NFKD", fold(item)) if not unicodedata.combining(c))
    plain = plain.lstrip("\"'*_(")
    return plain if re.match(rule_text.LETTER, plain) else None


def _numeric(item: str) -> Decimal | None:
    found = rule_text.numbers(item)
    return Decimal(found[0]) if len(found) == 1 else None


@rule
def distinct_items(answer: str, *, separator: Separator) -> Outcome:
    """Two items or more, none twice."""
    items = rule_text.items(answer, separator)
    twice = [item for item, n in Counter(map(fold, items)).items() if n > 1]
    return len(items) > 1 and not twice, f"twice: {_quoted(twice)}" if twice else f"{len(items)} items"


@rule
def acrostic(answer: str, *, text: Text) -> Outcome:
    """The first letters or characters of the lines spell the text."""
    first = (re.search(r"[^\W_]", rule_text.unmarked(line)) for line in rule_text.lines(answer))
    found = "".join(m[0] for m in first if m)
    return fold(found) == fold(text).replace(" ", ""), f'the lines begin with "{found[:40]}", wanted "{text}"'
