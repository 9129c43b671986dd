"""The cells of model/cpu against the plain ones: the same values and gradients within float32 rounding, for ragged sizes."""
import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from model import attention, gpt, layers
from model.config import ModelConfig
from model.cpu import compiled, pure
from model.init import initialize

ROUNDING = 3e-6  # of the norm
FORMS = [pure, compiled]


@pytest.fixture(autouse=True)
def graph_mode():
    ms.set_context(mode=ms.GRAPH_MODE)


class Weighted(nn.Cell):
    """sum(weight * the cell's first output): its gradient is the cell's for `weight` as the gradient that comes in."""

    def __init__(self, cell, single):
        super().__init__()
        self.cell, self.single = cell, single

    def construct(self, weight, *inputs):
        out = self.cell(*inputs)
        y = out if self.single else out[0]
        return ops.sum(weight * y), y


def evaluate(cell: nn.Cell, weight: np.ndarray, inputs: tuple, count: int, single: bool) -> list[np.ndarray]:
    """The cell's value and its gradients by the first `count` inputs."""
    function = ms.value_and_grad(Weighted(cell, single), tuple(range(1, count + 1)), None, has_aux=True)
    (_, y), gradients = function(*(Tensor(a) for a in (weight, *inputs)))
    return [y.asnumpy(), *(g.asnumpy() for g in (gradients if count > 1 else (gradients,)))]


def assert_same(form: nn.Cell, plain: nn.Cell, shape: tuple, inputs: tuple, count: int, form_single=False, plain_single=False):
    weight = np.random.RandomState(9).standard_normal(shape).astype(np.float32)
    found = evaluate(form, weight, inputs, count, form_single)
    wanted = evaluate(plain, weight, inputs, count, plain_single)
    for a, b in zip(found, wanted, strict=True):
        assert a.shape == b.shape
        assert np.linalg.norm(a - b) <= ROUNDING * np.linalg.norm(b)
        assert np.linalg.norm(b) > 0


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return (np.random.RandomState([seed, *shape]).standard_normal(shape) * scale).astype(np.float32)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (7, 5), (37, 13)])
def test_column_sum(rows, columns):
    x = normal(rows, columns)
    np.testing.assert_allclose(pure.ColumnSum()(Tensor(x)).asnumpy(), x.astype(np.float64).sum(0), rtol=1e-5, atol=1e-6)


# Few rows, whole and ragged tiles, more columns and depth than a block has.
PRODUCTS = [(1, 3, 1), (7, 5, 11), (15, 300, 40), (16, 256, 48), (37, 13, 5), (37, 517, 33), (251, 300, 31), (600, 40, 65)]


@pytest.mark.parametrize(("rows", "n_in", "n_out"), PRODUCTS)
@pytest.mark.parametrize("cpu", FORMS)
def test_product(cpu, rows, n_in, n_out):
    assert_same(cpu.Product(), layers.Product(), (rows, n_out), (normal(rows, n_in), normal(n_out, n_in)), 2, True, True)


@pytest.mark.parametrize("cpu", FORMS)
def test_square_sums(cpu):
    tensors = [normal(*shape) for shape in ((1,), (3, 5), (4096,), (5000, 3), (2, 3, 4))]
    found = cpu.SquareSums()(tuple(Tensor(t) for t in tensors)).asnumpy()
    np.testing.assert_allclose(found, [np.square(t.astype(np.float64)).sum() for t in tensors], rtol=2e-6)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_square_sums_of_what_is_not_finite(bad):
    tensors = [normal(5), normal(9000)]
    tensors[1][4097] = bad
    found = compiled.SquareSums()(tuple(Tensor(t) for t in tensors)).asnumpy()
    assert np.isfinite(found).tolist() == [True, False]


@pytest.mark.parametrize(("rows", "n_in", "n_out"), PRODUCTS)
@pytest.mark.parametrize("cpu", FORMS)
def test_affine(cpu, rows, n_in, n_out):
    inputs = normal(rows, n_in), normal(n_out, n_in), normal(n_out)
    assert_same(cpu.Affine(), layers.Affine(), (rows, n_out), inputs, 3, True, True)


