"""Validation figures: E1, E2 (uneven rows), D2 (nothing to evaluate), against numpy from the raw logits."""
import math

import numpy as np
import pytest
from mindspore import Tensor

from data.manifest import load_manifest
from data.tokenizer import Tokenizer
from eval.metrics import perplexity, token_scores, unigram_losses
from eval.rows import RowScorer
from eval.stage import Stage
from eval.step import EvalStep
from eval.tasks.held_out import cloze, read_held_out
from eval.tasks.questions import Task
from model import attention, layers
from model import gpt as model_gpt
from model.config import ModelConfig
from model.gpt import GPT
from model.init import initialize
from parallel import collectives
from parallel.mesh import Mesh
from tests.model.uncached import NextTokenLogits
from train.config import load_config

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
    return token_scores(*sums, text_bytes=1)


@pytest.mark.parametrize("batch", [1, 2, 4])
@pytest.mark.parametrize("ranks", [1, 2])
def test_perplexity_is_the_same_for_every_batch_and_rank(gpt, rows, expected, batch, ranks, monkeypatch):
    """E1: the ranks run one after the other; what each would have gathered is put together here."""
    step, parts = EvalStep(gpt, pad_id=0), []
    monkeypatch.setattr(collectives, "gather_arrays", lambda x: np.stack([np.zeros_like(x)] * rank + [x] + [np.zeros_like(x)] *
                                                                         (ranks - rank - 1)))
    for rank in range(ranks):
        parts.append(RowScorer(step, step, Mesh(ranks, rank=rank), batch).score_rows(rows, np.zeros(5, np.int32)))
    scores = token_scores(*sum(parts).sum(0), text_bytes=1)
    assert scores["tokens"] == sum(LENGTHS)
    assert scores["perplexity"] == pytest.approx(expected["perplexity"], rel=1e-5)
    assert scores["accuracy"] == expected["accuracy"]


def test_labels_before_the_first_do_not_count(gpt, rows):
    """The rest of each row has the losses that it has as a whole."""
    step = EvalStep(gpt, pad_id=0)
    whole, tails = (RowScorer(step, step, Mesh(1), 5).score_rows(rows, np.array(first, np.int32))
                    for first in ([0] * 5, [3, 7, 0, 1, 64]))
    heads = [row[:first + 1] for row, first in zip(rows, [3, 7, 0, 1, 64], strict=True)]
    padded = np.array([np.pad(head, (0, 65 - len(head))) for head in heads])
    begun = RowScorer(step, step, Mesh(1), 5).score_rows(padded, np.zeros(5, np.int32))
    assert tails[:, 1].tolist() == [1, 0, 30, 62, 0]
    np.testing.assert_allclose(begun + tails, whole, rtol=1e-5, atol=1e-4)


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
        figures.append([x.asnumpy() for x in EvalStep(network, pad_id=0)(Tensor(repeated), Tensor(np.zeros(5, np.int32)))])
    assert network.embedding.token.shape == (128, 16) and 0 < figures[0][2].sum() < figures[0][1].sum()
    for losses, counts, hits in figures[1:]:
        np.testing.assert_allclose(losses, figures[0][0], rtol=1e-5)
        assert counts.tolist() == figures[0][1].tolist() and hits.tolist() == figures[0][2].tolist()


def test_scores_by_hand():
    # a bit a token is ln 2 nats; 10 tokens spell 5 bytes
    assert token_scores(10 * math.log(2), 10, 4, 5) == {
        "loss": math.log(2), "perplexity": pytest.approx(2.0), "bits_per_byte": 2.0, "accuracy": 0.4, "tokens": 10}
    assert set(token_scores(0, 0, 0, 0).values()) == {None, 0}
    assert perplexity(1e6) == math.inf


def test_unigram_loss_by_hand():
    # counts 3, 0, 1 with one added: p = 4/7, 1/7, 2/7
    assert np.exp(-unigram_losses(np.array([3, 0, 1]))) == pytest.approx([4 / 7, 1 / 7, 2 / 7])


