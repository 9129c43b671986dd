"""model/writer.py: the policy over a decoder of numpy, and whole texts of a GPT against those without a cache."""
import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor

from model.config import ModelConfig
from model.gpt import GPT
from model.init import initialize
from model.sampling import Sampling, choose, distribution
from model.writer import Text, Writer, context_start
from tests.model.uncached import NextTokenLogits

EOS, VOCAB, WINDOW = 2, 50, 20
GREEDY, DRAWN = Sampling(0.0), Sampling(1.2, 20, 0.95, 1.1)
# Lengths around those at which something changes; some outgrow the window while others go on.
PROMPTS = [np.random.RandomState(n).randint(3, VOCAB, n).tolist() for n in (1, 0, 7, WINDOW - 1, WINDOW, WINDOW + 1, 45)]


@pytest.fixture(autouse=True)
def graph_mode():
    before = ms.get_context("mode")
    ms.set_context(mode=ms.GRAPH_MODE)
    yield
    ms.set_context(mode=before)


@pytest.fixture(scope="module")
def gpt() -> GPT:
    config = ModelConfig(vocab_size=VOCAB, hidden_size=16, num_layers=2, num_heads=2, seq_length=24, init_std=0.4)
    gpt = GPT(config)
    initialize(gpt, config, seed=5)
    return gpt


@pytest.fixture(scope="module")
def writer(gpt) -> Writer:
    return Writer(gpt, 3, WINDOW, EOS)


class Fake:
    """In Decoder's place: `rule` gives the logits from what a row has. Counts calls, refuses what the cells can not do."""

    vocab_size = VOCAB

    def __init__(self, rule, batch: int, window: int):
        self.rule, self.window, self.rows = rule, window, [[] for _ in range(batch)]
        self.steps, self.prefilled, self.cleared = 0, [], []

    def prefill(self, row, tokens):
        assert 1 <= len(tokens) <= self.window
        self.rows[row] = list(tokens)
        self.prefilled.append(list(tokens))
        return self.rule(tokens)

    def step(self, ids, positions):
        assert len(ids) == len(positions) == len(self.rows)
        self.steps += 1
        for row, token, at in zip(self.rows, ids, positions, strict=True):
            assert 0 <= at < self.window and at <= len(row)
            row[at:] = [token]
        return np.array([self.rule(row) for row in self.rows], np.float32)

    def clear(self, row):
        self.cleared.append(row)


def plus_one(tokens):
    """The next number, and eos after 9."""
    return np.eye(VOCAB, dtype=np.float32)[EOS if tokens[-1] == 9 else tokens[-1] + 1]


def of_all_it_sees(tokens):
    """Logits that change with every token seen, and never make eos likely."""
    logits = np.random.RandomState(tokens).standard_normal(VOCAB).astype(np.float32)
    logits[EOS] = -100
    return logits


def faked(gpt, rule, batch: int = 3, window: int = 8) -> Writer:
    writer = Writer(gpt, batch, window, EOS)
    writer.decoder = Fake(rule, batch, window)
    return writer


@pytest.mark.parametrize(("start", "length", "window", "wanted"), [
    (0, 1, 8, 0), (0, 8, 8, 0), (0, 9, 8, 5), (5, 13, 8, 5), (5, 14, 8, 10), (0, 100, 8, 96), (0, 8, 7, 5), (0, 2, 1, 1),
    (1, 3, 1, 2), (0, 3, 2, 2)])
def test_context_start(start, length, window, wanted):
    assert context_start(start, length, window) == wanted


def test_each_text_goes_on_until_its_own_eos(gpt):
    writer, prompts = faked(gpt, plus_one), [[3], [3, 8], [5, 6, 7], [9]]
    wanted = [Text([4, 5, 6, 7, 8], False), Text([9], True), Text([8, 9], True), Text([], True)]
    assert writer.write(prompts, 5, GREEDY, 0) == wanted
    assert prompts == [[3], [3, 8], [5, 6, 7], [9]]
    assert writer.write(prompts, 7, GREEDY, 0)[0] == Text([4, 5, 6, 7, 8, 9], True)


