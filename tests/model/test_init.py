"""model/init.py: GPT-2's initial weights, each a function of (seed, name) alone."""
import zlib
from types import SimpleNamespace

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor
from mindspore.common.initializer import HeNormal, Normal, TruncatedNormal, XavierNormal, XavierUniform, initializer
from scipy.stats import norm, truncnorm, uniform

from model.config import InitRule, ModelConfig
from model.gpt import GPT
from model.init import initial_value, initialize

ENDS = ("attention.output.weight", "mlp.down.weight")  # the two that add to the residual stream


def config_of(layers: int = 2, std: float = 0.02) -> ModelConfig:
    return ModelConfig(vocab_size=300, hidden_size=48, num_layers=layers, num_heads=4, seq_length=40, init_std=std)


def values(config: ModelConfig, seed: int = 7, select=list) -> dict[str, np.ndarray]:
    """The parameters, NaN before `initialize`, which sees those that `select` takes of the (name, parameter) pairs."""
    gpt = GPT(config)
    pairs = list(gpt.parameters_and_names())
    for _, p in pairs:
        p.set_data(Tensor(np.full(p.shape, np.nan, np.float32)))
    initialize(SimpleNamespace(parameters_and_names=lambda: select(pairs)), config, seed)
    return {name: p.asnumpy() for name, p in pairs}


@pytest.fixture(scope="module")
def drawn():
    return values(config_of())


def kind(name: str) -> str:
    *_, parent, last = f".{name}".split(".")
    return "zeros" if last == "bias" else "ones" if parent in ("norm", "norm1", "norm2") else "normal"


def test_every_parameter_is_set(drawn):
    kinds = [kind(name) for name in drawn]
    # Per block: 6 matrices (query, key, value, output, up, down), each with a bias, and 2 LayerNorms; then the last LayerNorm.
    assert (kinds.count("zeros"), kinds.count("ones"), kinds.count("normal")) == (2 * 8 + 1, 2 * 2 + 1, 2 * 6 + 2)
    for name, value in drawn.items():
        assert value.dtype == np.float32 and np.isfinite(value).all(), name
        if kind(name) == "normal":
            assert (value != 0).mean() > 0.999, name
        else:
            assert (value == (kind(name) == "ones")).all(), name


@pytest.mark.parametrize(("layers", "std"), [(2, 0.02), (3, 0.02), (2, 0.3)])
def test_the_normal_distribution(layers, std):
    """Five standard errors: of the mean s/sqrt(n), of s itself s/sqrt(2n), of a share p sqrt(p(1-p)/n)."""
    seen = 0
    for name, value in values(config_of(layers, std)).items():
        if kind(name) == "normal":
            s, n = std / np.sqrt(2 * layers) if name.endswith(ENDS) else std, value.size
            assert abs(value.mean()) < 5 * s / np.sqrt(n), name
            assert value.std() == pytest.approx(s, rel=5 / np.sqrt(2 * n)), name
            assert abs((np.abs(value) < s).mean() - 0.6827) < 5 * np.sqrt(0.6827 * 0.3173 / n), name
            seen += name.endswith(ENDS)
    assert seen == 2 * layers


@pytest.mark.parametrize("select", [lambda pairs: pairs[::-1], lambda pairs: pairs[1::3]], ids=["reversed", "every third"])
def test_neither_the_order_nor_the_other_parameters_matter(drawn, select):
    chosen = {name for name, _ in select(list(drawn.items()))}
    for name, value in values(config_of(), select=select).items():
        assert np.array_equal(value, drawn[name]) if name in chosen else np.isnan(value).all(), name


def test_another_depth_changes_the_residual_scale_only(drawn):
    deeper = values(config_of(layers=3))
    assert drawn.keys() < deeper.keys()
    for name, value in drawn.items():
        if name.endswith(ENDS):
            np.testing.assert_allclose(value * np.sqrt(4), deeper[name] * np.sqrt(6), rtol=1e-6, err_msg=name)
        else:
            np.testing.assert_array_equal(value, deeper[name], err_msg=name)


def test_the_same_seed_gives_the_same_and_another_seed_other_values(drawn):
    again, other = values(config_of()), values(config_of(), seed=8)
    for name, value in drawn.items():
        assert np.array_equal(value, again[name]), name
        assert np.array_equal(value, other[name]) == (kind(name) != "normal"), name


