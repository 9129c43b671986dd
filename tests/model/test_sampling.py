"""model/sampling.py against transformers' logits processors (figures: tests/model/make_sampling.py) and by hand."""
from pathlib import Path

import numpy as np
import pytest

from model.sampling import Sampling, choose, distribution
from parallel.errors import UserError


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(Path(__file__).with_name("sampling.npz")) as file:
        return dict(file)


def seen_in(tokens, lengths, vocab: int) -> np.ndarray:
    """bool [rows, vocab]."""
    seen = np.zeros((len(lengths), vocab), bool)
    for row, text, n in zip(seen, tokens, lengths, strict=True):
        row[text[:n]] = True
    return seen


def settings_of(golden) -> list[Sampling]:
    return [Sampling(t, int(k), p, r) for t, k, p, r in golden["settings"]]


def nothing_seen(logits: np.ndarray) -> np.ndarray:
    return np.zeros(logits.shape, bool)


def test_distribution(golden):
    logits, wanted = golden["logits"], golden["probabilities"]
    seen, before = seen_in(golden["tokens"], golden["lengths"], logits.shape[1]), logits.copy()
    assert wanted.shape == (52, 4, 40)
    for sampling, p in zip(settings_of(golden), wanted, strict=True):
        found = distribution(logits, seen, sampling)
        np.testing.assert_array_equal(found > 0, p > 0, err_msg=str(sampling))
        np.testing.assert_allclose(found, p, rtol=1e-12, err_msg=str(sampling))
    np.testing.assert_array_equal(logits, before)


def test_every_setting_matters_in_the_figures(golden):
    """The comparison above can fail: no setting gives what another gives."""
    p = golden["probabilities"].reshape(52, -1)
    same = [(i, j) for i in range(52) for j in range(i) if np.array_equal(p[i], p[j])]
    for i, j in same:  # one token is kept, or top_k is beyond the vocabulary
        assert (p[i] > 0).sum() == 4 or set(golden["settings"][[i, j], 1]) == {0, 100}
    assert len(same) < 30


def test_draws_spread_evenly_fall_as_the_probabilities_say(golden):
    logits, n = golden["logits"], 2000
    seen = seen_in(golden["tokens"], golden["lengths"], logits.shape[1])
    for sampling, p in list(zip(settings_of(golden), golden["probabilities"], strict=True))[::5]:
        chosen = [choose(logits, seen, sampling, np.full(4, (i + 0.5) / n)) for i in range(n)]
        counts = np.array([np.bincount(row, minlength=40) for row in np.array(chosen).T])
        assert np.abs(counts - n * p).max() <= 1 and not counts[p == 0].any()


def test_the_ends_of_the_draws_choose_what_can_be_drawn():
    logits = np.array([[-1e4, 0, 1, -1e4], [0, -1e4, -1e4, 2.0], [5, 5, 5, 5]], np.float32)
    seen = nothing_seen(logits)
    assert choose(logits, seen, Sampling(), np.zeros(3)).tolist() == [1, 0, 0]
    assert choose(logits, seen, Sampling(), np.full(3, np.nextafter(1, 0))).tolist() == [2, 3, 3]


@pytest.mark.parametrize(("logits", "best"), [([3, 5, 5, 5], 1), ([0, 0, 0], 0), ([-2e4, -1e4], 1), ([2, 1, 2], 0)])
@pytest.mark.parametrize("settings", [{}, {"top_k": 2}, {"top_p": 0.4}])
def test_temperature_0_takes_the_likeliest_and_of_equals_the_first(logits, best, settings):
    logits = np.array([logits], np.float32)
    for draw in (0.0, 0.5, 0.999):
        assert choose(logits, nothing_seen(logits), Sampling(0.0, **settings), np.array([draw])).tolist() == [best]


def test_the_penalty_comes_before_the_likeliest_is_taken():
    logits = np.array([[4, 3, 1], [-3, -4, -9], [4, 3, 1]], np.float32)
    seen = np.array([[1, 0, 0], [1, 0, 0], [0, 0, 1]], bool)
    assert distribution(logits, seen, Sampling(0.0, repetition_penalty=2.0)).argmax(1).tolist() == [1, 1, 0]


def test_tokens_as_likely_as_the_last_one_kept_are_kept():
    logits = np.log(np.array([[1, 4, 2, 2, 2]], np.float32))
    for sampling in (Sampling(top_k=2), Sampling(top_p=0.5)):
        np.testing.assert_allclose(distribution(logits, nothing_seen(logits), sampling), [[0, 0.4, 0.2, 0.2, 0.2]], atol=1e-12)


