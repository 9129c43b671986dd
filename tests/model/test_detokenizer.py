"""model/detokenizer.py with real sentencepiece models that spell rare characters in bytes."""
import io
from pathlib import Path

import numpy as np
import pytest
import sentencepiece

from data.config import TokenizerConfig
from data.tokenizer import BOS_ID, EOS_ID, Tokenizer, train
from model.detokenizer import Detokenizer

CORPUS = Path(__file__).parents[2] / "data" / "corpus"
TEXTS = ["It is a truth universally acknowledged.", "学而时习之，不亦说乎？", "龘𠮷㐀 rare Han, “quotes” １２３",
         "🙂🚀👨‍👩‍👧‍👦🇨🇳 e\u0301 ñ", "Chess ♟️ 象棋：將帥士仕象相🀄，\n\tend ", "a\ufffdb\ufffd", "", "\u2581 \u2581",
         "é" * 40, "🙂" * 40]


@pytest.fixture(scope="module")
def corpus() -> list[str]:
    return [(CORPUS / f"train_{name}.txt").read_text(encoding="utf-8")[:20_000] for name in ("en", "zh")]


@pytest.fixture(scope="module")
def tokenizer(corpus) -> Tokenizer:
    return Tokenizer(train(corpus, 80_000, TokenizerConfig(vocab_size=1500, character_coverage=0.98)))


def shown(decode, ids: list[int]) -> list[str]:
    """What each push gave, and what finish gave."""
    detokenizer = Detokenizer(decode)
    return [*(detokenizer.push(i) for i in ids), detokenizer.finish()]


def test_the_texts_need_bytes(tokenizer):
    """What the tests below mean: many characters are spelt in 2, 3 and 4 bytes, others are pieces."""
    single = {text: (tokenizer.byte_lengths()[tokenizer.encode(text)] == 1).sum() for text in TEXTS}
    assert single[TEXTS[2]] >= 3 + 4 + 3 and single[TEXTS[3]] >= 40 and single["é" * 40] == 80 and single["🙂" * 40] == 160
    assert len(tokenizer.encode(TEXTS[1])) < len(TEXTS[1].encode()) / 2


@pytest.mark.parametrize("text", TEXTS)
def test_characters_are_shown_whole_and_as_soon_as_they_are(tokenizer, text):
    ids = tokenizer.encode(text)
    parts = shown(tokenizer.decode, ids)
    assert "".join(parts) == text
    ends = np.cumsum(tokenizer.byte_lengths()[ids])
    for i, end in enumerate(ends):
        so_far = text.encode()[:end].decode(errors="ignore")  # without a character that is cut
        assert "".join(parts[:i + 1]) == (so_far if "\ufffd" not in text else so_far.rstrip("\ufffd"))


def test_a_cut_text_ends_in_replacement_characters(tokenizer):
    ids = tokenizer.encode("棋🙂")[:-1]
    parts = shown(tokenizer.decode, ids)
    assert "".join(parts) == "棋\ufffd\ufffd\ufffd" == tokenizer.decode(ids) and "".join(parts[:-1]) == "棋"


def test_any_tokens(tokenizer):
    """Random ones, bytes that are no UTF-8 and special tokens among them: joined, they are decode(all); no character is cut."""
    rng = np.random.RandomState(0)
    bytes_ = [tokenizer._processor.piece_to_id(f"<0x{byte:02X}>") for byte in range(256)]
    leads = [bytes_[byte] for byte in (0xC3, 0xE5, 0xF0, 0x9F, 0x98, 0x82, 0xFF)]
    pools = [np.arange(tokenizer.vocab_size), np.array(bytes_), np.array([*leads, 1400, EOS_ID, BOS_ID])]
    for trial in range(300):
        ids = rng.choice(pools[trial % 3], 40).tolist()
        parts, whole = shown(tokenizer.decode, ids), tokenizer.decode(ids)
        assert "".join(parts) == whole
        held = [len(tokenizer.decode(ids[:i + 1])) - len("".join(parts[:i + 1])) for i in range(len(ids))]
        assert max(held) <= 3


def test_a_decoder_that_drops_the_first_blank(corpus):
    """Sentencepiece's default: a blank is put in front of a text, and taken off again; also behind special tokens."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(line[:2000] for text in corpus for line in text.split("\n")), model_writer=model, vocab_size=1500,
        model_type="bpe", byte_fallback=True, character_coverage=0.98, minloglevel=2)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    text = "It is 象棋 🙂 a chess  game"
    for ids in (processor.encode(text), [processor.eos_id(), *processor.encode(text)], processor.encode(text)[3:]):
        parts = shown(processor.decode, ids)
        assert "".join(parts) == processor.decode(ids) and not any("\ufffd" in part for part in parts)
    assert processor.decode(processor.encode(text))[:3] == "It "


def test_a_decoder_with_one_mark_for_a_whole_cut_character():
    """Python's own, over bytes as tokens."""
    def decode(ids):
        return bytes(ids).decode(errors="replace")

    for text in TEXTS:
        assert "".join(shown(decode, list(text.encode()))) == text
    parts = shown(decode, list("🙂a".encode()[1:]))
    assert "".join(parts) == "\ufffd" * 3 + "a"


def test_no_tokens():
    assert Detokenizer(lambda ids: "").finish() == ""
