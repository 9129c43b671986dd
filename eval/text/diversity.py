"""How varied generated text is: distinct n-grams, repetition, self-BLEU, lengths. All in the units of eval.text.units.

A score that does not exist (no n-gram of that order, no text) is None, never NaN and never a 0 that would be false. Means and
shares do not depend on the order of the texts, to the last digit.
"""
import math
from collections import Counter
from statistics import fmean, pstdev

import numpy as np

from eval.answers import Answer
from eval.text.units import UNIT, units

DISTINCT_ORDERS = (1, 2, 3)
REPETITION_ORDER = 4
UNITS_NEEDED = {**{f"distinct_{n}": n for n in DISTINCT_ORDERS}, f"repetition_{REPETITION_ORDER}": REPETITION_ORDER,
                "longest_repeat": 2, "longest_repeat_share": 2}


def ngrams(text: list[str], n: int) -> list[tuple[str, ...]]:
    """The n-grams of a text's units; none if it is shorter."""
    return [tuple(text[i:i + n]) for i in range(len(text) - n + 1)]


def distinct(grams: list) -> float | None:
    """distinct-n: the share of different n-grams among all (Li et al. 2016, arXiv 1510.03055). It falls as a text gets longer."""
    return len(set(grams)) / len(grams) if grams else None


def repetition(grams: list) -> float | None:
    """The share of n-grams that have occurred before in the text (seq-rep-n of Welleck et al. 2019, arXiv 1908.04319)."""
    return (len(grams) - len(set(grams))) / len(grams) if grams else None


def longest_repeat(text: list[str]) -> int | None:
    """Length in units of the longest stretch that occurs at two places; None for fewer than two units.

    The two may overlap, so that "a a a a" gives 3 and a text that is one loop nearly its own length.
    Windows of equal content get equal numbers, of 1, 2, 4 ... units as long as two are equal (Karp, Miller and Rosenberg 1972);
    two such windows that overlap make one of any length between. O(n log^2 n).
    """
    if len(text) < 2:
        return None
    numbers = {}
    windows = np.array([numbers.setdefault(unit, len(numbers)) for unit in text], np.int64)
    if len(numbers) == len(text):
        return 0
    size = 1
    while (doubled := _joined(windows, size)) is not None:
        windows, size = doubled, 2 * size
    length, more = size, size // 2
    while more:
        if _joined(windows, length + more - size) is not None:
            length += more
        more //= 2
    return length


def _joined(windows: np.ndarray, shift: int) -> np.ndarray | None:
    """The numbers, int64 [n - shift], of each window together with the one `shift` further on; None if all differ."""
    pairs = windows[:-shift] * (windows.max() + 1) + windows[shift:]
    different, numbers = np.unique(pairs, return_inverse=True)
    return numbers if len(different) < len(pairs) else None


def text_scores(text: list[str]) -> dict[str, float | None]:
    """Of one text: distinct_1/2/3, repetition_4, longest_repeat (units) and its share of the text's length."""
    longest = longest_repeat(text)
    return {**{f"distinct_{n}": distinct(ngrams(text, n)) for n in DISTINCT_ORDERS},
            f"repetition_{REPETITION_ORDER}": repetition(ngrams(text, REPETITION_ORDER)),
            "longest_repeat": longest, "longest_repeat_share": None if longest is None else longest / len(text)}


def bleu(hypothesis: list[str], references: list[list[str]], max_order: int = 4) -> float:
    """Sentence BLEU of units, in [0, 1] (Papineni et al. 2002, aclanthology.org/P02-1040).

    Not smoothed: an order without a match makes it 0. Orders that the hypothesis is too short for are left out of the geometric
    mean (sacrebleu's smooth_method "none" with effective_order). An empty hypothesis scores 0.

    Raises:
        ValueError: there is no reference.
    """
    if not references:
        raise ValueError("BLEU needs at least one reference")
    matches = []
    for n in range(1, min(max_order, len(hypothesis)) + 1):
        limit = Counter()
        for reference in references:
            limit |= Counter(ngrams(reference, n))  # the most that any one reference has
        matches.append((Counter(ngrams(hypothesis, n)) & limit).total())
    return _bleu(matches, len(hypothesis), [len(r) for r in references])


