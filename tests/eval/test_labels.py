"""What the network is trained on, asked of the network; a batch against the text that it was cut from."""
import mindspore as ms
import numpy as np
import pytest

from data.tokenizer import PAD_ID
from eval.health.labels import breaks, what_is_trained, wrong_labels
from model import gpt
from tests.zoo.test_sick_network import shuffled, unshifted


@pytest.fixture
def tokens():
    """4 samples of 8, of which one ends early."""
    found = np.random.RandomState(1).randint(4, 60, (4, 9)).astype(np.int32)
    found[3, 5:] = PAD_ID
    return found


def test_ids_and_labels_are_those_that_the_loss_is_given(tokens):
    ids, labels, counted = what_is_trained(tokens)
    assert np.array_equal(ids, tokens[:, :-1]) and np.array_equal(labels, tokens[:, 1:]) and counted == 4 * 8 - 4
    assert wrong_labels(tokens) == 0.0


def uncounted(self, tokens):
    """Every label counts, pads too."""
    batch, t = tokens.shape
    labels = self.reshape(self.slice(tokens, (0, 1), (batch, t), (1, 1)), (-1,))
    return labels, self.cast(self.not_equal(labels, self.pad - 1), ms.float32)


@pytest.mark.parametrize("fault, least", [(unshifted, 0.8), (shuffled, 0.8), (uncounted, 0.1)])
def test_other_labels_are_seen(tokens, monkeypatch, fault, least):
    monkeypatch.setattr(gpt.Labels, "construct", fault)
    assert wrong_labels(tokens) >= least


def test_samples_against_the_stream():
    stream = np.arange(10, 10 + 5 * 8 + 1, dtype=np.int32)
    samples = np.stack([stream[i * 8:i * 8 + 9] for i in range(5)])
    batch, following = samples[:4], samples[1:]
    assert breaks(batch, batch, following) == 0.0
    assert breaks(batch[::-1], batch, following) == 1.0  # another order than the files'
    assert breaks(batch, batch, following + 1) == 0.75   # shifted where they were cut; one might be the end of a corpus
    last = following.copy()
    last[2] = 5  # the next corpus
    assert breaks(batch, batch, last) == 0.0
    assert breaks(batch, batch, np.full_like(following, PAD_ID)) == 0.0  # nothing follows
