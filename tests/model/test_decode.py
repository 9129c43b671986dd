"""model/decode.py: the cache gives the logits that the whole text gives, and leaves the GPT as it is."""
import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, ops

from model import attention, gpt, layers
from model.config import ModelConfig
from model.decode import PIECE, Decoder
from model.init import initialize

VOCAB, SEQ = 50, 100  # more than a piece, less than two: the last piece of a long text overlaps the first
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(autouse=True)
def graph_mode():
    before = ms.get_context("mode")
    ms.set_context(mode=ms.GRAPH_MODE)
    yield
    ms.set_context(mode=before)


@pytest.fixture
def plain(monkeypatch):
    """plain() -> from now on the cells are built with MindSpore's own kernels, as on Ascend."""
    def patch():
        for module in (layers, attention, gpt):
            monkeypatch.setattr(module, "on_cpu", lambda: False)
    return patch


def make_gpt(num_layers: int = 3, **settings) -> gpt.GPT:
    """Weights large enough that attention is far from uniform."""
    config = ModelConfig(**{"vocab_size": VOCAB, "hidden_size": 24, "num_layers": num_layers, "num_heads": 3, "seq_length": SEQ,
                            "init_std": 0.3, **settings})
    network = gpt.GPT(config)
    initialize(network, config, seed=5)
    return network


def full_logits(network: gpt.GPT, ids: np.ndarray) -> np.ndarray:
    """Without a cache: ids [batch, seq] -> logits [batch, seq, vocab]."""
    x, table = network(Tensor(ids), ops.zeros((len(ids),), ms.int32))
    return gpt.Head()(x, table).asnumpy().reshape(*ids.shape, -1)[..., :VOCAB]


