"""model/generate.py: drawing a token, continuing texts, and the logits behind them."""
import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, ops

from model.config import ModelConfig
from model.generate import NextTokenLogits, choose, generate
from model.gpt import GPT, Head
from model.init import initialize

LOGITS = np.array([0.5, 2.0, -1.0, 1.2, 1.9, -0.3], np.float32)
EOS, VOCAB = 2, 12


def choices(logits: np.ndarray, temperature: float, top_k: int, count: int, seed: int = 0) -> list[int]:
    rng = np.random.RandomState(seed)
    return [choose(logits, temperature, top_k, rng) for _ in range(count)]


@pytest.mark.parametrize(("logits", "best"), [(LOGITS, 1), ([3, 5, 5, 5], 1), ([0, 0, 0], 0), ([-2e4, -1e4], 1)])
@pytest.mark.parametrize("top_k", [0, 1, 2])
def test_temperature_0_takes_the_likeliest_and_of_equals_the_first(logits, best, top_k):
    assert choices(np.array(logits, np.float32), 0.0, top_k, 20) == [best] * 20


@pytest.mark.parametrize("top_k", [0, 1, 2, 3, 5, 6, 99])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_are_the_softmax_of_the_k_likeliest(temperature, top_k):
    count, kept = 4000, np.argsort(-LOGITS)[:top_k or None]
    p = np.zeros(6)
    p[kept] = np.exp(LOGITS[kept] / temperature)
    p /= p.sum()
    before = LOGITS.copy()
    found = np.bincount(choices(LOGITS, temperature, top_k, count), minlength=6)
    assert set(np.flatnonzero(found)) == set(kept)
    assert (np.abs(found - count * p) <= 4.5 * np.sqrt(count * p * (1 - p)) + 1e-6).all()  # 4.5 standard errors
    assert (before == LOGITS).all()


def test_logits_beyond_the_range_of_exp():
    drawn = choices(np.array([1e4, 1e4 - 1, -1e4], np.float32), 1.0, 0, 1000)
    assert set(drawn) == {0, 1} and abs(np.mean(drawn) - 1 / (1 + np.e)) < 0.07


def test_choices_follow_from_the_seed():
    assert choices(LOGITS, 1.0, 0, 50, seed=3) == choices(LOGITS, 1.0, 0, 50, seed=3) != choices(LOGITS, 1.0, 0, 50, seed=4)


class Fake:
    """A model of numpy: logits of a row from the tokens up to its last one. Records (tokens seen, shape) of each call."""

    def __init__(self, rule):
        self.rule, self.calls = rule, []

    def __call__(self, ids: Tensor, last: Tensor) -> Tensor:
        assert ids.dtype == last.dtype == ms.int32
        ids, last = ids.asnumpy(), last.asnumpy()
        seen = [row[:end + 1].tolist() for row, end in zip(ids, last, strict=True)]
        self.calls.append((seen, ids.shape))
        return Tensor(np.array([self.rule(tokens) for tokens in seen], np.float32))


def plus_one(tokens):
    """The next number, and eos after 9."""
    return np.eye(VOCAB)[EOS if tokens[-1] == 9 else tokens[-1] + 1]


def of_the_whole_text(tokens):
    """Logits that change with every token seen, and never make eos likely."""
    logits = np.random.RandomState(tokens).standard_normal(VOCAB)
    logits[EOS] = -100
    return logits


def greedy(fake, prompts, window, new):
    return generate(fake, prompts, window, new, EOS, temperature=0.0)


def test_each_row_goes_on_until_its_own_eos_which_is_not_in_the_text():
    fake = Fake(plus_one)
    prompts = [[3], [3, 8], [5, 6, 7], [9]]
    assert greedy(fake, prompts, 8, 5) == [[4, 5, 6, 7, 8], [9], [8, 9], []]
    assert prompts == [[3], [3, 8], [5, 6, 7], [9]]
    assert len(fake.calls) == 5 and {shape for _, shape in fake.calls} == {(4, 8)}
    assert fake.calls[2][0] == [[3, 4, 5], [3, 8, 9], [5, 6, 7, 8, 9], [9]]