@pytest.mark.parametrize(("rows", "hidden"), [(1, 5), (7, 15), (37, 33)])
@pytest.mark.parametrize("cpu", FORMS)
def test_normalize(cpu, rows, hidden):
    inputs = normal(rows, hidden, scale=3.0) + 2, 1 + normal(hidden, seed=1, scale=0.3), normal(hidden, seed=2)
    assert_same(cpu.Normalize(hidden, 1e-5), layers.Normalize(1e-5), (rows, hidden), inputs, 3)


@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (37, 13)])
@pytest.mark.parametrize("cpu", FORMS)
def test_gelu(cpu, shape):
    assert_same(cpu.Gelu(), ops.GeLU(), shape, (normal(*shape, scale=3.0),), 1, plain_single=True)


@pytest.mark.parametrize("cpu", FORMS)
def test_gelu_far_from_zero(cpu):
    x = np.array([[-3e4, -100.0, -20.0, 0.0, 20.0, 100.0, 3e4]], np.float32)
    y, gradient = evaluate(cpu.Gelu(), np.ones_like(x), (x,), 1, False)
    np.testing.assert_allclose(y, np.maximum(x, 0), atol=1e-6)
    np.testing.assert_allclose(gradient, [[0, 0, 0, 0.5, 1, 1, 1]], atol=1e-6)


@pytest.mark.parametrize(("batch", "heads", "kv_heads", "t", "head_size"),
                         [(1, 1, 1, 1, 1), (2, 3, 3, 7, 5), (3, 2, 2, 16, 5), (2, 6, 2, 14, 6), (1, 2, 1, 130, 20)])
@pytest.mark.parametrize("cpu", FORMS)
def test_attention(cpu, batch, heads, kv_heads, t, head_size):
    groups = {"architecture": "llama", "num_kv_heads": kv_heads} if kv_heads < heads else {}
    config = ModelConfig(vocab_size=9, hidden_size=heads * head_size, num_heads=heads, seq_length=max(16, t), **groups)
    shape, kv_shape = (batch, t, heads, head_size), (batch, t, kv_heads, head_size)
    qkv = (normal(*shape, seed=1, scale=2.0), normal(*kv_shape, seed=2, scale=2.0), normal(*kv_shape, seed=3))
    keys = np.zeros((batch * t, 1), np.int32)
    form = cpu.AttentionCore(config)
    plain = attention.AttentionCore(config, 1)
    if t == 1:  # softmax over one score is 1: query and key have no gradient
        y, dq, dk, dv = evaluate(form, np.ones(shape, np.float32), (*qkv, keys), 3, False)
        assert (y == qkv[2]).all() and not dq.any() and not dk.any() and (dv == 1).all()
    else:
        assert_same(form, plain, shape, (*qkv, keys), 3)


@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize(("rows", "hidden", "vocab"), [(1, 3, 2), (7, 5, 11), (37, 13, 101)])
@pytest.mark.parametrize("cpu", FORMS)
def test_head_loss(cpu, rows, hidden, vocab, padding):
    labels = np.random.RandomState(rows).randint(0, vocab, rows).astype(np.int32)
    inputs = normal(rows, hidden), normal(vocab + padding, hidden), labels
    assert_same(cpu.HeadLoss(vocab, padding), gpt.HeadLoss(vocab, padding), (rows,), inputs, 2)


@pytest.mark.parametrize("head_loss", [pure.HeadLoss, compiled.HeadLoss, gpt.HeadLoss])
@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize(("rows", "hidden", "vocab"), [(1, 3, 2), (40, 5, 4), (37, 13, 101)])
def test_a_hit_is_a_label_that_is_likeliest(head_loss, rows, hidden, vocab, padding):
    # All logits are negative, so that padding, whose own logits are 0, would be likelier than every token.
    x, table = np.abs(normal(rows, hidden)), np.pad(-np.abs(normal(vocab, hidden)), ((0, padding), (0, 0)))
    best = (x @ table[:vocab].T).argmax(1)
    labels = np.where(np.arange(rows) % 2, best, np.random.RandomState(rows).randint(0, vocab, rows)).astype(np.int32)
    losses, hits = head_loss(vocab, padding)(Tensor(x), Tensor(table), Tensor(labels))[:2]
    assert losses.shape == hits.shape == (rows,) and losses.dtype == hits.dtype == ms.float32
    assert hits.asnumpy().tolist() == (best == labels).astype(float).tolist()
    assert rows == 1 or 0 < (best == labels).mean() < 1


