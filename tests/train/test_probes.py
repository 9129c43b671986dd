"""Probes: they change nothing, and the first cell that is not finite is the one that was made so."""
import mindspore as ms
import numpy as np
import pytest
from mindspore import ParameterTuple, Tensor, nn, ops

from model.config import ModelConfig
from model.cpu import library
from model.gpt import GPT, GPTLoss
from model.init import initialize
from tests.train.test_step import uneven
from train.locating.findings import verdict_of
from train.locating.locate import Batch, first, locate, sens_of
from train.locating.probes import Probes, figures, pynative

MODEL = ModelConfig(vocab_size=50, hidden_size=16, num_layers=2, num_heads=2, seq_length=120, init_std=0.1)
POSITIONS = np.arange(4, dtype=np.int32)


@pytest.fixture(autouse=True)
def _graph_mode():
    ms.set_context(mode=ms.GRAPH_MODE)


def make_network(dropout=0.0):
    gpt = GPT(MODEL.model_copy(update={"dropout": dropout}), seed=3)
    initialize(gpt, MODEL, 3)
    return GPTLoss(gpt, 0)


@pytest.mark.parametrize("dropout", [0.0, 0.1])  # other cells: with dropout attention has no gradient of its own
def test_probes_change_nothing(dropout):
    network, sens = make_network(dropout).set_train().set_grad(), np.float32([0.5, 0.0])
    weights = ParameterTuple(network.trainable_params())
    with pynative():
        grad = ops.GradOperation(get_by_list=True, sens_param=True)(network, weights)
        expected = [g.asnumpy() for g in grad(Tensor(uneven()), Tensor(POSITIONS), Tensor(sens))]
        loss = network(Tensor(uneven()), Tensor(POSITIONS)).asnumpy()
    probes = Probes(make_network(dropout))
    sums, found = probes.run(uneven(), POSITIONS, sens)
    assert np.array_equal(sums, loss) and sums[1] == 178
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))
    assert set(probes.gradients) == {w.name for w in weights} and [*probes.gradients][:2] == ["norm.weight", "norm.bias"]
    assert not any(p.nonfinite for p in probes.passages)
    assert ms.get_context("mode") == ms.GRAPH_MODE
    for direction in ("forward", "backward"):
        cells = {p.cell for p in probes.passages if p.direction == direction}
        assert {"head_loss", "gpt.norm", "gpt.blocks.1", "gpt.blocks.0.attention.core", "gpt.blocks.0.mlp.up"} <= cells


def test_figures():
    found = figures(np.float32([[1.0, -np.inf, -3.0, np.nan]]))
    assert found == {"shape": [1, 4], "dtype": "float32", "min": -3.0, "max": 1.0, "abs_max": 3.0, "nonfinite": 0.5}
    nothing = figures(Tensor(np.float16([np.nan])))
    assert (nothing["dtype"], nothing["min"], nothing["abs_max"], nothing["nonfinite"]) == ("float16", None, None, 1.0)


@pytest.fixture(scope="module")
def config(tiny_yaml):
    from train.config import load_config

    return load_config(tiny_yaml, ["model.vocab_size=50", "model.seq_length=120", "data.seq_length=120", "model.dropout=0",
                                   "train.global_batch_size=4"])


@pytest.fixture
def weights():
    return {p.name: p.asnumpy().copy() for p in make_network().trainable_params()}


def found_in(config, weights, scale=1.0):
    return locate(config, weights, Batch(uneven(), POSITIONS, scale, 2))


@pytest.mark.parametrize(("name", "value", "cell"), [
    ("blocks.0.attention.query.weight", 3e38, "gpt.blocks.0.attention.query.affine"),
    ("norm.weight", 3e38, "gpt.norm.norm"),
])
def test_the_first_cell_in_forward_order(config, weights, name, value, cell):
    weights[name][:] = value
    found = found_in(config, weights)
    first = found["forward"]
    assert (found["verdict"], first["cell"], first["made_by"]) == ("forward", cell, cell)
    assert not any(f["nonfinite"] for f in first["inputs"].values()) and first["outputs"]["0"]["nonfinite"] > 0
    assert max(f["abs_max"] for f in first["inputs"].values()) == pytest.approx(value, rel=1e-5)
    assert cell.removeprefix("gpt.") in found["message"] and found["nonfinite_micro_batches"] == [0, 1]
    after = [p["cell"] for p in found["cells"]].index(cell)
    assert not any(f["nonfinite"] for p in found["cells"][:after] for f in p["outputs"].values())


def test_what_an_operator_between_cells_makes_is_said_of_the_cell_around_it(config, weights):
    """Token and position are finite, their sum is not; what it goes into first is the embedding's dropout."""
    weights["embedding.position"][:] = weights["embedding.token"][:] = 3e38
    found = found_in(config, weights)
    first = found["forward"]
    assert (first["cell"], first["made_by"]) == ("gpt.embedding.dropout", "gpt.embedding"), found["message"]
    assert "an operator of embedding, seen in embedding.dropout" in found["message"]


def test_a_weight_that_is_nan(config, weights):
    weights["blocks.1.mlp.down.weight"][3, 4] = np.nan
    found = found_in(config, weights)
    assert found["verdict"] == "weights" and "blocks.1.mlp.down.weight" in found["message"]
    assert found["weights"]["blocks.1.mlp.down.weight"]["nonfinite"] == pytest.approx(1 / (16 * 64))
    assert found["forward"]["cell"] == "gpt.blocks.1.mlp.down.affine"
    assert [name for name, f in found["layers"].items() if f["nonfinite"]] == ["block_01", "norm"]


