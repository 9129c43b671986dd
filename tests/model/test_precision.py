"""Number formats: as the lists say, as the compiled graph has them, and near enough to float32."""
from collections import Counter

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, amp

from model.config import LossScaleConfig, ModelConfig, PrecisionConfig, fuses_attention
from model.decode import Decoder
from model.gpt import GPT, GPTLoss
from model.init import initialize
from model.precision import Precision
from parallel.errors import UserError
from parallel.mesh import Mesh
from tests.model.uncached import NextTokenLogits
from tests.parallel.oracle import compile_on_cpu
from train.build import casts_of
from train.config import TrainConfig
from train.gradients import LocalGradients
from train.step import TrainStep

MODEL = ModelConfig(vocab_size=61, vocab_multiple=8, hidden_size=32, num_layers=2, num_heads=4, seq_length=16, dropout=0.1)
TOKENS = np.random.RandomState(0).randint(1, 61, (4, 17)).astype(np.int32)
POSITIONS = np.arange(4, dtype=np.int32)
TRAIN = TrainConfig(lr=1e-2, total_steps=100, schedule="constant")
HALF = ("O1", "O2", "O3")


def make_gpt(level: str, **lists) -> GPT:
    network = GPT(MODEL, precision=Precision(PrecisionConfig(level=level, **lists)))
    initialize(network, MODEL, seed=3)
    return network


def make_step(level: str, scale: LossScaleConfig, **lists) -> TrainStep:
    ms.set_context(mode=ms.GRAPH_MODE)
    network = GPTLoss(make_gpt(level, **lists), 0)
    return TrainStep(LocalGradients(network, Mesh(1), 1), TRAIN, scale, TOKENS[:, 1:].size).set_train()


@pytest.fixture(scope="module")
def losses_in_float32():
    step = make_step("O0", LossScaleConfig())
    return [step(Tensor(TOKENS), Tensor(POSITIONS))[0].asnumpy().item() for _ in range(8)]


def of_cell(scope: str) -> str:
    """"Gradients/Default/gradients-LocalGradients/network-GPTLoss/gpt-GPT/blocks-CellList/0-Block/norm1-LayerNorm/..." ->
    "blocks.0.norm1"; of what is outside of the network "".
    """
    _, inside, rest = scope.partition("/network-GPTLoss/")
    return ".".join(part.split("-")[0] for part in rest.split("/") if "-" in part).removeprefix("gpt.") if inside else ""


@pytest.mark.parametrize("level", HALF)
def test_the_compiled_graph(level, losses_in_float32):
    """Each cell computes in its format, forward and backward, and all that is outside of the network in float32."""
    step = make_step(level, LossScaleConfig(dynamic=True, initial=2.0**12))
    losses = [step(Tensor(TOKENS), Tensor(POSITIONS))[0].asnumpy().item() for _ in range(8)]
    np.testing.assert_allclose(losses, losses_in_float32, rtol=5e-3)
    program = compile_on_cpu(step, TOKENS, POSITIONS)
    assert {p.dtype.name for p in program.main.parameters.values()} == {"float32", "int32"}
    wanted = {cast.name: cast.dtype for cast in casts_of(step.gradients.network.gpt)}
    checked = Counter()
    for node in program.nodes:
        kind = node.type[0] if isinstance(node.type, tuple) else node.type
        if getattr(kind, "dtype", None) not in ("float16", "float32") or node.op in ("Cast", "Load", "Depend", "MakeTuple"):
            continue
        cell = of_cell(node.scope)
        found = [name for name in wanted if cell == name or cell.startswith(f"{name}.")]
        assert len(found) < 2
        if found:
            # AddN adds up what comes from several cells, the table's two gradients for one.
            assert kind.dtype == wanted[found[0]] or node.op in ("TupleGetItem", "AddN"), (node.op, node.scope)
            checked[found[0]] += 1
        elif not cell:
            assert kind.dtype == "float32" or not node.scope, (node.op, node.scope)
            checked["outside", node.op] += 1
    assert checked.keys() >= wanted.keys() and checked["outside", "AdamWeightDecay"] == 36
    assert checked["outside", "Custom"] == 1  # the sums of all gradients' squares
    softmax = {"O1": "float32", "O2": "float32", "O3": "float16"}[level]
    assert wanted["blocks.0.attention.core.softmax"] == wanted["norm"] == softmax
    assert wanted["head_loss.loss"] == "float32" and wanted["head_loss.head"] == "float16"