def test_an_ended_text_makes_room_and_keeps_no_batch_going(gpt):
    """Of 2 rows one writes 6 tokens and eos, which take a prefill and 6 steps; the other writes four texts in that time."""
    writer = faked(gpt, plus_one, batch=2)
    texts = writer.write([[3], [7], [9], [9], [9]], 50, GREEDY, 0)
    assert [len(text.tokens) for text in texts] == [6, 2, 0, 0, 0] and all(text.ended for text in texts)
    assert writer.decoder.prefilled == [[3], [7], [9], [9], [9]] and writer.decoder.steps == 6
    writer = faked(gpt, plus_one, batch=2)
    writer.write([[8], [8]], 50, GREEDY, 0)
    assert writer.decoder.steps == 1


def test_nothing_to_write(gpt):
    writer = faked(gpt, plus_one)
    assert writer.write([], 5, GREEDY, 0) == []
    assert writer.write([[3], [4, 5]], 0, GREEDY, 0) == [Text([], False)] * 2
    assert list(writer.stream([3], 0, GREEDY, 0)) == [] and not writer.decoder.prefilled


def test_an_empty_prompt_starts_from_eos(gpt):
    writer = faked(gpt, of_all_it_sees)
    assert writer.write([[]], 4, DRAWN, 0) == writer.write([[EOS]], 4, DRAWN, 0) and writer.decoder.prefilled == [[EOS]] * 2


@pytest.mark.parametrize("window", [1, 2, 3, 8])
def test_what_the_model_sees_when_a_text_outgrows_the_window(gpt, window):
    writer = faked(gpt, of_all_it_sees, window=window)
    prompts = [[3], list(range(3, 12)), list(range(3, 10))]
    for prompt, text in zip(prompts, writer.write(prompts, 20, GREEDY, 0), strict=True):
        tokens, start = list(prompt), 0
        for token in text.tokens:
            start = context_start(start, len(tokens), window)
            assert token == of_all_it_sees(tokens[start:]).argmax()
            tokens.append(token)
        assert len(text.tokens) == 20


def test_random_numbers_follow_from_the_seed_and_the_place_in_the_list(gpt):
    writer, prompts = faked(gpt, of_all_it_sees), [[3], [4], [3], [5, 6], [7]]
    texts = writer.write(prompts, 12, DRAWN, 1)
    assert texts == writer.write(prompts, 12, DRAWN, 1) == faked(gpt, of_all_it_sees, batch=1).write(prompts, 12, DRAWN, 1)
    assert texts[0] != texts[2]
    assert all(a != b for a, b in zip(texts, writer.write(prompts, 12, DRAWN, 2), strict=True))
    assert writer.write([[9, 9], *prompts[1:3]], 12, DRAWN, 1)[1:] == texts[1:3]


def test_the_penalty_sees_prompt_and_text_but_no_other_text(gpt):
    """Logits 3, 2, 1 for tokens 10, 11, 12, halved once they are there: each is taken in turn, then the highest for ever."""
    rule_logits = np.zeros(VOCAB, np.float32)
    rule_logits[10:13] = 9, 8, 7
    sampling = Sampling(0.0, repetition_penalty=2.0)
    texts = faked(gpt, lambda tokens: rule_logits, batch=1, window=2).write([[3], [11, 3, 3], [12, 10]], 5, sampling, 0)
    assert [text.tokens for text in texts] == [[10, 11, 12, 10, 10], [10, 12, 10, 10, 10], [11, 10, 10, 10, 10]]


def test_logits_that_are_not_finite_end_their_text_only(gpt):
    def breaks_at_6(tokens):
        return plus_one(tokens) * (np.nan if tokens[-1] == 6 else 1)

    writer = faked(gpt, breaks_at_6, batch=2)
    assert writer.write([[4], [7], [6], [8]], 9, GREEDY, 0) == [Text([5, 6], False, broken=True), Text([8, 9], True),
                                                                 Text([], False, broken=True), Text([9], True)]
    assert len(writer.decoder.cleared) == 2
    stream = writer.stream([4], 9, GREEDY, 0)
    assert [next(stream), next(stream)] == [5, 6]
    with pytest.raises(FloatingPointError):
        next(stream)


def test_a_stream_gives_what_write_gives_and_no_more_is_computed(gpt):
    writer = faked(gpt, plus_one)
    stream = writer.stream([3], 9, GREEDY, 0)
    assert [next(stream) for _ in range(3)] == [4, 5, 6] and writer.decoder.steps == 2
    assert list(stream) == [7, 8, 9]
    writer = faked(gpt, of_all_it_sees)
    assert list(writer.stream([3], 9, DRAWN, 4)) == writer.write([[3]], 9, DRAWN, 4)[0].tokens