@pytest.mark.parametrize("top_p", [1e-300, 1e-9, 0.5, 0.999999, 1 - 1e-12])
def test_top_p_keeps_the_fewest_that_reach_it(top_p):
    """By a loop over the sorted probabilities; the vocabulary is large enough for most tokens to be left out of the sort."""
    rng = np.random.RandomState(1)
    logits = (rng.standard_normal((5, 3000)) * [[0.01], [0.5], [1], [3], [9]]).astype(np.float32)
    found = distribution(logits, nothing_seen(logits), Sampling(0.9, top_p=top_p))
    for row, x in zip(found, logits.astype(np.float64), strict=True):
        p = np.exp((x - x.max()) / 0.9)
        p /= p.sum()
        kept, mass = [], 0.0
        for token in np.argsort(-p):
            if mass >= top_p:
                break
            kept.append(token)
            mass += p[token]
        assert set(np.flatnonzero(row)) == set(kept) and kept
        np.testing.assert_allclose(row[kept], p[kept] / p[kept].sum(), rtol=1e-9)


def test_equal_logits_under_top_p():
    """All are as likely as the last one kept; rounding must not leave a row without any."""
    for vocab in (1, 3, 7, 1000):
        logits = np.ones((2, vocab), np.float32)
        np.testing.assert_allclose(distribution(logits, nothing_seen(logits), Sampling(top_p=0.9)), 1 / vocab)


def test_logits_beyond_the_range_of_exp():
    logits = np.array([[1e4, 1e4 - 1, -1e4], [3e38, -3e38, 0]], np.float32)
    found = distribution(logits, nothing_seen(logits), Sampling())
    np.testing.assert_allclose(found, [[1 / (1 + np.exp(-1)), 1 / (1 + np.e), 0], [1, 0, 0]], rtol=1e-12)
    assert distribution(logits, nothing_seen(logits), Sampling(1e-300)).tolist() == [[1, 0, 0], [1, 0, 0]]


def test_a_row_does_not_depend_on_the_others(golden):
    logits, draws = golden["logits"], np.array([0.1, 0.4, 0.7, 0.9])
    seen = seen_in(golden["tokens"], golden["lengths"], logits.shape[1])
    for sampling in settings_of(golden):
        alone = [choose(logits[i:i + 1], seen[i:i + 1], sampling, draws[i:i + 1])[0] for i in range(4)]
        assert choose(logits, seen, sampling, draws).tolist() == alone


def test_no_rows():
    assert choose(np.zeros((0, 5), np.float32), np.zeros((0, 5), bool), Sampling(1.0, 2, 0.9, 1.2), np.zeros(0)).shape == (0,)


@pytest.mark.parametrize(("settings", "words"), [
    ({"temperature": -0.1}, "temperature=-0.1"), ({"temperature": float("nan")}, "0 or more"),
    ({"temperature": float("inf")}, "temperature=inf"), ({"top_k": -1}, "top_k=-1"), ({"top_p": 0.0}, "above 0, at most 1"),
    ({"top_p": 1.01}, "top_p=1.01"), ({"top_p": float("nan")}, "top_p=nan"), ({"repetition_penalty": 0.0}, "above 0"),
    ({"repetition_penalty": float("inf")}, "repetition_penalty=inf")])
def test_what_is_refused(settings, words):
    with pytest.raises(UserError, match=words):
        Sampling(**settings)


@pytest.mark.oracle
def test_live():
    """Other logits and texts than those of the file."""
    from transformers import GPT2Config, GPT2LMHeadModel

    from tests.model.make_sampling import SETTINGS, probabilities

    model = GPT2LMHeadModel(GPT2Config(vocab_size=300, n_positions=8, n_embd=4, n_layer=1, n_head=1))
    rng = np.random.RandomState(7)
    for t, k, p, r in SETTINGS:
        logits, tokens = (rng.standard_normal((3, 300)) * 4).astype(np.float32), rng.randint(0, 300, (3, 50))
        found = distribution(logits, seen_in(tokens, [50] * 3, 300), Sampling(t, k, p, r))
        wanted = [probabilities(model, text.tolist(), x, (t, k, p, r)) for text, x in zip(tokens, logits, strict=True)]
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-15)