def random_ids(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.RandomState(seed).randint(0, VOCAB, (rows, SEQ)).astype(np.int32)


def continue_rows(decoder: Decoder, ids: np.ndarray, lengths: list[int], steps: int) -> np.ndarray:
    """Prefill each row with so many of its ids, then take the following ones one by one: logits [steps + 1, batch, vocab]."""
    found = [[decoder.prefill(i, row[:n].tolist()) for i, (row, n) in enumerate(zip(ids, lengths, strict=True))]]
    for step in range(steps):
        at = np.array(lengths) + step
        found.append(decoder.step(ids[np.arange(len(ids)), at].tolist(), at.tolist()))
    return np.array(found)


@pytest.mark.parametrize("form", ["cpu forms", "plain cells"])
@pytest.mark.parametrize("settings", [{"num_layers": 1, "num_heads": 1}, {"num_layers": 4}, {"vocab_multiple": 64}])
def test_logits_at_every_position_of_texts_of_different_lengths(form, settings, plain):
    if form == "plain cells":
        plain()
    network, ids, lengths = make_gpt(**settings), random_ids(4), [1, 17, PIECE, PIECE + 1]
    wanted, decoder = full_logits(network, ids), Decoder(network, 4, SEQ)
    assert np.abs(np.diff(wanted, axis=1)).max(-1).min() > 0.1  # each position has logits of its own
    steps = SEQ - max(lengths)
    for step, found in enumerate(continue_rows(decoder, ids, lengths, steps)):
        np.testing.assert_allclose(found, wanted[np.arange(4), np.array(lengths) + step - 1], **CLOSE)
    for n in range(1, SEQ + 1):
        np.testing.assert_allclose(decoder.prefill(n % 4, ids[0, :n].tolist()), wanted[0, n - 1], **CLOSE)


@pytest.mark.parametrize("window", [1, 2, 65])
def test_windows_shorter_than_the_model(window):
    network, ids = make_gpt(1), random_ids(2)
    wanted, decoder = full_logits(network, ids[:, :window]), Decoder(network, 2, window)
    for n in range(1, window + 1):
        np.testing.assert_allclose(decoder.prefill(0, ids[0, :n].tolist()), wanted[0, n - 1], **CLOSE)
    decoder.prefill(1, ids[1, :1].tolist())
    for at in range(1, window):
        found = decoder.step(ids[[0, 1], [0, at]].tolist(), [0, at])
        np.testing.assert_allclose(found, wanted[[0, 1], [0, at]], **CLOSE)


def test_a_row_is_equal_to_the_bit_whatever_the_others_hold():
    decoder, ids = Decoder(make_gpt(2), 3, SEQ), random_ids(3)
    wanted = continue_rows(decoder, ids, [10, 3, 70], 12)[:, 0]
    others = random_ids(3, seed=1)
    found = [decoder.prefill(0, ids[0, :10].tolist())]
    for at in range(10, 22):
        found.append(decoder.step([ids[0, at], 0, 7], [at, 0, 99])[0])
        decoder.prefill(2, others[2, :at].tolist())
    np.testing.assert_array_equal(found, wanted)


def test_weights_are_the_gpt_s_own():
    """A change is seen at once; the GPT has no parameter more, and each its name."""
    network, ids = make_gpt(2), random_ids(2)
    names, trainable = [[p.name for p in ps] for ps in (network.get_parameters(), network.trainable_params())]
    decoder = Decoder(network, 2, SEQ)
    before = continue_rows(decoder, ids, [5, 9], 3)
    for name in ("embedding.token", "embedding.position", "blocks.1.attention.value.weight", "blocks.0.mlp.up.bias", "norm.bias"):
        p = dict(network.parameters_and_names())[name]
        p.set_data(Tensor(p.asnumpy() * 1.5 + 0.1))
        wanted, after = full_logits(network, ids), continue_rows(decoder, ids, [5, 9], 3)
        assert np.abs(after - before).max() > 0.1
        np.testing.assert_allclose(after[3], wanted[[0, 1], [7, 11]], **CLOSE)
        before = after
    assert [p.name for p in network.get_parameters()] == names == [name for name, _ in network.parameters_and_names()]
    assert [p.name for p in network.trainable_params()] == trainable
    cache = [p for p in decoder.cached.get_parameters() if p.name not in names]
    assert len(cache) == 4 and not any(p.requires_grad for p in cache)


def test_training_is_left_alone_and_dropout_plays_no_part():
    """Loss and gradients of the same graph are equal to the bit with decoding in between, whatever mode the GPT was in."""
    network, same, ids = make_gpt(1, dropout=0.5), make_gpt(1), random_ids(2)
    loss = gpt.GPTLoss(network, pad_id=0)
    loss.set_train(True)
    function = ms.value_and_grad(loss, None, loss.trainable_params())

    def values() -> list[np.ndarray]:
        sums, gradients = function(Tensor(ids[:, :17]), Tensor([3, 4], ms.int32))
        return [sums.asnumpy(), *(g.asnumpy() for g in gradients)]

    before, decoder = values(), Decoder(network, 2, SEQ)
    assert np.abs(full_logits(network, ids) - full_logits(same, ids)).max() > 0.1  # dropout is on
    wanted = continue_rows(Decoder(same, 2, SEQ), ids, [5, 70], 3)
    for training in (True, False):
        network.set_train(training)
        np.testing.assert_allclose(continue_rows(decoder, ids, [5, 70], 3), wanted, **CLOSE)
        assert {cell.training for _, cell in network.cells_and_names()} == {training}
    network.set_train(True)
    for a, b in zip(before, values(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("kind", ["selective", "full"])
def test_a_gpt_that_recomputes(kind):
    network, ids = make_gpt(1), random_ids(2)
    wanted = full_logits(network, ids)
    gpt.recompute(network, kind, "all")
    found = continue_rows(Decoder(network, 2, SEQ), ids, [5, 70], 3)
    np.testing.assert_allclose(found[3], wanted[[0, 1], [7, 72]], **CLOSE)


def test_what_is_not_finite_goes_with_its_row():
    network, ids = make_gpt(1), random_ids(2) % 40
    decoder = Decoder(network, 2, SEQ)
    wanted = continue_rows(decoder, ids, [5, 70], 2)
    p = network.embedding.token
    good = p.asnumpy().copy()
    bad = good.copy()
    bad[45] = np.nan
    p.set_data(Tensor(bad))
    assert np.isnan(decoder.prefill(0, [1] * 80 + [45] + [1] * 5)).all()
    p.set_data(Tensor(good))
    assert np.isnan(decoder.prefill(0, ids[0, :5].tolist())).all()  # seen through the mask
    decoder.clear(0)
    np.testing.assert_array_equal(continue_rows(decoder, ids, [5, 70], 2), wanted)
