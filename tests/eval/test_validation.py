"""Validation figures: E1, E2 (uneven rows), D2 (nothing to evaluate), against numpy from the raw logits."""
import math

import numpy as np
import pytest
from mindspore import Tensor

from data.manifest import load_manifest
from eval.metrics import TokenMetric, perplexity, together, token_scores, unigram_loss
from eval.stage import Validation
from eval.step import EvalStep
from model import attention, layers
from model import gpt as model_gpt
from model.config import ModelConfig
from model.generate import NextTokenLogits
from model.gpt import GPT
from model.init import initialize
from parallel.mesh import Mesh

LENGTHS = (4, 7, 30, 63, 64)
CONFIG = ModelConfig(vocab_size=100, hidden_size=16, num_layers=1, num_heads=2, seq_length=64, init_std=0.3)


@pytest.fixture(scope="module")
def gpt():
    gpt = GPT(CONFIG)
    initialize(gpt, CONFIG, seed=5)
    return gpt


@pytest.fixture(scope="module")
def rows():
    rng = np.random.RandomState(0)
    tokens = np.zeros((5, 65), np.int32)
    for row, length in zip(tokens, LENGTHS, strict=True):
        row[:length + 1] = rng.randint(4, 100, length + 1)
    return tokens


@pytest.fixture(scope="module")
def expected(gpt, rows):
    """Loss sum, tokens and hits from the logits of each prefix, in float64 numpy."""
    logits_of, sums = NextTokenLogits(gpt), np.zeros(3)
    for row, length in zip(rows, LENGTHS, strict=True):
        every_position = Tensor(np.tile(row[:64], (64, 1))), Tensor(np.arange(64, dtype=np.int32))
        logits = logits_of(*every_position).asnumpy()[:length].astype(np.float64)
        log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        labels = row[1:length + 1]
        sums += -log_p[np.arange(length), labels].sum(), length, (logits.argmax(1) == labels).sum()
    return token_scores(*sums)


@pytest.mark.parametrize("batch", [1, 2, 4])
@pytest.mark.parametrize("ranks", [1, 2])
def test_perplexity_is_the_same_for_every_batch_and_rank(gpt, rows, expected, batch, ranks):
    step, sums = EvalStep(gpt, pad_id=0), np.zeros(3)
    steps = -(-len(rows) // (batch * ranks))
    padded = np.zeros((steps * batch * ranks, 65), np.int32)
    padded[:5] = rows
    for rank in np.split(padded, ranks):
        metric = TokenMetric()
        for tokens in np.split(rank, steps):
            metric.update(*step(Tensor(tokens)))
        scores = metric.eval()
        sums += np.array([scores["loss"] or 0, 1, scores["accuracy"] or 0]) * scores["tokens"]
    scores = token_scores(*sums)
    assert scores["tokens"] == sum(LENGTHS)
    assert scores["perplexity"] == pytest.approx(expected["perplexity"], rel=1e-5)
    assert scores["accuracy"] == expected["accuracy"]


@pytest.mark.parametrize("on_cpu", [True, False])
def test_padding_of_the_token_table_changes_no_figure(rows, monkeypatch, on_cpu):
    repeated = np.repeat(rows[:, 1:14], 5, axis=1)  # so that some guesses are right
    for module in (layers, attention, model_gpt):
        monkeypatch.setattr(module, "on_cpu", lambda: on_cpu)
    figures = []
    for padding in (None, 0.0, 100.0):
        config = CONFIG if padding is None else CONFIG.model_copy(update={"vocab_multiple": 64})
        network = GPT(config)
        initialize(network, config, seed=5)
        table = network.embedding.token.asnumpy().copy()
        table[100:] = padding
        network.embedding.token.set_data(Tensor(table))
        figures.append([x.asnumpy() for x in EvalStep(network, pad_id=0)(Tensor(repeated))])
    assert network.embedding.token.shape == (128, 16) and 0 < figures[0][2].sum() < figures[0][1].sum()
    for losses, counts, hits in figures[1:]:
        np.testing.assert_allclose(losses, figures[0][0], rtol=1e-5)
        assert counts.tolist() == figures[0][1].tolist() and hits.tolist() == figures[0][2].tolist()


def test_the_sets_together_are_one_set():
    parts = [token_scores(30.0, 10, 2), token_scores(5.0, 90, 45), token_scores(0, 0, 0)]
    assert together(parts) == token_scores(35.0, 100, 47.0)
    assert together([]) == together([token_scores(0, 0, 0)]) == {"loss": None, "perplexity": None, "accuracy": None, "tokens": 0}


def test_no_tokens_give_no_number():
    metric = TokenMetric()
    assert metric.eval() == {"loss": None, "perplexity": None, "accuracy": None, "tokens": 0}
    assert perplexity(1e6) == math.inf


def test_unigram_loss_by_hand():
    # counts 3, 0, 1 with one added: p = 4/7, 1/7, 2/7
    assert np.exp(-unigram_loss(np.array([3, 0, 1]), np.array([0, 1, 2]))) == pytest.approx([4 / 7, 1 / 7, 2 / 7])


def test_each_validation_sample_counts_once(tiny):
    config = tiny()
    manifest = load_manifest(config.data)
    model = config.model.model_copy(update={"vocab_size": manifest.tokenizer.vocab_size})
    gpt = GPT(model)
    initialize(gpt, model, 1)
    step = EvalStep(gpt, 0)
    results = [Validation(step, step, manifest, config.data, Mesh(1), None, batch).run() for batch in (1, 3, 64)]
    for name in ("en", "zh"):
        assert {r["corpora"][name]["tokens"] for r in results} == {manifest.sets[f"valid_{name}"].tokens}
        assert len({round(r["corpora"][name]["perplexity"], 4) for r in results}) == 1
    assert results[0]["all"]["tokens"] == sum(manifest.sets[f"valid_{n}"].tokens for n in ("en", "zh"))
    assert 1 < results[0]["unigram_perplexity"] < manifest.tokenizer.vocab_size


def test_an_empty_validation_set_is_not_computed(tiny):
    config = tiny()
    manifest = load_manifest(config.data)
    empty = manifest.sets["valid_zh"].model_copy(update={"samples": 0})
    manifest = manifest.model_copy(update={"sets": {**manifest.sets, "valid_zh": empty}})
    model = config.model.model_copy(update={"vocab_size": manifest.tokenizer.vocab_size})
    step = EvalStep(GPT(model), 0)
    result = Validation(step, step, manifest, config.data, Mesh(1), None, 4).run()
    assert result["corpora"]["zh"]["perplexity"] is None and "zh" in result["not_computed"]
    assert result["all"]["tokens"] == result["corpora"]["en"]["tokens"] > 0