def test_no_two_parameters_are_alike(drawn):
    normal = {name: value.ravel() for name, value in drawn.items() if kind(name) == "normal"}
    firsts = np.array([value[:1000] / value.std() for value in normal.values()])
    correlation = np.corrcoef(firsts) - np.eye(len(firsts))
    assert np.abs(correlation).max() < 5 / np.sqrt(1000)


# --- model.init: by name

KINDS = {  # of mlp.up.weight [192, 48] of 2 layers: standard deviation, largest absolute value (None: without end)
    "normal": (0.02, None), "residual": (0.02 / 2, None), "truncated_normal": (0.02 * truncnorm.std(-2, 2), 0.04),
    "xavier_uniform": (np.sqrt(2 / 240), np.sqrt(6 / 240)), "xavier_normal": (np.sqrt(2 / 240), None),
    "he_normal": (np.sqrt(2 / 48), None),
}
MINDSPORE = {"normal": Normal(0.02), "xavier_uniform": XavierUniform(), "xavier_normal": XavierNormal(), "he_normal": HeNormal(),
             "truncated_normal": TruncatedNormal(0.02, a=-0.04, b=0.04)}
UP = "blocks.1.mlp.up.weight"


def ruled(*rules: dict, **changes) -> ModelConfig:
    return config_of().model_copy(update={"init": tuple(InitRule(**rule) for rule in rules), **changes})


@pytest.mark.parametrize("kind", KINDS)
def test_the_moments_of_each_kind(kind, drawn):
    std, largest = KINDS[kind]
    found = values(ruled({"pattern": "*.mlp.up.weight", "kind": kind}))
    for name, value in found.items():
        if not name.endswith("mlp.up.weight"):
            assert np.array_equal(value, drawn[name]), name
            continue
        n = value.size
        assert value.dtype == np.float32 and value.shape == (192, 48)
        assert abs(value.mean()) < 5 * std / np.sqrt(n) and value.std() == pytest.approx(std, rel=5 / np.sqrt(2 * n))
        kurtosis = ((value / value.std())**4).mean()
        expected = {"xavier_uniform": uniform(), "truncated_normal": truncnorm(-2, 2)}.get(kind, norm()).stats("k") + 3
        assert kurtosis == pytest.approx(expected, rel=0.08)
        if largest:
            assert 0.97 * largest < np.abs(value).max() <= largest * (1 + 1e-6)
        if kind in MINDSPORE:
            # Many draws: of one alone the outer quantiles scatter by more than the tolerance now and then.
            theirs = np.stack([initializer(MINDSPORE[kind], value.shape, ms.float32).init_data().asnumpy() for _ in range(20)])
            assert value.std() == pytest.approx(theirs.std(), rel=10 / np.sqrt(2 * n))
            quantiles = np.linspace(0.01, 0.99, 15)
            np.testing.assert_allclose(np.quantile(value, quantiles), np.quantile(theirs, quantiles), atol=0.1 * std)
    assert not np.array_equal(found[UP], found[UP.replace("1", "0")])


def test_the_first_match_counts_and_the_rest_is_as_ever(drawn):
    found = values(ruled({"pattern": "blocks.1.mlp.up.*", "kind": "ones"}, {"pattern": "blocks.1.*.weight", "kind": "zeros"},
                         {"pattern": "embedding.position", "kind": "normal", "std": 0.5}))
    for name, value in found.items():
        if name.startswith("blocks.1.mlp.up."):
            assert (value == 1).all()
        elif name.startswith("blocks.1.") and name.endswith(".weight"):
            assert (value == 0).all()
        elif name == "embedding.position":
            np.testing.assert_allclose(value, drawn[name] * 25, rtol=1e-6)  # the same stream
        else:
            assert np.array_equal(value, drawn[name]), name


@pytest.mark.parametrize("kind", [*KINDS, "ones"])
def test_padding_of_the_table_is_zero_and_changes_nothing(kind):
    config = ruled({"pattern": "embedding.token", "kind": kind})
    plain, padded = (initial_value("embedding.token", (rows, 48), config, 7) for rows in (300, 320))
    assert np.array_equal(plain, padded[:300]) and not padded[300:].any() and plain.any()


def test_what_was_drawn_before_there_were_rules():
    """Bytes of each parameter's value as commit 12b10c5 had them."""
    digests = [zlib.crc32(initial_value(name, shape, config_of(), 1234).tobytes())
               for name, shape in (("embedding.token", (320, 48)), (UP, (192, 48)), ("blocks.0.mlp.down.weight", (48, 192)),
                                   ("norm.weight", (48,)), ("norm.bias", (48,)))]
    assert digests == [2259753287, 787794465, 2179608986, 861962041, 2348746994]
