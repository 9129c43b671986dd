"""The figures that every score is made of, against transformers' loss and a computation from its logits (tests/golden)."""
import mindspore as ms
import numpy as np
import pytest
from safetensors.numpy import load_file

from eval.metrics import token_scores
from eval.rows import RowScorer
from eval.step import EvalStep
from parallel.mesh import Mesh
from tests.model.test_gpt2_golden import FIGURES, GOLDEN, load_gpt

PAD = FIGURES["pad"]


@pytest.fixture(scope="module")
def scored():
    """Tokens [4, 17], transformers' log-probabilities of what follows each but the last [4, 16, vocab], and our scorer."""
    ms.set_context(mode=ms.GRAPH_MODE)
    expected = load_file(GOLDEN / "expected.safetensors")
    logits = expected["logits"].astype(np.float64)
    logs = logits - logits.max(-1, keepdims=True)
    logs -= np.log(np.exp(logs).sum(-1, keepdims=True))
    tokens = np.pad(expected["tokens"], ((0, 0), (0, 1)), constant_values=PAD).astype(np.int32)
    step = EvalStep(load_gpt(), PAD)
    return tokens, logs, RowScorer(step, step, Mesh(1), 3)  # 3 does not divide 4: rows of pad fill up


@pytest.mark.parametrize("first", [[0, 0, 0, 0], [3, 4, 15, 10]])
def test_sums_of_each_row(scored, first):
    tokens, logs, scorer = scored
    found = scorer.score_rows(tokens, np.array(first, np.int32))
    for row, ahead, p, sums in zip(tokens, first, logs, found, strict=True):
        counted = [i for i in range(ahead, 16) if row[i + 1] != PAD]
        wanted = (-sum(p[i, row[i + 1]] for i in counted), len(counted), sum(p[i].argmax() == row[i + 1] for i in counted))
        assert sums == pytest.approx(wanted, rel=1e-6, abs=1e-9)


def test_loss_perplexity_and_accuracy(scored):
    tokens, logs, scorer = scored
    loss, count, hits = scorer.score_rows(tokens, np.zeros(4, np.int32)).sum(0)
    scores = token_scores(loss, count, hits, text_bytes=100)
    assert scores["loss"] == pytest.approx(FIGURES["loss"], rel=1e-6)  # transformers' own
    assert scores["perplexity"] == pytest.approx(np.exp(FIGURES["loss"]), rel=1e-5)
    labels, guesses = tokens[:, 1:], logs.argmax(-1)
    assert scores["accuracy"] == (guesses == labels)[labels != PAD].mean()
    assert scores["bits_per_byte"] == pytest.approx(FIGURES["loss"] * count / np.log(2) / 100, rel=1e-6)
