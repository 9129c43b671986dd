"""Units of text: hand-made cases, sacrebleu's tokens of real sentences, and the whole validation text."""
import json
import unicodedata
from pathlib import Path

import pytest

from eval.text.units import units

HERE = Path(__file__).parent
CORPUS = HERE.parents[1] / "data" / "corpus"

CASES = {
    "今天天气很好": list("今天天气很好"),
    "GPT 模型 model 训练 训练 训练": ["GPT", "模", "型", "model", "训", "练", "训", "练", "训", "练"],
    "用GPT2写Python代码": ["用", "GPT2", "写", "Python", "代", "码"],
    "She said: \"It's late!!\"": ["She", "said", ":", '"', "It's", "late", "!", "!", '"'],
    "don’t 'quote' rock'n'roll dogs'": ["don’t", "'", "quote", "'", "rock'n'roll", "dogs", "'"],
    "well-known 3.14 _x_": ["well", "-", "known", "3", ".", "14", "_", "x", "_"],
    "他说：“好，，！”": ["他", "说", "：", "“", "好", "，", "，", "！", "”"],
    "ひらがなカタカナー々ｶﾅ": list("ひらがなカタカナー々ｶﾅ"),
    "한국어 모델": list("한국어모델"),
    "𠮷野家〇": ["𠮷", "野", "家", "〇"],
    "\U0003134f": ["\U0003134f"],  # Han of a newer Unicode than Python 3.11 knows the category of
    "ＧＰＴ４，４": ["ＧＰＴ４", "，", "４"],
    "สวัสดี": ["ส", "วั", "ส", "ดี"],
    "Война и мир naïve Ελλάδα": ["Война", "и", "мир", "naïve", "Ελλάδα"],
    "हिन्दी": ["हिन्दी"],
    "😀😀 ❤\ufe0f a\ufe0f": ["😀", "😀", "❤", "a"],
    "\ufffd\ufffd": ["\ufffd", "\ufffd"],
    "一\n\t二\u3000三\xa0四": list("一二三四"),
    "a\x00b\x1bc": ["a", "b", "c"],
    "\ufeffco\xadop\u200d \u200e": ["coop"],
    "two\u200bwords": ["two", "words"],
    "Hi hi": ["Hi", "hi"],
}


@pytest.mark.parametrize("text", CASES)
def test_cases(text):
    assert units(text) == CASES[text]


@pytest.mark.parametrize("text", ["", "   ", "\n\t \u3000\xa0\u2028", "\x00\x01\x1f\x7f\x85", "\ufeff\u200b\u200d\u202e\xad",
                                  "\ufe0f\u034f\u3164", "\ud800"])
def test_nothing_visible_is_no_unit(text):
    assert units(text) == []


def test_no_control_character_nor_white_space_is_a_unit_or_in_one():
    kinds = ("Cc", "Cf", "Cs", "Zs", "Zl", "Zp")
    hidden = [c for c in map(chr, range(0x110000)) if c.isspace() or unicodedata.category(c) in kinds]
    assert len(hidden) > 2000
    for char in hidden:
        assert units(char) == [] and set("".join(units(f"a{char}b"))) == {"a", "b"}, hex(ord(char))


def test_one_character_in_two_spellings_is_one_unit():
    for text in ("Café é", "がぎ", "한국"):
        assert units(unicodedata.normalize("NFD", text)) == units(text)
        assert unicodedata.normalize("NFD", text) != text


def test_no_character_puts_the_units_out_of_step_with_the_text():
    """Each one of planes 0 and 1 and the tags after a Han character: all of those are still there, alone or with a mark."""
    codes = [*range(0x20000), *range(0xE0000, 0xE1000)]
    found = units("".join(f"一{chr(code)}" for code in codes))
    assert sum(unit.startswith("一") for unit in found) == len(codes) + 1
    assert max(map(len, found)) <= 3


@pytest.mark.parametrize("name", ["valid_en.txt", "valid_zh.txt"])
def test_real_text_loses_nothing_but_white_space(name):
    text = unicodedata.normalize("NFC", (CORPUS / name).read_text(encoding="utf-8"))
    found = units(text)
    assert "".join(found) == "".join(text.split())
    longest = max(found, key=len)
    assert (len(longest) == 1) if name == "valid_zh.txt" else (10 < len(longest) < 25)


def test_real_sentences_as_sacrebleu_splits_them():
    sentences = json.loads((HERE / "bleu.json").read_text(encoding="utf-8"))["sentences"]
    assert {s["tokenize"] for s in sentences} == {"13a", "zh"} and len(sentences) == 30
    for sentence in sentences:
        assert units(sentence["text"]) == sentence["tokens"]
