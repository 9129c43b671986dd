"""Diversity of generated text: hand-worked cases, sacrebleu's BLEU (bleu.json), brute force, and what users reported (E4, E5)."""
import json
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest

from eval.answers import Answer
from eval.text.diversity import bleu, distinct, longest_repeat, ngrams, repetition, scores, self_bleu, text_scores
from eval.text.units import UNIT, units

HERE = Path(__file__).parent
CORPUS = HERE.parents[1] / "data" / "corpus"
GOLDEN = json.loads((HERE / "bleu.json").read_text(encoding="utf-8"))
TOKENS = [sentence["tokens"] for sentence in GOLDEN["sentences"]]
LOOP = "今天天气很好今天天气很好今天天气很好"
DESCRIPTIVE = {"samples", "empty_rate", "length_mean", "length_min", "length_max", "length_std"}


def answers(*texts: str, ended: bool = True) -> list[Answer]:
    """One token for each character."""
    return [Answer(f"item{i}", "zh", "", text, len(text), ended) for i, text in enumerate(texts)]


def check(report: dict) -> None:
    """None exactly where there is a reason; rates in [0, 1]; no NaN; JSON holds it as it is."""
    assert report["unit"] == UNIT
    numbers = {name: value for name, value in report.items() if name not in ("unit", "not_computed")}
    assert {name for name, value in numbers.items() if value is None} == set(report["not_computed"])
    assert all(isinstance(why, str) and why for why in report["not_computed"].values())
    assert all(math.isfinite(v) and v >= 0 for v in numbers.values() if v is not None)
    unbounded = {"samples", "longest_repeat", *(name for name in numbers if name.startswith("length_"))}
    assert all(v <= 1 for name, v in numbers.items() if name not in unbounded and v is not None)
    assert json.loads(json.dumps(report, allow_nan=False)) == report


def test_e4_a_chinese_loop():
    """18 characters of period 6: 5 different ones (天 twice), 6 different n-grams of each higher order; 12 repeat what was."""
    assert text_scores(units(LOOP)) == {"distinct_1": 5 / 18, "distinct_2": 6 / 17, "distinct_3": 6 / 16, "repetition_4": 9 / 15,
                                        "longest_repeat": 12, "longest_repeat_share": 12 / 18}


def test_e4_two_languages_in_one_text():
    """GPT 模 型 model 训 练 训 练 训 练: 训练 and 练训 come again, of 4-grams only 训练训练; 训练训练 overlaps itself."""
    assert text_scores(units("GPT 模型 model 训练 训练 训练")) == {
        "distinct_1": 6 / 10, "distinct_2": 6 / 9, "distinct_3": 6 / 8, "repetition_4": 1 / 7,
        "longest_repeat": 4, "longest_repeat_share": 4 / 10}


def test_e4_identical_chinese_texts():
    report = scores(answers("今天天气很好", "今天天气很好"))
    check(report)
    assert report["self_bleu"] == 1 and report["not_computed"] == {}
    assert report["pooled_distinct_1"] == 5 / 12 and report["distinct_1"] == 5 / 6
    assert "Han" in report["unit"] and "words" in report["unit"]


CONTROL = "\x00\x07\x1b\u200b"
SHORT = ["", "   ", "hi", "a b", CONTROL]


def test_e5_empty_and_very_short_texts():
    report = scores(answers(*SHORT))
    check(report)
    assert report["empty_rate"] == 3 / 5 and report["samples"] == 5
    assert report["distinct_1"] == report["distinct_2"] == report["pooled_distinct_1"] == 1
    assert report["longest_repeat"] == 0 and report["self_bleu"] == 0
    assert report["not_computed"] == {"distinct_3": "no text has 3 units", "pooled_distinct_3": "no text has 3 units",
                                      "repetition_4": "no text has 4 units"}


@pytest.mark.parametrize("text", SHORT)
def test_e5_each_alone(text):
    report = scores(answers(text))
    check(report)
    assert report["self_bleu"] is None and report["distinct_3"] is None and report["samples"] == 1
    assert report["empty_rate"] == (text not in ("hi", "a b"))


