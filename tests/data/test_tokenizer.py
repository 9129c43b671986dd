import random

import pytest

from data import tokenizer as tokenizers
from data.config import TokenizerConfig
from data.tokenizer import MAX_TRAINING_LINE, Tokenizer, train, training_lines
from parallel.errors import UserError
from tests.data.conftest import CORPUS, cut


@pytest.fixture(scope="module")
def tokenizer():
    text = cut("train_en.txt", 100_000) + cut("train_zh.txt", 40_000)
    return Tokenizer(train([text], len(text), TokenizerConfig(vocab_size=2500, character_coverage=0.98)))


@pytest.mark.parametrize("text", [
    "", " ", "  two  blanks  ", "\n", "\n\n\tx\r\n", "“你好”，（世界）！１２３", "ﬁx ½ ㎏", "e\u0301 é",
    "a\u2581b\u2581", "\u2581", "\u2585 ⁇ <unk>",
    "<s></s><pad><bos><eos><0x0A>", "\x01\x7f\u00a0\u3000\u200b\ufeff\ufffd", "𝒳 🙂 👨‍👩‍👧", "3.14159 2024",
    "tail ", "\u2028\u2029",
])
def test_round_trip_is_exact(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert not set(ids) & {0, 1, 2, 3}
    assert tokenizer.byte_lengths()[ids].sum() == len(text.encode())


def test_round_trip_of_random_text_and_of_the_whole_corpus(tokenizer):
    rng = random.Random(0)
    alphabet = [chr(c) for c in range(1, 0x3000) if not 0xD800 <= c < 0xE000] + list("你好\u2581 \n") * 500
    texts = ["".join(rng.choices(alphabet, k=50)) for _ in range(500)]
    texts += [path.read_text() for path in sorted(CORPUS.glob("valid_*.txt"))] + [(CORPUS / "long_lines_en.txt").read_text()]
    for text, ids in zip(texts, tokenizer.encode_batch(texts, 2), strict=True):
        assert tokenizer.decode(ids) == text


def test_cutting_at_line_breaks_does_not_change_ids(tokenizer):
    text = cut("valid_en.txt", 20_000) + cut("valid_zh.txt", 10_000)
    parts = [line + "\n" for line in text.split("\n")]
    assert sum(tokenizer.encode_batch(parts), []) == tokenizer.encode(text + "\n")


def test_special_ids_are_fixed(tokenizer):
    assert [tokenizer.piece(i) for i in range(4)] == ["<pad>", "<s>", "</s>", "<unk>"]
    assert tokenizer.decode([1, *tokenizer.encode("a"), 2, 0]) == "a"
    assert [tokenizer.is_control(i) for i in (0, 1, 2, 300)] == [True, True, True, False]


def test_training_is_deterministic(tokenizer):
    text = cut("train_en.txt", 50_000)
    config = TokenizerConfig(vocab_size=600)
    assert train([text], len(text), config) == train([text], len(text), config)


def test_vocabulary_too_large_tells_the_largest(tmp_path):
    lines = ["hello world"] * 20
    with pytest.raises(UserError, match="vocab_size=8000 is too large .* 286 ") as error:
        train(lines, 240, TokenizerConfig(vocab_size=8000))
    assert "INTERNAL" not in str(error.value)
    assert Tokenizer(train(lines, 240, TokenizerConfig(vocab_size=286))).vocab_size == 286


def test_vocabulary_too_small_tells_the_smallest():
    text = cut("train_en.txt", 60_000) + cut("train_zh.txt", 60_000)
    with pytest.raises(UserError, match="vocab_size=1000 is too small .*character_coverage=1; set .* or lower") as error:
        train([text], len(text), TokenizerConfig(vocab_size=1000, character_coverage=1.0))
    least = int(str(error.value).split("need ")[1].split()[0])
    assert Tokenizer(train([text], len(text), TokenizerConfig(vocab_size=least, character_coverage=1.0))).vocab_size == least


def test_long_lines_are_cut_not_left_out():
    """Letters that only a line of 6,000 or 15,000 bytes holds get pieces of their own."""
    short = ["the quick brown fox jumps over the lazy dog"] * 200
    text = "\n".join([*short, "ж" * 10 + "word " * 1200, "語" * 5000])
    tokenizer = Tokenizer(train([text], len(text), TokenizerConfig(vocab_size=310, character_coverage=1.0)))
    assert [len(tokenizer.encode(char)) for char in "ж語"] == [1, 1]


def test_lines_with_a_reserved_character_are_not_left_out():
    lines = ["the quick brown fox jumps over the lazy dog"] * 200
    lines += ["bar \u2585\u2585 ЖЖ"] * 5 + ["tab\tЯЯ"] * 5 + ["a\u2581ЩЩ"] * 5
    tokenizer = Tokenizer(train(lines, 9000, TokenizerConfig(vocab_size=310, character_coverage=1.0)))
    assert [len(tokenizer.encode(char)) for char in "ЖЯЩ"] == [1, 1, 1]
    with pytest.raises(UserError, match="nothing to train a tokenizer on"):
        train(["\u2585\n"], 4, TokenizerConfig())


def test_only_long_lines_train():
    text = ("lorem ipsum dolor " * 300).strip() + "\n" + ("sit amet consectetur " * 450).strip()
    assert min(map(len, text.split("\n"))) > 5000
    assert Tokenizer(train([text], len(text), TokenizerConfig(vocab_size=300))).vocab_size == 300


@pytest.mark.parametrize("line", ["a b " * 9000, "语" * 9000, "x" * 9000, "🙂" * 3000, " " + "y" * 9000, "z" * 5000 + " z"])
def test_training_lines_lose_nothing(line):
    parts = list(training_lines([line + "\n"]))
    assert "".join(parts) == line
    assert max(len(part.encode()) for part in parts) <= MAX_TRAINING_LINE


def test_sampling_takes_an_even_share():
    lines = [str(i) for i in range(1000)]
    taken = list(training_lines(lines, 0.25))
    assert taken == list(training_lines(["\n".join(lines)], 0.25))
    assert len(taken) == 250
    assert max(int(b) - int(a) for a, b in zip(taken, taken[1:], strict=False)) == 4


def sentencepiece_model(**options) -> bytes:
    import io

    import sentencepiece
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(cut("train_en.txt", 50_000).split("\n")), model_writer=model, model_type="bpe", minloglevel=2,
        **{"vocab_size": 600, "byte_fallback": True, "pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3, **options})
    return model.getvalue()


def test_given_model_is_checked(tmp_path):
    path = tmp_path / "t.model"
    for options, message in (({"pad_id": -1, "bos_id": 1, "eos_id": 2, "unk_id": 0}, None),
                             ({"pad_id": 3, "bos_id": 0, "eos_id": 1, "unk_id": 2}, "special tokens have the ids"),
                             ({"byte_fallback": False}, "no byte fallback")):
        tokenizer = Tokenizer(sentencepiece_model(**options))
        if message is None:
            tokenizer.check_given(path)
        else:
            with pytest.raises(UserError, match=message):
                tokenizer.check_given(path)
    path.write_bytes(b"no model")
    for bad in (path, tmp_path / "missing.model", tmp_path):
        with pytest.raises(UserError, match="not a readable sentencepiece model"):
            Tokenizer.load(bad)


def test_lossy_share_finds_normalisation(tokenizer):
    samples = ["plain", "“你好”，（世界）！１２３", "ﬁx ½ ㎏", "two  blanks"]
    assert tokenizer.lossy_share(samples) == 0
    assert Tokenizer(sentencepiece_model()).lossy_share(samples) == 1  # a dummy prefix changes even plain text when it is cut
    nfkc = Tokenizer(sentencepiece_model(add_dummy_prefix=False, remove_extra_whitespaces=False, normalization_rule_name="nfkc"))
    assert nfkc.lossy_share(samples) == 0.5


def test_training_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(tokenizers, "TRAINING_BYTES", 20_000)
    seen = []
    monkeypatch.setattr(tokenizers.sentencepiece.SentencePieceTrainer, "train",
                        lambda sentence_iterator, **_: seen.append(sum(len(line) for line in sentence_iterator)))
    text = cut("train_en.txt", 100_000)
    train([text], len(text), TokenizerConfig())
    assert 15_000 < seen[0] < 25_000
