"""The model against transformers' GPT-2: same weights, same logits, loss and gradients (figures: tests/golden/make_golden.py)."""
import json
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn
from safetensors.numpy import load_file

from ckpt import hf
from model import attention, gpt, layers
from model.config import ModelConfig
from tests.model.uncached import NextTokenLogits

GOLDEN = Path(__file__).parents[1] / "golden"
FIGURES = json.loads((GOLDEN / "golden.json").read_text())


@pytest.fixture(params=["cpu forms", "plain cells"])
def form(request, monkeypatch):
    """Each test runs with the forms for CPU and with MindSpore's own kernels, as on Ascend."""
    ms.set_context(mode=ms.GRAPH_MODE)
    if request.param == "plain cells":
        for module in (layers, attention, gpt):
            monkeypatch.setattr(module, "on_cpu", lambda: False)
    return request.param


@pytest.fixture
def expected() -> dict[str, np.ndarray]:
    return load_file(GOLDEN / "expected.safetensors")


def load_gpt() -> gpt.GPT:
    """The golden model."""
    folder = GOLDEN / "gpt2"
    sizes = hf.model_of(hf.read_json(folder / "config.json"), folder)
    network = gpt.GPT(ModelConfig(**sizes))
    weights = hf.from_hf(hf.read_weights(folder), sizes)
    parameters = dict(network.parameters_and_names())
    assert parameters.keys() == weights.keys()
    for name, p in parameters.items():
        p.set_data(Tensor(weights[name]))
    return network


class Logits(nn.Cell):
    def __init__(self, network):
        super().__init__(auto_prefix=False)
        self.gpt, self.head = network, gpt.Head()

    def construct(self, ids, positions):
        return self.head(*self.gpt(ids, positions))


class MeanLoss(nn.Cell):
    def __init__(self, network):
        super().__init__(auto_prefix=False)
        self.loss = gpt.GPTLoss(network, FIGURES["pad"])

    def construct(self, tokens, positions):
        sums = self.loss(tokens, positions)
        return sums[0] / sums[1]


def positions_of(tokens: np.ndarray) -> Tensor:
    return Tensor(np.arange(len(tokens)), ms.int32)


def relative_errors(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> dict[str, float]:
    """Norm of the difference over the norm of what is wanted, for each tensor."""
    assert found.keys() == wanted.keys()
    return {name: float(np.linalg.norm(found[name] - a) / np.linalg.norm(a)) for name, a in wanted.items()}


def test_logits(form, expected):
    tokens = expected["tokens"]
    found = Logits(load_gpt())(Tensor(tokens, ms.int32), positions_of(tokens)).asnumpy()
    np.testing.assert_allclose(found.reshape(expected["logits"].shape), expected["logits"], rtol=0, atol=1e-4)


def test_logits_of_a_shorter_text(form, expected):
    tokens = expected["tokens"][:, :7]
    found = Logits(load_gpt())(Tensor(tokens, ms.int32), positions_of(tokens)).asnumpy()
    np.testing.assert_allclose(found.reshape(4, 7, -1), expected["logits"][:, :7], rtol=0, atol=1e-4)


def test_logits_of_generation_are_those_of_the_last_token(form, expected):
    last = np.array([3, 15, 0, 8])
    found = NextTokenLogits(load_gpt())(Tensor(expected["tokens"], ms.int32), Tensor(last, ms.int32)).asnumpy()
    np.testing.assert_allclose(found, expected["logits"][np.arange(4), last], rtol=0, atol=1e-4)


def test_loss_and_gradients(form, expected):
    tokens, network = expected["tokens"], MeanLoss(load_gpt())
    weights = network.trainable_params()
    loss, gradients = ms.value_and_grad(network, None, weights)(Tensor(tokens, ms.int32), positions_of(tokens))
    assert loss.asnumpy().item() == pytest.approx(FIGURES["loss"], abs=1e-5)
    found = hf.to_hf({p.name: g.asnumpy() for p, g in zip(weights, gradients, strict=True)})
    wanted = {name.removeprefix("grad."): g for name, g in expected.items() if name.startswith("grad.")}
    errors = relative_errors(found, wanted)
    assert max(errors.values()) < 1e-4, errors


def test_gradients_of_a_changed_weight_are_noticed(form, expected):
    """The comparison above can fail: a thousandth on one LayerNorm weight is seen."""
    network = load_gpt()
    p: Parameter = network.blocks[0].norm1.weight
    p.set_data(Tensor(p.asnumpy() * (1 + 1e-3 * (np.arange(p.size) == 0)).astype(np.float32)))
    tokens = expected["tokens"]
    found = Logits(network)(Tensor(tokens, ms.int32), positions_of(tokens)).asnumpy()
    assert np.abs(found.reshape(expected["logits"].shape) - expected["logits"]).max() > 1e-4