def self_bleu(texts: list[list[str]], max_order: int = 4) -> float | None:
    """Mean over the texts of the BLEU of each against all others (Zhu et al. 2018, arXiv 1802.01886): 1 if all are the same.

    Args:
        texts: units of non-empty texts. None for fewer than two.
    """
    if len(texts) < 2:
        return None
    matches = [[] for _ in texts]
    for n in range(1, max_order + 1):
        counts = [Counter(ngrams(text, n)) for text in texts]
        most, second = _two_largest(counts)
        for own, found in zip(counts, matches, strict=True):
            if own:  # what one text has most of is limited by the next among the others
                found.append(sum(second[g] if c == most[g] else c for g, c in own.items()))
    lengths = [len(text) for text in texts]
    return fmean(_bleu(found, lengths[i], lengths[:i] + lengths[i + 1:]) for i, found in enumerate(matches))


def _two_largest(counts: list[Counter]) -> tuple[dict, dict]:
    """Of each n-gram the largest and the second largest count in any text; equal ones count as two."""
    most, second = {}, {}
    for own in counts:
        for gram, count in own.items():
            largest = most.get(gram, 0)
            if count > largest:
                most[gram], second[gram] = count, largest
            elif count > second[gram]:
                second[gram] = count
    return most, second


def _bleu(matches: list[int], length: int, reference_lengths: list[int]) -> float:
    """From the clipped matches of each order that exists; of two references equally close in length the shorter counts."""
    if not matches or not all(matches):
        return 0.0
    precision = math.exp(fmean(math.log(found / (length - i)) for i, found in enumerate(matches)))
    closest = min(reference_lengths, key=lambda reference: (abs(reference - length), reference))
    return precision * min(1.0, math.exp(1 - closest / length))


def scores(answers: list[Answer]) -> dict:
    """The report of a set of texts: numbers by name, "unit", and "not_computed": {name: why} for those that are None.

    samples; empty_rate: share of answers without a unit. Over the answers that have one: eos_rate (share that ended by eos),
    text_scores as means over the texts that are long enough, pooled_distinct_1/2/3 over the n-grams of all texts together,
    self_bleu. So an empty answer improves none of them. Lengths (mean, min, max, population standard deviation; in tokens) are
    those of all answers.

    On several ranks gather the answers first, and call this with all of them: a pooled share or self-BLEU is no mean of the
    ranks' own. The result is then the same on any number of ranks.
    """
    split = [units(answer.text) for answer in answers]
    texts = [text for text in split if text]
    each = [text_scores(text) for text in texts]
    tokens = [answer.tokens for answer in answers]
    found = {
        "empty_rate": _mean([not text for text in split]),
        "eos_rate": _mean([answer.ended for answer, text in zip(answers, split, strict=True) if text]),
        "length_mean": _mean(tokens), "length_min": min(tokens, default=None), "length_max": max(tokens, default=None),
        "length_std": pstdev(tokens) if tokens else None,
        **{name: _mean([text[name] for text in each if text[name] is not None]) for name in UNITS_NEEDED},
        **{f"pooled_distinct_{n}": distinct([g for text in texts for g in ngrams(text, n)]) for n in DISTINCT_ORDERS},
        "self_bleu": self_bleu(texts),
    }
    missing = {name: _why(name, answers, texts) for name, value in found.items() if value is None}
    return {"unit": UNIT, "samples": len(answers), **found, "not_computed": missing}


def _mean(values: list) -> float | None:
    return fmean(values) if values else None


def _why(name: str, answers: list[Answer], texts: list[list[str]]) -> str:
    if not answers:
        return "there are no answers"
    if not texts:
        return f"all {len(answers)} answers are empty"
    if name == "self_bleu":
        return "it takes two texts that are not empty, there is one"
    return f"no text has {UNITS_NEEDED[name.removeprefix('pooled_')]} units"