def test_e5_no_answers():
    report = scores([])
    check(report)
    assert report["samples"] == 0 and report["empty_rate"] is None
    assert set(report["not_computed"].values()) == {"there are no answers"}


def test_e5_all_empty():
    report = scores(answers("", "  ", CONTROL))
    check(report)
    assert report["empty_rate"] == 1 and report["length_mean"] == (0 + 2 + 4) / 3
    assert set(report["not_computed"]) == set(report) - DESCRIPTIVE - {"unit", "not_computed"}
    assert set(report["not_computed"].values()) == {"all 3 answers are empty"}


def test_e5_one_text_has_no_self_bleu():
    report = scores(answers(LOOP, "", " "))
    check(report)
    assert report["not_computed"] == {"self_bleu": "it takes two texts that are not empty, there is one"}


@pytest.mark.parametrize("text", ["hi", "a b", "好的", "a b c", LOOP])
def test_e5_short_identical_texts_are_the_same_text(text):
    assert scores(answers(text, text))["self_bleu"] == 1 == bleu(units(text), [units(text)])


@pytest.mark.parametrize("ended", [True, False])
def test_empty_answers_change_no_score(ended):
    """Whatever they ended by: only what counts them and the lengths in tokens."""
    some = [*answers(LOOP, "GPT 模型 model 训练 训练 训练"), *answers("a b", ended=False)]
    before, after = scores(some), scores(some + answers("", "  ", CONTROL, ended=ended))
    check(after)
    assert {name for name in before if before[name] != after[name]} == DESCRIPTIVE - {"length_max"}
    assert before["empty_rate"] == 0 and after["empty_rate"] == 0.5


def test_a_set_worked_by_hand():
    """"a b a b": 2/4 different, bigrams ab ba ab 2/3, trigrams 2/2, one 4-gram; "a c": all different. Pooled: a b c of 6, ab ba
    ac of 4, 2 of 2. Self-BLEU of "a c": 1 of 2, then 0 of 1; of "a b a b": "a" once of 4, then 0."""
    report = scores([Answer("1", "en", "", "a b a b", 10, True), Answer("2", "en", "", "a c", 4, False)])
    check(report)
    assert report == {"unit": UNIT, "samples": 2, "empty_rate": 0, "eos_rate": 0.5,
                      "length_mean": 7, "length_min": 4, "length_max": 10, "length_std": 3,
                      "distinct_1": 0.75, "distinct_2": pytest.approx(5 / 6), "distinct_3": 1, "repetition_4": 0,
                      "longest_repeat": 1, "longest_repeat_share": 0.25,
                      "pooled_distinct_1": 0.5, "pooled_distinct_2": 0.75, "pooled_distinct_3": 1, "self_bleu": 0,
                      "not_computed": {}}


def test_n_grams():
    assert ngrams(list("abca"), 2) == [("a", "b"), ("b", "c"), ("c", "a")] and ngrams(["a"], 2) == []
    assert distinct([]) is None and repetition([]) is None
    assert repetition(ngrams(list("aaaaa"), 4)) == 0.5 and distinct(ngrams(list("aaaaa"), 4)) == 0.5


@pytest.mark.parametrize("text, expected", [("", None), ("a", None), ("ab", 0), ("aa", 1), ("aaaa", 3), ("aaaaaaaa", 7),
                                            ("abcdefg", 0), ("banana", 3), ("abcabcab", 5), ("mississippi", 4),
                                            ("abcdeXabcdeYabcde", 5)])
def test_longest_repeat(text, expected):
    assert longest_repeat(list(text)) == expected


def test_longest_repeat_against_brute_force():
    """All lengths of repeats, in texts of 2 to 40 units, of few kinds and of many."""
    rng, seen = random.Random(5), set()
    for _ in range(1500):
        text = rng.choices("abcdefgh"[:rng.randint(1, 8)], k=rng.randint(2, 40))
        if rng.random() < 0.3:
            text = (text * 2)[:40]
        expected = max(k for k in range(len(text)) if k == 0 or len(set(ngrams(text, k))) < len(text) - k + 1)
        assert longest_repeat(text) == expected, text
        seen.add(expected)
    assert seen >= set(range(21))