@pytest.mark.parametrize("head_loss", [pure.HeadLoss, compiled.HeadLoss, gpt.HeadLoss])
def test_of_equally_likely_tokens_each_is_a_hit(head_loss):
    logits, labels = np.array([[1, 3, 3, 2]] * 4 + [[0, 0, 0, 0]], np.float32), np.array([0, 1, 2, 3, 2], np.int32)
    hits = head_loss(4, 0)(Tensor(logits), Tensor(np.eye(4, dtype=np.float32)), Tensor(labels))[1]
    assert hits.asnumpy().tolist() == [0, 1, 1, 0, 1]


@pytest.mark.parametrize("head_loss", [pure.HeadLoss, compiled.HeadLoss, gpt.HeadLoss])
def test_head_loss_of_labels_whose_probability_underflows(head_loss):
    # exp(-300) and exp(-20000) are no float32; the table is the identity, so x are the logits and dx = p - onehot.
    logits = np.array([[0, 300, 0, 0], [-1e4, 0, 1e4, 0], [5, 5, 5, 5], [200, 0, 0, 0]], np.float32)
    labels = np.array([0, 0, 3, 0], np.int32)
    inputs = logits, np.eye(4, dtype=np.float32), labels
    losses, dx, dtable = evaluate(head_loss(4, 0), np.ones(4, np.float32), inputs, 2, False)
    np.testing.assert_allclose(losses, [300, 20000, np.log(4), 0], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(dx, [[-1, 1, 0, 0], [-1, 0, 1, 0], [0.25, 0.25, 0.25, -0.75], [0, 0, 0, 0]], atol=1e-6)
    np.testing.assert_allclose(dtable, dx.T @ logits, rtol=1e-5, atol=1e-3)
    assert np.isfinite(dtable).all()


def test_the_whole_model(monkeypatch):
    """Head size 5, a text shorter than the longest context, padded labels."""
    config = ModelConfig(vocab_size=23, hidden_size=15, num_layers=2, num_heads=3, ffn_hidden_size=37, seq_length=16,
                         init_std=0.3)
    tokens = np.random.RandomState(0).randint(1, 23, (3, 12)).astype(np.int32)
    tokens[1, 5:] = 0

    def loss_and_gradients():
        network = gpt.GPTLoss(gpt.GPT(config), pad_id=0)
        initialize(network, config, seed=3)
        weights = network.trainable_params()
        sums, gradients = ms.value_and_grad(network, None, weights)(Tensor(tokens), ops.zeros(3, ms.int32))
        assert sums.shape == (2,) and sums.dtype == ms.float32
        loss, count = sums.asnumpy()
        assert count == 11 + 4 + 11  # on which no weight has an influence: the gradients are those of the loss
        return loss, {p.name: g.asnumpy() for p, g in zip(weights, gradients, strict=True)}

    loss, found = loss_and_gradients()
    for module in (layers, attention, gpt):
        monkeypatch.setattr(module, "on_cpu", lambda: False)
    plain_loss, wanted = loss_and_gradients()
    assert loss == pytest.approx(plain_loss, rel=1e-6)
    total = np.sqrt(sum(np.square(g).sum() for g in wanted.values()))
    for name, g in wanted.items():
        if name.endswith("key.bias"):  # adds the same to all scores of a row: no gradient but rounding
            assert max(np.linalg.norm(g), np.linalg.norm(found[name])) < 1e-7 * total
        else:
            assert np.linalg.norm(found[name] - g) <= 3 * ROUNDING * np.linalg.norm(g), name
