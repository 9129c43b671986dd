"""The Llama block against transformers' Llama (figures: tests/golden/make_llama.py), and its cells by themselves."""
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn
from safetensors.numpy import load_file

from ckpt import hf
from eval.health.probe import ZERO, Probe, ProbeStep, probe_ids
from model import attention, gpt, layers
from model.config import ModelConfig, PrecisionConfig
from model.decode import Decoder
from model.init import initial_value, initialize
from model.llama import Silu, rotary_table
from model.precision import Precision

GOLDEN = Path(__file__).parents[1] / "golden"
PAD = 0


@pytest.fixture(params=["cpu forms", "plain cells"])
def form(request, monkeypatch):
    """With the forms for CPU, and with MindSpore's own kernels as on Ascend; RMSNorm has none of these on CPU."""
    ms.set_context(mode=ms.GRAPH_MODE)
    if request.param == "plain cells":
        for module in (layers, attention, gpt):
            monkeypatch.setattr(module, "on_cpu", lambda: False)


@pytest.fixture
def expected() -> dict[str, np.ndarray]:
    return load_file(GOLDEN / "llama_expected.safetensors")


def load_llama(precision: Precision | None = None) -> gpt.GPT:
    """The golden model."""
    folder = GOLDEN / "llama"
    model = hf.model_of(hf.read_json(folder / "config.json"), folder)
    network = gpt.GPT(ModelConfig(**model), precision=precision)
    weights = hf.from_hf(hf.read_weights(folder), model)
    parameters = dict(network.parameters_and_names())
    assert parameters.keys() == weights.keys()
    for name, p in parameters.items():
        p.set_data(Tensor(weights[name]))
    return network


class Outputs(nn.Cell):
    """(mean loss, logits) of tokens [batch, seq]; the last token is a label only for the loss, an input too for the logits."""

    def __init__(self, network):
        super().__init__(auto_prefix=False)
        self.gpt, self.logits, self.loss = network, gpt.Head(), gpt.GPTLoss(network, PAD)

    def construct(self, tokens, positions):
        sums = self.loss(tokens, positions)
        return sums[0] / sums[1], self.logits(*self.gpt(tokens, positions))


def outputs(network: gpt.GPT, tokens: np.ndarray) -> tuple[float, np.ndarray, dict[str, np.ndarray]]:
    """(loss, logits, gradients by transformers' names)."""
    weights = network.trainable_params()
    function = ms.value_and_grad(Outputs(network), None, weights, has_aux=True)
    (loss, logits), gradients = function(Tensor(tokens, ms.int32), Tensor(np.arange(len(tokens)), ms.int32))
    gradients = hf.to_hf({p.name: g.asnumpy() for p, g in zip(weights, gradients, strict=True)})
    return loss.asnumpy().item(), logits.asnumpy().reshape(*tokens.shape, -1), gradients


def test_logits_loss_and_gradients(form, expected):
    loss, logits, gradients = outputs(load_llama(), expected["tokens"])
    np.testing.assert_allclose(logits, expected["logits"], rtol=0, atol=1e-4)
    assert loss == pytest.approx(expected["loss"].item(), abs=1e-5)
    wanted = {name.removeprefix("grad."): g for name, g in expected.items() if name.startswith("grad.")}
    assert gradients.keys() == wanted.keys() and len(wanted) == 2 * 9 + 3
    errors = {name: float(np.linalg.norm(gradients[name] - g) / np.linalg.norm(g)) for name, g in wanted.items()}
    assert max(errors.values()) < 1e-4, errors


def test_half_precision_is_near(expected):
    """Norms, softmax and loss in float32, the rest in half; the scale of the errors is that of half precision."""
    network = load_llama(Precision(PrecisionConfig(level="O2")))
    assert {cast.kind: cast.dtype for cast in network.casts} == {
        "TokenEmbedding": "float16", "RMSNorm": "float32", "Linear": "float16", "Scores": "float16", "MaskedSoftmax": "float32",
        "Weigh": "float16", "Rotary": "float16", "Repeat": "float16", "Gate": "float16", "Dropout": "float16",
        "Residual": "float16"}
    loss, logits, gradients = outputs(network, expected["tokens"])
    assert 1e-5 < np.abs(logits - expected["logits"]).max() < 0.05
    assert loss == pytest.approx(expected["loss"].item(), abs=0.01)
    for name, g in gradients.items():
        assert np.linalg.norm(g - expected[f"grad.{name}"]) < 0.1 * np.linalg.norm(expected[f"grad.{name}"]), name