@pytest.fixture(scope="module")
def prepared(tiny_yaml):
    """config, manifest, tokenizer and an evaluation step for them."""
    tiny_config = load_config(tiny_yaml)
    manifest = load_manifest(tiny_config.data)
    model = tiny_config.model.model_copy(update={"vocab_size": manifest.tokenizer.vocab_size})
    gpt = GPT(model)
    initialize(gpt, model, 1)
    return tiny_config, manifest, Tokenizer.load(tiny_config.data.prepared_dir / "tokenizer.model"), EvalStep(gpt, 0)


def stage(prepared, batch=4, num_samples=1000, tasks=(), manifest=None):
    config, whole, tokenizer, step = prepared
    return Stage(RowScorer(step, step, Mesh(1), batch), tokenizer, manifest or whole, config.data, num_samples, tasks)


def test_each_validation_sample_counts_once(prepared):
    config, manifest, tokenizer, _ = prepared
    results = [stage(prepared, batch).run() for batch in (1, 3, 64)]
    for name in ("en", "zh"):
        assert {r["corpora"][name]["tokens"] for r in results} == {manifest.sets[f"valid_{name}"].tokens}
        assert len({round(r["corpora"][name]["perplexity"], 4) for r in results}) == 1
    both = results[0]["all"]
    assert both["tokens"] == sum(manifest.sets[f"valid_{n}"].tokens for n in ("en", "zh"))
    assert 1 < both["unigram_perplexity"] < tokenizer.vocab_size
    assert both["loss"] * both["tokens"] == pytest.approx(sum(s["loss"] * s["tokens"] for s in results[0]["corpora"].values()))


def test_bits_per_byte_count_the_bytes_of_the_text(prepared):
    config, manifest, tokenizer, _ = prepared
    text = read_held_out(manifest, config.data, "valid_en", tokenizer).text
    scores = stage(prepared).run()["corpora"]["en"]
    in_bytes = scores["loss"] * scores["tokens"] / math.log(2) / scores["bits_per_byte"]
    # a sample's first token is no label, and between documents stands one mark that is no text
    assert len(text.encode()) * 0.95 < in_bytes < len(text.encode())


def test_a_share_takes_the_first_samples_and_questions(prepared):
    config, manifest, tokenizer, _ = prepared
    asked = cloze(read_held_out(manifest, config.data, "valid_en", tokenizer), tokenizer, config.data.seq_length, 8)
    whole, part, none = (stage(prepared, tasks=[asked]).run(1.0, share) for share in (1.0, 0.5, 0.0))
    count = len(asked.questions) // 2
    assert whole["tasks"][asked.name]["items"][:count] == part["tasks"][asked.name]["items"] and count > 1
    assert not none["tasks"] and "time budget" in none["not_computed"][asked.name]
    in_pairs = stage(prepared, batch=2, tasks=[asked])
    assert [in_pairs._count(asked, share) for share in (0.0, 0.2, 0.3, 0.7, 1.0)] == [0, 0, 2, 4, 8]  # whole batches
    less = stage(prepared, num_samples=8).run(0.5)["corpora"]["en"]
    assert less == stage(prepared, num_samples=4).run()["corpora"]["en"] and less["samples"] == 4


def test_no_questions_are_not_computed(prepared):
    report = stage(prepared, tasks=[Task("none", "choice", ())]).run()
    assert report["tasks"]["none"]["accuracy"] is None and "none" in report["not_computed"]


def test_an_empty_validation_set_is_not_computed(prepared):
    manifest = prepared[1]
    empty = manifest.sets["valid_zh"].model_copy(update={"samples": 0})
    result = stage(prepared, manifest=manifest.model_copy(update={"sets": {**manifest.sets, "valid_zh": empty}})).run()
    assert result["corpora"]["zh"]["perplexity"] is None and "zh" in result["not_computed"]
    assert result["all"]["tokens"] == result["corpora"]["en"]["tokens"] > 0