def test_longest_repeat_of_a_long_real_text():
    """A paragraph of real prose written twice within other prose, 6,000 characters in all."""
    text = units((CORPUS / "valid_zh.txt").read_text(encoding="utf-8"))[:6000]
    usual = longest_repeat(text)
    assert 2 < usual < 40
    assert 700 <= longest_repeat(text[:5300] + text[1000:1700]) < 700 + usual


def test_bleu_is_sacrebleu_s():
    assert len(GOLDEN["bleu"]) == 120 and sum(0 < case["bleu"] < 1 for case in GOLDEN["bleu"]) > 80
    for case in GOLDEN["bleu"]:
        hypothesis = case["hypothesis"] if isinstance(case["hypothesis"], list) else TOKENS[case["hypothesis"]]
        found = bleu(hypothesis, [TOKENS[i] for i in case["references"]], case["max_order"])
        assert found == pytest.approx(case["bleu"], rel=1e-12), case


def test_self_bleu_is_the_mean_of_sacrebleu_s():
    for case in GOLDEN["self_bleu"]:
        texts = [s["tokens"] for s in GOLDEN["sentences"] if s["tokenize"] == case["tokenize"]]
        assert len(texts) == 15
        assert self_bleu(texts, case["max_order"]) == pytest.approx(case["bleu"], rel=1e-12)


def test_bleu_worked_by_hand():
    assert bleu(list("aaaa"), [list("ab"), list("aab")], max_order=1) == 2 / 4  # at most as often as one reference has it
    assert bleu(list("ab"), [list("abc")]) == pytest.approx(math.exp(1 - 3 / 2))  # brevity
    assert bleu(list("abcd"), [list("abc"), list("abcde")]) == 1  # equally close in length: the shorter, so no penalty
    assert bleu(list("abcd"), [list("abcx")], max_order=2) == pytest.approx((3 / 4 * 2 / 3) ** 0.5)
    assert bleu(list("abcd"), [list("abxd")]) == 0 and bleu([], [list("ab")]) == 0 and bleu(["a"], [[]]) == 0
    with pytest.raises(ValueError, match="reference"):
        bleu(["a"], [])


def test_self_bleu_counts_texts_that_share_their_most():
    """Of each n-gram the others' largest count limits, also where two texts have the same or the text itself the most."""
    rng = random.Random(3)
    for _ in range(100):
        texts = [rng.choices("ab", k=rng.randint(1, 9)) for _ in range(rng.randint(2, 6))]
        expected = [bleu(text, texts[:i] + texts[i + 1:]) for i, text in enumerate(texts)]
        assert self_bleu(texts) == pytest.approx(sum(expected) / len(texts), rel=1e-12, abs=1e-15)


def test_the_order_of_the_answers_changes_no_digit():
    """Ranks may hand them over in any order."""
    real = answers(*(sentence["text"] for sentence in GOLDEN["sentences"]), "", LOOP)
    expected = scores(real)
    check(expected)
    for seed in range(5):
        shuffled = random.Random(seed).sample(real, len(real))
        assert shuffled != real and scores(shuffled) == expected


def test_a_looping_model_is_told_from_real_prose():
    prose = units((CORPUS / "valid_zh.txt").read_text(encoding="utf-8"))
    real = scores(answers(*("".join(prose[i:i + 200]) for i in range(0, 4000, 200))))
    loop = scores(answers(*("".join(prose[i:i + 10] * 20) for i in range(0, 4000, 200))))
    for report in (real, loop):
        check(report)
    assert real["repetition_4"] < 0.05 and loop["repetition_4"] > 0.9
    assert real["distinct_2"] > 0.8 and loop["distinct_2"] < 0.1
    assert real["longest_repeat_share"] < 0.1 and loop["longest_repeat"] == 190


def test_mindspore_is_not_needed():
    code = "import sys, eval.text.diversity; sys.exit('mindspore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=HERE.parents[1]).returncode == 0
