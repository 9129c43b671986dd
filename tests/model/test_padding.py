"""A token table that is padded: the same loss, gradients and text as without padding, in both forms of the cells."""
import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor

from model import attention, gpt, layers
from model.config import ModelConfig
from model.init import initialize
from model.sampling import Sampling
from model.writer import Writer

VOCAB, TABLE = 50, "embedding.token"
# Rows that are not 0 would, if they counted, take all probability or none.
PADDINGS = (0.0, 100.0)


@pytest.fixture(scope="module", params=["cpu forms", "plain cells"])
def form(request):
    ms.set_context(mode=ms.GRAPH_MODE)
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "plain cells":
            for module in (layers, attention, gpt):
                patch.setattr(module, "on_cpu", lambda: False)
        yield


def make_gpt(multiple: int = 1, tp: int = 1) -> gpt.GPT:
    """A GPT with tests' initial weights."""
    config = ModelConfig(vocab_size=VOCAB, vocab_multiple=multiple, hidden_size=16, num_layers=1, num_heads=2, seq_length=8,
                         init_std=0.3)
    network = gpt.GPT(config, tp=tp)
    initialize(network, config, seed=5)
    return network


def fill(network: gpt.GPT, padding: float) -> None:
    """Overwrite the padding."""
    value = network.embedding.token.asnumpy().copy()
    value[VOCAB:] = padding
    network.embedding.token.set_data(Tensor(value))


def loss_and_gradients(network: gpt.GPT, paddings: tuple[float, ...] = (0.0,)) -> list[tuple[np.ndarray, dict]]:
    """((sum of losses, number of tokens), gradients of the first), for each value in the padding."""
    tokens = np.random.RandomState(0).randint(1, VOCAB, (12, 9)).astype(np.int32)
    tokens[1, 5:] = 0
    tokens[2, 3] = VOCAB - 1
    loss, found = gpt.GPTLoss(network, pad_id=0), []
    weights = loss.trainable_params()
    function = ms.value_and_grad(loss, None, weights)
    for padding in paddings:
        fill(network, padding)
        sums, gradients = function(Tensor(tokens), Tensor(np.arange(12), ms.int32))
        found.append((sums.asnumpy(), {p.name: g.asnumpy() for p, g in zip(weights, gradients, strict=True)}))
    return found


@pytest.fixture(scope="module")
def without(form):
    """Loss and gradients without padding."""
    return loss_and_gradients(make_gpt())[0]


@pytest.mark.parametrize(("multiple", "tp", "rows"), [(1, 1, 50), (50, 1, 50), (8, 1, 56), (8, 4, 56), (8, 3, 72), (1, 4, 52),
                                                      (12, 8, 72)])
def test_rows_of_the_table(multiple, tp, rows):
    network = make_gpt(multiple, tp)
    value = network.embedding.token.asnumpy()
    assert value.shape == (rows, 16) and network.padding == rows - VOCAB and not value[VOCAB:].any()
    np.testing.assert_array_equal(value[:VOCAB], make_gpt().embedding.token.asnumpy())


@pytest.mark.parametrize(("multiple", "tp"), [(8, 1), (64, 3)])
def test_loss_and_gradients(without, multiple, tp):
    sums, wanted = without
    total = np.sqrt(sum(np.square(g).sum() for g in wanted.values()))
    for padded_sums, found in loss_and_gradients(make_gpt(multiple, tp), PADDINGS):
        assert padded_sums[0] == pytest.approx(sums[0], rel=1e-6) and padded_sums[1] == sums[1] == 11 * 8 + 4
        assert not found[TABLE][VOCAB:].any() and len(found[TABLE]) > VOCAB
        found[TABLE] = found[TABLE][:VOCAB]
        for name, g in wanted.items():  # a key's bias has no gradient but rounding
            assert found[name].shape == g.shape
            assert np.linalg.norm(found[name] - g) <= 1e-5 * np.linalg.norm(g) + 1e-7 * total, name


def test_generated_text(form):
    def texts(writer):
        return [text.tokens for temperature, top_k in ((0.0, 0), (1.5, 0), (1.0, 5))
                for text in writer.write([[5], [7, 8, 9, 10], [49, 3]], 12, Sampling(temperature, top_k), 1)]

    wanted, network = texts(Writer(make_gpt(), 3, 8, 2)), make_gpt(8)
    assert all(text and max(text) < VOCAB for text in wanted)
    writer = Writer(network, 3, 8, 2)
    for padding in PADDINGS:
        fill(network, padding)
        assert texts(writer) == wanted