def test_a_stream_that_was_left_for_another_text_can_not_go_on(gpt):
    writer = faked(gpt, plus_one)
    stream = writer.stream([3], 9, GREEDY, 0)
    next(stream)
    assert writer.write([[8]], 1, GREEDY, 0) == [Text([9], False)]
    with pytest.raises(RuntimeError, match="begun another"):
        next(stream)


@pytest.mark.parametrize("window", [0, 25])
def test_a_window_beyond_the_model(gpt, window):
    with pytest.raises(ValueError, match=f"window={window} .* 24"):
        Writer(gpt, 1, window, EOS)


def contexts(prompt: list[int], new: list[int]) -> list[list[int]]:
    """What the model sees before each new token and behind the last one, by the rule alone."""
    tokens, start, found = list(prompt) or [EOS], 0, []
    for token in [*new, None]:
        start = context_start(start, len(tokens), WINDOW)
        found.append(tokens[start:])
        tokens.append(token)
    return found


def uncached(gpt, prompts: list[list[int]], new: int, sampling: Sampling, seed: int) -> tuple[list[Text], list[np.ndarray]]:
    """Texts without a cache, and the probabilities [tokens drawn, vocab] that each was drawn from."""
    network, texts, probabilities = NextTokenLogits(gpt), [], []
    for index, prompt in enumerate(prompts):
        rng, tokens, ended, found = np.random.RandomState([seed, index]), [], False, []
        while len(tokens) < new and not ended:
            context = contexts(prompt, tokens)[-1]
            ids = np.zeros((1, WINDOW), np.int32)
            ids[0, :len(context)] = context
            logits = network(Tensor(ids), Tensor([len(context) - 1], ms.int32)).asnumpy()
            seen = np.zeros((1, VOCAB), bool)
            seen[0, [*(prompt or [EOS]), *tokens]] = True
            found.append(distribution(logits, seen, sampling)[0])
            token = int(choose(logits, seen, sampling, np.array([rng.random_sample()]))[0])
            ended = token == EOS
            tokens += [token] * (not ended)
        texts.append(Text(tokens, ended))
        probabilities.append(np.array(found))
    return texts, probabilities


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN, Sampling(1.0)])
def test_texts_and_distributions_are_those_without_a_cache(gpt, writer, sampling, monkeypatch):
    wanted, probabilities = uncached(gpt, PROMPTS, 40, sampling, seed=3)
    assert sum(text.ended for text in wanted) < len(wanted) and max(len(text.tokens) for text in wanted) == 40
    drawn = {}

    def recording(logits, seen, sampling, draws):
        for p, draw in zip(distribution(logits, seen, sampling), draws, strict=True):
            drawn[draw] = p  # a draw names text and place
        return choose(logits, seen, sampling, draws)

    monkeypatch.setattr("model.writer.choose", recording)
    assert writer.write(PROMPTS, 40, sampling, seed=3) == wanted
    for index, wanted_p in enumerate(probabilities):
        rng = np.random.RandomState([3, index])
        np.testing.assert_allclose([drawn[rng.random_sample()] for _ in wanted_p], wanted_p, atol=1e-5)


def test_a_text_does_not_depend_on_its_company(writer):
    texts = writer.write(PROMPTS, 30, DRAWN, 5)
    for index, prompt in enumerate(PROMPTS):
        others = [[7] * 3] * index
        assert writer.write([*others, prompt], 30, DRAWN, 5)[index] == texts[index]
    assert list(writer.stream(PROMPTS[0], 30, DRAWN, 5)) == texts[0].tokens


def test_a_gpt_that_is_not_finite_writes_nothing_and_one_that_is_again_writes_as_before(gpt, writer):
    texts, p = writer.write(PROMPTS, 10, DRAWN, 5), gpt.embedding.position
    good = p.asnumpy().copy()
    bad = good.copy()
    bad[15:] = np.inf
    try:
        p.set_data(Tensor(bad))
        broken = writer.write(PROMPTS, 10, DRAWN, 5)
    finally:
        p.set_data(Tensor(good))
    assert broken == [Text([], False, broken=True)] * len(PROMPTS) and all(text.tokens for text in texts)
    assert writer.write(PROMPTS, 10, DRAWN, 5) == texts