def test_it_ends_when_all_rows_have_ended():
    fake = Fake(plus_one)
    assert greedy(fake, [[8], [7]], 4, 50) == [[9], [8, 9]]
    assert len(fake.calls) == 3


def test_no_new_tokens():
    fake = Fake(plus_one)
    assert greedy(fake, [[3], [4, 5]], 4, 0) == [[], []] and not fake.calls


def test_a_text_longer_than_the_window_shows_its_end():
    fake = Fake(of_the_whole_text)
    prompts = [[3, 4, 5, 6, 7], [8], [1, 3, 1]]
    new = greedy(fake, prompts, 3, 4)
    texts = [p + n for p, n in zip(prompts, new, strict=True)]
    for step, (seen, shape) in enumerate(fake.calls):
        assert seen == [text[:len(p) + step][-3:] for text, p in zip(texts, prompts, strict=True)] and shape == (3, 3)
    for text, prompt in zip(texts, prompts, strict=True):
        for end in range(len(prompt), len(text)):
            assert text[end] == of_the_whole_text(text[:end][-3:]).argmax()


def sampled(prompts, seed=0, top_k=0, rule=of_the_whole_text):
    return generate(Fake(rule), prompts, 6, 12, EOS, temperature=1.0, top_k=top_k, seed=seed)


def test_the_text_follows_from_the_seed():
    assert sampled([[3], [4]]) == sampled([[3], [4]])
    assert all(a != b for a, b in zip(sampled([[3], [4]]), sampled([[3], [4]], seed=1), strict=True))


def test_rows_have_streams_of_their_own():
    alone = sampled([[3]])
    assert sampled([[3], [4], [5, 6]])[:1] == sampled([[3], [9]])[:1] == alone
    first, second = sampled([[3], [3]])
    assert first != second


def test_a_row_that_ends_early_takes_nothing_from_the_others():
    def ends_after_9_alone(tokens):
        return np.eye(VOCAB)[EOS] * 1e3 if tokens == [9] else of_the_whole_text(tokens)

    assert sampled([[9], [3]], rule=ends_after_9_alone) == [[], sampled([[4], [3]])[1]]


def test_top_k_1_is_greedy():
    assert sampled([[3], [4, 5]], top_k=1) == greedy(Fake(of_the_whole_text), [[3], [4, 5]], 6, 12)


@pytest.fixture(scope="module")
def gpt():
    config = ModelConfig(vocab_size=50, hidden_size=16, num_layers=2, num_heads=2, seq_length=8, init_std=0.3)
    gpt = GPT(config)
    initialize(gpt, config, seed=5)
    return gpt


def full_logits(gpt, ids: np.ndarray) -> np.ndarray:
    """ids [batch, seq] -> logits [batch, seq, vocab]."""
    x, table = gpt(Tensor(ids), ops.zeros((len(ids),), ms.int32))
    return Head()(x, table).asnumpy().reshape(*ids.shape, -1)


def test_next_token_logits_at_every_position_whatever_stands_behind(gpt):
    rng = np.random.RandomState(0)
    ids = rng.randint(3, 50, (3, 8)).astype(np.int32)
    wanted = full_logits(gpt, ids)
    assert np.abs(np.diff(wanted, axis=1)).max(-1).min() > 0.1  # each position has logits of its own
    next_logits = NextTokenLogits(gpt)
    for shift in range(8):
        last = (np.array([0, 3, 5]) + shift).astype(np.int32) % 8
        changed = ids.copy()
        for row, end in zip(changed, last, strict=True):
            row[end + 1:] = rng.randint(0, 50, 7 - end)
        for given in (ids, changed):
            found = next_logits(Tensor(given), Tensor(last)).asnumpy()
            np.testing.assert_allclose(found, wanted[np.arange(3), last], rtol=1e-5, atol=1e-5)


def test_a_gpt_continues_as_its_full_logits_say(gpt):
    prompts = [[5], [7, 8, 9, 10]]
    new = generate(NextTokenLogits(gpt), prompts, 8, 6, EOS, temperature=0.0)
    for prompt, ids in zip(prompts, new, strict=True):
        text = prompt + ids
        assert len(ids) == 6
        for end in range(len(prompt), len(text)):
            assert full_logits(gpt, np.array([text[:end][-8:]], np.int32))[0, -1].argmax() == text[end]
