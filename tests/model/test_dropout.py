"""Dropout: the right share, no pattern, and a mask that depends on seed, sample, token, column and layer alone."""
import zlib

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

from model.config import ModelConfig
from model.gpt import GPT, Embedding
from model.init import initialize
from model.layers import Dropout, Mix, RowKeys

SEQ, COLUMNS, SIGMAS, GOLDEN = 32, 96, 5.0, 2123895310


@pytest.fixture(autouse=True)
def graph_mode():
    ms.set_context(mode=ms.GRAPH_MODE)


class Masked(nn.Cell):
    """x [batch * seq, columns] under the masks of samples at `positions`."""

    def __init__(self, rate, seed, salt, columns, seq_length):
        super().__init__()
        self.keys, self.dropout, self.t = RowKeys(rate, seed, seq_length), Dropout(rate, (1, columns), salt), seq_length

    def construct(self, x, positions):
        return self.dropout(x, self.keys(positions, self.t))


def masks(positions, rate=0.2, seed=7, salt=1, columns=COLUMNS) -> np.ndarray:
    """float64 [samples, seq, columns]: 1 where an element is kept, 0 where it is dropped."""
    network = Masked(rate, seed, salt, columns, SEQ).set_train()
    y = network(Tensor(np.ones((len(positions) * SEQ, columns), np.float32)), Tensor(positions, ms.int32)).asnumpy()
    assert np.isin(y, [0, np.float32(1 / (1 - rate))]).all()
    return (y != 0).astype(np.float64).reshape(len(positions), SEQ, columns)


def correlation(a: np.ndarray, b: np.ndarray, rate: float = 0.2) -> float:
    """Between two masks, in standard deviations of what independent masks of this rate show."""
    return float(((a - 1 + rate) * (b - 1 + rate)).sum() / (rate * (1 - rate) * np.sqrt(a.size)))


def test_the_hash_is_of_32_bits_without_sign():
    """In NumPy's unsigned numbers: products wrap around, shifts bring in zeros."""
    x = np.random.RandomState(0).randint(-2**31, 2**31, 1000, np.int64).astype(np.int32)
    x[:3] = 0, -1, -2**31
    expected = x.view(np.uint32)
    for factor in (0x2C1B3C6D, 0x297A2D39):
        expected = expected * np.uint32(factor)
        expected = expected ^ (expected >> np.uint32(15))
    np.testing.assert_array_equal(Mix()(Tensor(x)).asnumpy().view(np.uint32), expected)


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.9])
def test_share_of_zeros(rate):
    m = masks(np.arange(64), rate)
    assert abs((1 - m).mean() - rate) < SIGMAS * np.sqrt(rate * (1 - rate) / m.size)  # the binomial's bound
    for axes in ((1, 2), (0, 2), (0, 1)):  # each sample, token and column has its share, too
        shares = (1 - m).mean(axes)
        assert np.abs(shares - rate).max() < SIGMAS * np.sqrt(rate * (1 - rate) * shares.size / m.size)


def test_scaling_keeps_the_mean():
    x = np.random.RandomState(0).standard_normal((64 * SEQ, COLUMNS)).astype(np.float32) + 3
    y = Masked(0.3, 7, 1, COLUMNS, SEQ).set_train()(Tensor(x), Tensor(np.arange(64), ms.int32)).asnumpy()
    kept = y != 0
    np.testing.assert_allclose(y[kept], x[kept] / 0.7, rtol=1e-6)
    assert abs(y.mean() - x.mean()) < SIGMAS * np.sqrt((x**2).mean() * 0.3 / 0.7 / x.size)


def test_the_masks_never_change_unnoticed():
    """A golden value: a change here breaks the resuming of every run with dropout."""
    assert zlib.crc32(np.packbits(masks([0, 1, 2**31 - 1, -2**31, -1]).astype(bool)).tobytes()) == GOLDEN


def test_the_same_seed_and_position_give_the_same_mask():
    np.testing.assert_array_equal(masks(np.arange(4)), masks(np.arange(4)))


def test_a_sample_alone_has_the_mask_that_it_has_in_a_batch():
    positions = np.array([5, 1000000, 17, 2**31 - 1])
    together = masks(positions)
    for i, position in enumerate(positions):
        np.testing.assert_array_equal(masks(np.array([position]))[0], together[i])


def test_a_shorter_text_has_the_mask_of_the_longer_ones_beginning():
    """The keys of tokens and columns do not depend on how many there are in x."""
    class Shorter(nn.Cell):
        def __init__(self):
            super().__init__()
            self.keys, self.dropout = RowKeys(0.2, 7, SEQ), Dropout(0.2, (1, COLUMNS), 1)

        def construct(self, x, positions):
            return self.dropout(x, self.keys(positions, 10))

    y = Shorter().set_train()(Tensor(np.ones((30, 50), np.float32)), Tensor([0, 1, 2], ms.int32)).asnumpy()
    np.testing.assert_array_equal(y.reshape(3, 10, 50) != 0, masks(np.arange(3))[:, :10, :50] != 0)