def test_cached_decoding_at_every_position(form, expected):
    network, tokens = load_llama(), expected["tokens"].astype(np.int32)
    decoder = Decoder(network, 4, 16)
    for i, row in enumerate(tokens):
        for n in (1, 5, 16):
            np.testing.assert_allclose(decoder.prefill(i, row[:n].tolist()), expected["logits"][i, n - 1], rtol=0, atol=1e-4)
    starts = [1, 4, 7, 10]  # texts of different lengths side by side
    for i, n in enumerate(starts):
        decoder.prefill(i, tokens[i, :n].tolist())
    for step in range(6):
        at = [n + step for n in starts]
        found = decoder.step([int(tokens[i, n]) for i, n in enumerate(at)], at)
        np.testing.assert_allclose(found, expected["logits"][np.arange(4), at], rtol=0, atol=1e-4)
    assert decoder.cached.blocks[0].keys.shape == (4, 2, 16, 4)  # of the two heads of keys, not of the four of queries


def test_the_probe_sees_what_transformers_sees(expected):
    ids = probe_ids(np.pad(expected["tokens"], ((0, 0), (0, 1))).astype(np.int32))
    network = load_llama()
    figures, _ = Probe(network, ids, ProbeStep(network, *ids.shape)).run(False)
    for i, found in enumerate(figures.values()):
        output, weights, inner = (expected[f"{name}.{i}"].astype(np.float64) for name in ("output", "weights", "inner"))
        silu = inner / (1 + np.exp(-inner))
        entropy = -(weights[:, :, 1:] * np.log(np.maximum(weights[:, :, 1:], 1e-300))).sum(-1) / np.log(np.arange(2, 17))
        wanted = {"std": output.std(), "abs_max": np.abs(output).max(), "zeros": (np.abs(silu) < ZERO).mean(),
                  "saturated": (inner < Silu.saturated).mean(), "attention_entropy": entropy.mean()}
        assert {key: found[key] for key in wanted} == {k: pytest.approx(v, rel=1e-4, abs=1e-6) for k, v in wanted.items()}


def test_below_its_limit_silu_hardly_learns():
    x = np.float64(Silu.saturated)
    s = 1 / (1 + np.exp(-x))
    assert abs(s * (1 + x * (1 - s))) < 0.013


def test_rotary_angles_depend_on_the_distance_alone():
    cos, sin = rotary_table(64, 8, 100.0)
    rng = np.random.RandomState(0)
    q, k = rng.standard_normal((2, 8))

    def turned(x, at):
        return x * cos[at] + np.concatenate((-x[4:], x[:4])) * sin[at]

    products = [turned(q, at + 5) @ turned(k, at) for at in (0, 17, 58)]
    assert products == pytest.approx([products[0]] * 3, rel=1e-4)
    assert abs(turned(q, 6) @ turned(k, 0) - products[0]) > 0.01
    # The slowest pair has turned by 63 / 100^(6 / 8).
    assert cos[63, 3] == pytest.approx(np.cos(63 / 100 ** 0.75)) and cos.dtype == np.float32


def test_initial_values():
    config = ModelConfig(architecture="llama", vocab_size=300, hidden_size=64, num_layers=8, num_heads=4, num_kv_heads=2,
                         tie_embeddings=False)
    network = gpt.GPT(config, tp=7)
    initialize(network, config, 1)
    values = {name: p.asnumpy() for name, p in network.parameters_and_names()}
    assert values["head.token"].shape == values["embedding.token"].shape == (301, 64)
    assert not values["head.token"][300:].any() and values["head.token"][:300].std() == pytest.approx(0.02, rel=0.05)
    assert (values["norm.weight"] == 1).all() and (values["blocks.3.norm2.weight"] == 1).all()
    for name, std in (("mlp.gate", 0.02), ("mlp.down", 0.005), ("attention.key", 0.02), ("attention.output", 0.005)):
        assert values[f"blocks.0.{name}.weight"].std() == pytest.approx(std, rel=0.05)
    assert not np.array_equal(values["head.token"], initial_value("embedding.token", (301, 64), config, 1))
