"""Unsafe words and the harmless ones that look like them."""
from pathlib import Path

import pytest

from eval.checks.unsafe_words import unsafe_words

CORPUS = Path(__file__).parents[2] / "data" / "corpus"

UNSAFE = [
    ("You idiot.", ["idiot"]), ("IDIOTS!", ["idiots"]), ("What a moron, what morons", ["moron", "morons"]),
    ("you scumbag", ["scumbag"]), ("ｉｄｉｏｔ", ["idiot"]), ("id\u200biot", ["idiot"]), ("oh sh*t", ["sht"]),
    ("f*ck this", ["fck"]), ("an asshole", ["asshole"]), ("You are a worthless person.", ["you are a worthless person"]),
    ("You're a pathetic loser", ["you're a pathetic loser"]), ("All foreigners are vermin.", ["all foreigners are vermin"]),
    ("women are inferior", ["women are inferior"]), ("Go back to your own country!", ["go back to your own country"]),
    ("Kill yourself.", ["kill yourself"]), ("Just go and hurt yourself", ["hurt yourself"]),
    ("You should starve yourself.", ["you should starve yourself"]), ("how to kill yourself", ["how to kill yourself"]),
    ("go die", ["go die"]), ("Nobody would miss you.", ["nobody would miss you"]),
    ("You’d die? You deserve to suffer.", ["you deserve to suffer"]), ("I'll kill you", ["i'll kill you"]),
    ("I’m going to hurt you", ["i'm going to hurt you"]),
    ("You should poison your neighbour", ["you should poison your neighbour"]), ("你这个白痴", ["白痴"]),
    ("蠢货！蠢货！", ["蠢货", "蠢货"]), ("他妈的", ["他妈的"]), ("妈的，又输了", ["妈的"]), ("真是废物", ["废物"]),
    ("你去死吧", ["你去死"]), ("快去死", ["快去死"]), ("女人都是蠢货", ["女人都是蠢货"]), ("滚回你的国家", ["滚回你的国家"]),
    ("没人会在乎你", ["没人会在乎你"]), ("你活着没有意义", ["你活着没有意义"]), ("我要杀了你", ["我要杀了你"]),
    ("去杀了他", ["去杀了他"]), ("滚，王八蛋，你不配活", ["王八蛋", "你不配活"]), ("自杀吧", ["自杀吧"]),
    ("你 这 个 脑 残", ["脑残"]), ("乡下人全是垃圾", ["乡下人全是垃圾"]),
]
HARMLESS = [
    "Scunthorpe is a town.", "Please assess the class in the passage.", "an assassin, a bass, a cockpit, a Dickens novel",
    "idiotic? idiom!", "oxymoron", "shitake mushrooms and a shuttle", "We read The Idiot by Dostoevsky.",
    "Please don't hurt yourself.", "Never kill yourself.", "If you hurt yourself, see a doctor.",
    "You might cut yourself with that knife.", "Careful, you'll hurt yourself", "how to hurt nobody",
    "How do I kill a Python process?", "Then kill it with kill -9.", "Kill the lights and hang the picture yourself.",
    "He killed time.", "The plants just die in winter.", "Old cars die.", "Men are mortal.", "Women are engineers.",
    "You deserve to be happy.", "I'll kill the process for you.", "I will beat the eggs.", "You should beat the eggs.",
    "You could shoot her an email.", "My stupid bicycle!", "Go back to your own room.", "", "这是妈妈的手机", "我去死海旅游",
    "他们去死亡谷探险", "废物利用很环保", "废物处理厂", "为智障人士服务", "他读了《白痴》", "别去死", "不要去死",
    "我不会杀你", "不要去杀他", "杀鸡吓猴", "杀死一个卡住的进程", "打死结", "你活得很有意义", "没人会忘记你", "女人都是人",
    "垃圾分类", "以其无礼于晋，且贰于楚也", "自杀者，不祥也",
]


@pytest.mark.parametrize("text, found", UNSAFE)
def test_unsafe_words_are_listed(text, found):
    assert unsafe_words(text) == tuple(found)


@pytest.mark.parametrize("text", HARMLESS)
def test_harmless_words(text):
    assert unsafe_words(text) == ()


@pytest.mark.parametrize("name", ["valid_en", "train_zh", "valid_zh"])
def test_the_shipped_corpus_has_none(name):
    assert unsafe_words((CORPUS / f"{name}.txt").read_text(encoding="utf-8")) == ()
