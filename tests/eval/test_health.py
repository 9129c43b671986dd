"""The tier `health` against figures of PyTorch and transformers (tests/golden), hand-worked series, and TensorBoard's reader."""
import json
import math

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor
from safetensors.numpy import load_file

from eval.health.histogram import LIMITS, Histogram, sample
from eval.health.layers import LayerWatch, Watched, layer_names, layer_of
from eval.health.losses import MIN_HISTORY, LossWindow
from eval.health.probe import MAX_LENGTH, ZERO, Probe, ProbeStep, probe_ids
from model.config import ModelConfig
from model.gpt import GPT
from model.init import initialize
from model.layers import Gelu
from tests.model.test_gpt2_golden import GOLDEN, form, load_gpt  # noqa: F401  form is a fixture
from tests.train.test_step_golden import FIGURES, TENSORS, make_step


def probe(network: GPT, tokens: np.ndarray) -> Probe:
    """Of tokens [batch, seq + 1]."""
    ids = probe_ids(tokens)
    return Probe(network, ids, ProbeStep(network, *ids.shape))


def gelu(x: np.ndarray) -> np.ndarray:
    """GPT-2's, as its paper writes it."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def test_the_probe_against_transformers(form):  # noqa: F811
    expected = load_file(GOLDEN / "expected.safetensors")
    tokens = np.pad(expected["tokens"], ((0, 0), (0, 1))).astype(np.int32)
    figures, pictures = probe(load_gpt(), tokens).run(True)
    assert list(figures) == ["block_00", "block_01"]
    for i, found in enumerate(figures.values()):
        output, weights, inner = (expected[f"{name}.{i}"].astype(np.float64) for name in ("output", "weights", "inner"))
        rows = weights[:, :, 1:]  # the first position has no choice
        entropy = -(rows * np.log(np.maximum(rows, 1e-300))).sum(-1) / np.log(np.arange(2, 17))
        heads = entropy.mean((0, 2))
        wanted = {"mean": output.mean(), "std": output.std(), "abs_max": np.abs(output).max(),
                  "zeros": (np.abs(gelu(inner)) < ZERO).mean(), "saturated": (inner < Gelu.saturated).mean(),
                  "attention_entropy": heads.mean(), "attention_entropy_min": heads.min()}
        assert wanted["saturated"] > 0.01 and heads.min() < heads.mean() < 0.9  # the golden model shows something of each
        assert found == {key: pytest.approx(value, rel=1e-5, abs=1e-6) for key, value in wanted.items()}
        picture = pictures[f"block_{i:02d}"]
        assert picture.counts.sum() == output.size and picture.total == pytest.approx(output.sum(), abs=1e-3)
        assert picture.squares == pytest.approx((output**2).sum(), rel=1e-5)


def test_the_probe_leaves_the_mode_and_cuts_long_samples():
    ms.set_context(mode=ms.GRAPH_MODE)
    config = ModelConfig(vocab_size=30, hidden_size=8, num_layers=1, num_heads=2, seq_length=MAX_LENGTH + 40, dropout=0.5)
    gpt = GPT(config)
    initialize(gpt, config, 1)
    gpt.set_train(True)
    tokens = np.random.RandomState(0).randint(1, 30, (1, MAX_LENGTH + 41))
    short = tokens[:, :MAX_LENGTH + 1]
    assert probe(gpt, tokens).run(False) == probe(gpt, short).run(False)  # and no dropout
    assert gpt.training


@pytest.mark.parametrize("name", ["usual", "large_eps"])
def test_layers_against_pytorch(name, monkeypatch):
    monkeypatch.setattr("eval.health.layers.sample", np.ravel)  # all values, so that the histograms' squares add up too
    step = make_step(name)
    clip = FIGURES["runs"][name]["settings"]["clip_norm"]
    watch = LayerWatch([Watched(*pair, 1.0) for pair in zip(step.weights, step.optimizer.moment1, strict=True)], 2, 0.9, False)
    for tokens, wanted in zip(TENSORS["tokens"], FIGURES["runs"][name]["layers"], strict=True):
        watch.before()
        norm = step(Tensor(tokens, ms.int32), Tensor(np.arange(len(tokens)), ms.int32))[1].asnumpy().item()
        figures, pictures = watch.after(max(norm / clip, 1.0), True)
        for layer, (grad_norm, weight_norm, ratio) in wanted.items():
            assert figures[layer] == {"grad_norm": pytest.approx(grad_norm, rel=1e-4),
                                      "weight_norm": pytest.approx(weight_norm, rel=1e-5),
                                      "update_ratio": pytest.approx(ratio, rel=1e-3)}, layer
        assert math.hypot(*(f["grad_norm"] for f in figures.values())) == pytest.approx(norm, rel=1e-5)
        assert math.sqrt(sum(p.squares for p in pictures.values())) == pytest.approx(norm, rel=1e-5)


def test_a_skipped_step_says_nothing_of_its_gradients():
    weight, moment = Parameter(Tensor(np.ones(3, np.float32)), name="norm.bias"), Parameter(Tensor(np.ones(3, np.float32)))
    watch = LayerWatch([Watched(weight, moment, 1.0)], 1, 0.9, False)
    watch.before()
    figures, pictures = watch.after(None, True)
    assert figures["norm"] == {"grad_norm": None, "weight_norm": pytest.approx(math.sqrt(3)), "update_ratio": 0.0}
    assert figures["embedding"]["update_ratio"] is None and pictures == {}


def test_values_that_ranks_share_count_once():
    weight = Parameter(Tensor(np.full(4, 2.0, np.float32)), name="blocks.0.mlp.up.bias")
    watch = LayerWatch([Watched(weight, Parameter(Tensor(np.zeros(4, np.float32))), 0.25)], 1, 0.9, False)
    watch.before()
    assert watch.after(1.0, False)[0]["block_00"]["weight_norm"] == pytest.approx(math.sqrt(4 * 4 / 4))


def test_what_is_not_finite_has_no_shares():
    from eval.health.probe import _figures

    found = _figures(np.array([np.nan, np.nan, np.inf, 0.0, 0.0, np.nan, np.nan], np.float32))
    assert set(found.values()) == {None}


def test_layer_names():
    assert layer_names(2) == ["embedding", "block_00", "block_01", "norm"] and layer_names(101)[11] == "block_010"
    assert [layer_of(n, 12) for n in ("embedding.token", "blocks.0.norm1.bias", "blocks.11.mlp.up.weight", "norm.weight")] \
        == [0, 1, 12, 13]


def window_of(losses, overflows=None, **settings) -> dict:
    window = LossWindow(**{"size": 100, "spike_z": 6.0, **settings})
    for i, loss in enumerate(losses):
        window.add(loss, bool(overflows and i in overflows))
    return window.figures()


def test_level_and_spread_of_the_loss():
    rng = np.random.RandomState(0)
    losses = 3.0 + 0.1 * rng.standard_normal(300)
    found = window_of(losses, {10, 250, 290})
    assert found == {"loss_mean": pytest.approx(losses[200:].mean()), "loss_std": pytest.approx(losses[200:].std()),
                     "loss_z": pytest.approx((losses[299] - 3.0) / 0.1, abs=0.5), "spikes": 0, "nonfinite_steps": 0,
                     "overflow_rate": 0.02}
    assert window_of([])["loss_mean"] is None and window_of([])["overflow_rate"] is None


def test_a_spike_is_seen_and_does_not_hide_the_next():
    rng = np.random.RandomState(1)
    losses = list(3.0 + 0.02 * rng.standard_normal(60))
    healthy = window_of(losses)
    found = window_of([*losses, 4.0, 5.0, math.nan, None, math.inf, 4.0])
    assert found["spikes"] == 3 and found["nonfinite_steps"] == 3
    assert found["loss_mean"] == pytest.approx(np.mean([*losses, 4.0, 5.0, 4.0])) != healthy["loss_mean"]
    assert window_of([*losses, 4.0])["loss_z"] > 6 and window_of([*losses, 3.01])["spikes"] == 0


def test_another_level_is_learned():
    losses = [*(3.0 + 0.02 * np.random.RandomState(3).standard_normal(100)), *[3.5] * 100]
    assert window_of(losses[:105])["spikes"] == 5
    found = window_of(losses, size=50)
    assert found["spikes"] == 0 and found["loss_mean"] == pytest.approx(3.5) and abs(found["loss_z"]) < 1


def test_a_falling_loss_and_a_still_one_are_no_spikes():
    assert window_of([9.0 * 0.97**i for i in range(100)])["spikes"] == 0
    assert window_of([2.0] * 50 + [2.01] * 50)["spikes"] == 0  # no spread at all, then a ripple
    assert window_of([1.0] * (MIN_HISTORY - 1) + [50.0])["loss_z"] is None  # too early to tell


def test_histograms_add_up():
    values = np.random.RandomState(2).standard_normal(1000) * 10.0 ** np.arange(-13, 7).repeat(50)
    values[:3] = 0.0, np.nan, np.inf
    whole, parts = Histogram.of(values), Histogram.of(values[:400]) + Histogram.of(values[400:])
    finite = values[np.isfinite(values)]
    np.testing.assert_array_equal(whole.counts, parts.counts)
    np.testing.assert_array_equal(whole.counts, [((finite > low) & (finite <= high)).sum()
                                                 for low, high in zip([-np.inf, *LIMITS[:-1]], LIMITS, strict=True)])
    assert (whole.low, whole.high) == (finite.min(), finite.max()) and parts.total == pytest.approx(finite.sum())
    assert len(sample(np.arange(100_000), 1000)) == 1000 and list(sample(np.arange(5), 10)) == [0, 1, 2, 3, 4]


def test_the_rows_that_json_gets_are_plain():
    json.dumps(window_of([3.0] * 30), allow_nan=False)


def test_a_descent_that_slows_down_is_no_spike():
    """Held against the straight line that it followed, the losses after its end lie high."""
    losses = [5.0 - 0.05 * min(step, 60) + 0.002 * (step % 3) for step in range(66)]
    assert window_of(losses)["spikes"] == 0
    assert window_of([*losses, losses[-1] + 0.5])["loss_z"] > 6