def test_o3_is_what_mindspore_calls_o3():
    """Its own amp is the oracle: the same hidden state to the last bit."""
    ms.set_context(mode=ms.GRAPH_MODE)
    ours = make_gpt("O3").set_train(False)
    theirs = make_gpt("O0")
    ids = Tensor(TOKENS[:, :-1]), Tensor(POSITIONS)
    with pytest.MonkeyPatch.context() as patch:
        for module in ("layers", "attention", "gpt"):
            patch.setattr(f"model.{module}.on_cpu", lambda: False)
        theirs = make_gpt("O0")
    theirs = amp.auto_mixed_precision(theirs, "O3", ms.float16).set_train(False)
    expected = theirs(*ids)[0]
    assert expected.dtype == ms.float32
    np.testing.assert_array_equal(ours(*ids)[0].asnumpy().astype(np.float32), expected.asnumpy())


@pytest.mark.parametrize("level", HALF)
def test_decoding_in_half(level):
    """Text is written by the same numbers, within half precision: the cached decoder against whole texts in float32."""
    ms.set_context(mode=ms.GRAPH_MODE)
    exact, network = make_gpt("O0").set_train(False), make_gpt(level).set_train(False)
    text = TOKENS[0, :9].tolist()
    decoder = Decoder(network, 1, 16)
    found = [decoder.prefill(0, text[:8]), decoder.step([text[8]], [8])[0]]
    logits = NextTokenLogits(exact)
    for row, length in zip(found, (8, 9), strict=True):
        ids = np.zeros((1, 16), np.int32)
        ids[0, :length] = text[:length]
        wanted = logits(Tensor(ids), Tensor([length - 1], ms.int32)).asnumpy()[0, :61]
        assert row.dtype == np.float32
        np.testing.assert_allclose(row, wanted, atol=5e-3 * np.abs(wanted).max())


def test_lists_go_before_the_level_and_black_before_white():
    precision = Precision(PrecisionConfig(level="O1", white_list=("LayerNorm", "blocks.*.mlp"), black_list=("blocks.1", "Head")))
    of = {(name, kind): precision.of(name, kind).dtype for name, kind in (
        ("blocks.0.norm1", "LayerNorm"), ("blocks.1.norm1", "LayerNorm"), ("blocks.0.mlp.gelu", "Gelu"),
        ("blocks.1.mlp.up", "Linear"), ("blocks.10.mlp.up", "Linear"), ("head_loss.head", "Head"),
        ("head_loss.loss", "TokenLoss"))}
    assert list(of.values()) == ["float16", "float32", "float16", "float32", "float16", "float32", "float32"]


@pytest.mark.parametrize("key", ["white_list", "black_list"])
def test_a_pattern_that_fits_no_cell(key):
    network = make_gpt("O2", **{key: ("blocks.7", )})
    with pytest.raises(UserError, match=rf"precision.{key}: blocks.7 is no type and fits no name"):
        network.precision.check(network.casts)


def test_o0_sets_nothing():
    network = make_gpt("O0")
    assert not any(getattr(cell, flag, False) for _, cell in network.cells_and_names() for flag in ("fp16", "fp32", "bf16"))
    assert {cast.dtype for cast in network.casts} == {"float32"}


@pytest.mark.parametrize(("model", "precision", "fused"), [
    ({}, {"level": "O0"}, False), ({}, {"level": "O1"}, True), ({}, {"level": "O3", "dtype": "bfloat16"}, True),
    ({"flash_attention": False}, {"level": "O2"}, False), ({"dropout": 0.1}, {"level": "O2"}, False),
    ({"hidden_size": 32}, {"level": "O2"}, False), ({"hidden_size": 4 * 528}, {"level": "O2"}, False),
    ({}, {"level": "O2", "black_list": ("Weigh",)}, False), ({}, {"level": "O2", "black_list": ("blocks.1",)}, False),
    ({}, {"level": "O2", "black_list": ("blocks.*.mlp", "MaskedSoftmax")}, True)])
def test_where_the_fused_kernel_fits(model, precision, fused):
    config = ModelConfig(**{"vocab_size": 61, "hidden_size": 64, "num_layers": 2, "num_heads": 4} | model)
    assert fuses_attention(config, PrecisionConfig(**precision)) is fused
    assert "flash_attention" not in config.function()  # so that checkpoints stay what they were