def test_the_first_cell_in_backward_order(config, weights):
    """A loss scale under which one cell's gradient is too large, by what the cells give under another: gradients are linear."""
    for name, factor in (("norm.weight", 1e4), ("blocks.0.norm1.weight", 300), ("embedding.token", 1e-3),
                         ("embedding.position", 1e-3)):  # the first norm divides what comes back by its small input's deviation
        weights[name] *= factor
    quiet = found_in(config, weights, 1.0)
    assert quiet["verdict"] == "finite" and quiet["compiled"] == []
    limit, before, chosen = np.finfo(np.float32).max, 0.0, ("", 0.0)
    for passage in (p for p in quiet["cells"] if p["direction"] == "backward"):
        largest = max(f["abs_max"] for f in passage["outputs"].values())
        if before and largest > 1.4 * before:
            chosen = passage["cell"], limit / np.sqrt(largest * before)
        before = max(before, largest)
    cell, scale = chosen
    assert cell == "gpt.blocks.0.norm1.norm"
    found = found_in(config, weights, scale)
    assert (found["verdict"], found["backward"]["cell"], found["forward"]) == ("backward", cell, None), found["message"]
    assert not any(f["nonfinite"] for f in found["backward"]["inputs"].values())
    assert [name for name, f in found["gradients"].items() if f["nonfinite"]] == ["embedding.token", "embedding.position"]


def test_a_cell_whose_gradient_alone_is_broken(config, weights):
    """The GELU's own gradient multiplies 0 by the square of what went in, which is infinite; its output is finite."""
    weights["blocks.0.mlp.up.bias"][:] = 1e20
    weights["blocks.0.mlp.down.weight"][:] = 0
    found = found_in(config, weights)
    assert (found["verdict"], found["backward"]["cell"]) == ("backward", "gpt.blocks.0.mlp.gelu.gelu"), found["message"]
    assert [name for name, f in found["gradients"].items() if f["nonfinite"]][0] == "blocks.0.mlp.up.weight"


def test_finite_gradients_whose_squares_are_too_large(config, weights):
    found = found_in(config, weights, 1e22)
    assert found["verdict"] == "norm" and not any(f["nonfinite"] for f in found["gradients"].values()), found["message"]


@pytest.mark.parametrize("level", ["O1", "O3"])
def test_a_product_that_is_too_large_for_float16(config, weights, level):
    """Under the run's own precision; the mask of O3, whose -1e30 is infinite in float16, is not taken for a fault."""
    precision = config.precision.model_copy(update={"level": level})
    weights["blocks.1.mlp.up.weight"] *= 3e5
    found = found_in(config.model_copy(update={"precision": precision}), weights)
    assert (found["verdict"], found["forward"]["cell"]) == ("forward", "gpt.blocks.1.mlp.up.affine"), found["message"]
    assert found["forward"]["outputs"]["0"]["dtype"] == "float16" and not found["layers"]["block_00"]["nonfinite"]


class Compiled(nn.Cell):
    """A network's output and its gradients, as a graph."""

    def __init__(self, network):
        super().__init__(auto_prefix=False)
        self.network, self.weights = network, ParameterTuple(network.trainable_params())
        self.grad = ops.GradOperation(get_by_list=True, sens_param=True)

    def construct(self, tokens, positions, sens):
        return self.network(tokens, positions), self.grad(self.network, self.weights)(tokens, positions, sens)


def test_cells_in_half_precision(monkeypatch):
    """float16 ends at 65504; what a compiled graph casts is cast here too, also where a cell has a gradient of its own."""
    monkeypatch.setattr(library, "problem", lambda: "the operators of C++ are for float32 alone")
    networks = [make_network() for _ in range(2)]
    for network in networks:
        network.gpt.blocks[1].mlp.to_float(ms.float16)
        network.set_train().set_grad()
    compiled, sens = Compiled(networks[0]), np.float32([1.0, 0.0])
    expected, grads = compiled(Tensor(uneven()), Tensor(POSITIONS), Tensor(sens))
    probes = Probes(networks[1])
    sums, found = probes.run(uneven(), POSITIONS, sens)
    assert sums.tolist() == pytest.approx(expected.asnumpy().tolist(), rel=1e-6)
    for weight, a, b in zip(compiled.weights, found, grads, strict=True):
        np.testing.assert_allclose(a, b.asnumpy(), rtol=1e-2, atol=1e-4, err_msg=weight.name)
    networks[1].gpt.blocks[1].mlp.up.weight.set_data(Tensor(np.full((64, 16), 1e4), ms.float32))
    networks[1].gpt.blocks[1].norm2.bias.set_data(Tensor(np.ones(16), ms.float32))
    probes.run(uneven(), POSITIONS, sens)
    found = first(probes.passages, "forward")
    assert found["cell"] == found["made_by"] == "gpt.blocks.1.mlp.up.affine"
    assert found["inputs"]["weight"]["dtype"] == found["outputs"]["0"]["dtype"] == "float16"


def test_the_gradients_are_scaled_as_in_the_step(config):
    batch = Batch(uneven(), POSITIONS, 8.0, 2)
    assert sens_of(config, batch).tolist() == [np.float32(8.0) / np.float32(4 * 120), 0.0]
    assert [len(tokens) for tokens, _ in batch.micro_batches()] == [2, 2]


def test_what_only_the_compiled_graph_shows():
    found = {"nonfinite_micro_batches": [], "norm": 1.0, "compiled": ["norm.bias"]}
    assert verdict_of(found)[0] == "compiled" and "norm.bias" in verdict_of(found)[1]