def test_other_seeds_and_layers_have_other_masks():
    positions = np.arange(64)
    found = [masks(positions, salt=salt) for salt in (1, 2, 3)] + [masks(positions, seed=seed) for seed in (8, 1234)]
    for i, a in enumerate(found):
        for b in found[:i]:
            assert (a != b).any()
            assert abs(correlation(a, b)) < SIGMAS


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_neighbours_do_not_correlate(axis):
    """Of samples (0), tokens (1) and columns (2), at distances where a weak hash would show a pattern."""
    m = np.moveaxis(masks(np.arange(256)), axis, 0)
    for distance in (1, 2, 3, 4, 8, 16):
        assert abs(correlation(m[distance:], m[:-distance])) < SIGMAS


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_pairs_do_not_correlate(axis):
    """Every pair of samples, tokens or columns: their correlations spread as those of independent masks."""
    m = np.moveaxis(masks(np.arange(64)), axis, 0).reshape((64, SEQ, COLUMNS)[axis], -1)
    x = (m - 0.8) / np.sqrt(0.2 * 0.8)
    pairs = (x @ x.T / np.sqrt(x.shape[1]))[np.triu_indices(len(x), 1)]
    assert abs(pairs.mean()) < SIGMAS / np.sqrt(pairs.size)
    assert abs(pairs.std() - 1) < SIGMAS / np.sqrt(2 * pairs.size)
    assert np.abs(pairs).max() < 6


def test_rectangles_do_not_correlate():
    """The parity of the four corners (two rows, two columns): what key xor key could leave where pairs show nothing."""
    x = (masks(np.arange(256)).reshape(-1, COLUMNS) - 0.8) / np.sqrt(0.2 * 0.8)
    rng = np.random.RandomState(0)
    rows, columns = rng.permutation(len(x)).reshape(2, -1), rng.permutation(COLUMNS).reshape(2, -1)
    corners = [x[np.ix_(r, c)] for r in rows for c in columns]
    product = corners[0] * corners[1] * corners[2] * corners[3]
    assert abs(product.mean()) < SIGMAS / np.sqrt(product.size)


def test_off_when_not_training():
    x = np.random.RandomState(0).standard_normal((2 * SEQ, COLUMNS)).astype(np.float32)
    network = Masked(0.5, 7, 1, COLUMNS, SEQ)
    positions = Tensor([0, 1], ms.int32)
    assert (network.set_train()(Tensor(x), positions).asnumpy() != x).any()
    np.testing.assert_array_equal(network.set_train(False)(Tensor(x), positions).asnumpy(), x)
    assert (network.set_train()(Tensor(x), positions).asnumpy() != x).any()


def test_gradient_goes_where_the_value_went():
    network = Masked(0.5, 7, 1, COLUMNS, SEQ).set_train()
    x, positions = Tensor(np.ones((SEQ, COLUMNS), np.float32)), Tensor([3], ms.int32)
    gradient = ms.grad(network)(x, positions).asnumpy()
    np.testing.assert_array_equal(gradient, network(x, positions).asnumpy())


def test_the_embedding_drops_by_the_salt_0():
    config = ModelConfig(vocab_size=23, hidden_size=COLUMNS, num_heads=1, seq_length=SEQ, dropout=0.2)

    class Embedded(nn.Cell):
        def __init__(self):
            super().__init__()
            self.keys, self.embedding = RowKeys(0.2, 7, SEQ), Embedding(config, 23)

        def construct(self, ids, positions):
            return self.embedding(ids, self.keys(positions, ids.shape[1]))

    network = Embedded().set_train()
    network.embedding.token.set_data(Tensor(np.ones((23, COLUMNS), np.float32)))  # and the positions' part is 0
    y = network(Tensor(np.zeros((3, SEQ)), ms.int32), Tensor([4, 5, 2**31 - 1], ms.int32)).asnumpy()
    np.testing.assert_array_equal(y.reshape(3, SEQ, COLUMNS) != 0, masks([4, 5, 2**31 - 1], salt=0) != 0)


def test_the_model_with_dropout():
    """Attention, residual and embedding dropout: the same output for a sample alone and in a batch; none in evaluation."""
    config = ModelConfig(vocab_size=23, hidden_size=16, num_layers=2, num_heads=2, seq_length=8, dropout=0.3, init_std=0.3)
    network = GPT(config, seed=5)
    initialize(network, config, seed=1)
    ids = Tensor(np.random.RandomState(0).randint(0, 23, (3, 8)), ms.int32)

    def hidden(ids, positions):
        return network(ids, Tensor(positions, ms.int32))[0].asnumpy().reshape(len(positions), 8, 16)

    network.set_train()
    together = hidden(ids, [10, 11, 12])
    for i in range(3):
        np.testing.assert_allclose(hidden(ids[i:i + 1], [10 + i])[0], together[i], rtol=1e-5, atol=1e-5)
    assert np.abs(hidden(ids, [20, 11, 12]) - together)[0].max() > 0.1
    np.testing.assert_allclose(hidden(ids, [20, 11, 12])[1:], together[1:], rtol=1e-5, atol=1e-5)
    network.set_train(False)
    np.testing.assert_array_equal(hidden(ids, [10, 11, 12]), hidden(ids, [20, 21, 22]))
