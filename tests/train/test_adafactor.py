"""Adafactor: steps against transformers' (tests/train/make_adafactor.py), padding, checkpoints, memory, what is refused."""
import json
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, ParameterTuple, Tensor

from ckpt import store
from ckpt.reshard import reshard
from parallel.cost.memory import stage_memory
from parallel.errors import UserError
from parallel.mesh import Mesh
from tests.conftest import exact, metrics
from train.adafactor import Adafactor
from train.config import TrainConfig, load_config
from train.plans import plan_of
from train.run import run

GOLDEN = json.loads((Path(__file__).parent / "adafactor.json").read_text(encoding="utf-8"))
TABLE = "embedding.token"
QUIET = ("train.optimizer=adafactor", "eval.stage.enabled=false", "eval.deep.enabled=false", "train.total_steps=4",
         "train.warmup_steps=1", "ckpt.every_steps=2")


def golden_steps(padding: int = 0, scale: float = 1.0) -> tuple[list[dict], Adafactor]:
    """The weights after each step, of a token table with so many rows of padding; gradients come scaled."""
    ms.set_context(mode=ms.GRAPH_MODE)

    def padded(name, value):
        value = np.array(value, np.float32)
        return np.pad(value, ((0, padding), (0, 0))) if name == TABLE else value

    weights = ParameterTuple(Parameter(Tensor(padded(name, value)), name=name) for name, value in GOLDEN["start"].items())
    optimizer = Adafactor(weights, TrainConfig(weight_decay=GOLDEN["decay"], eps=1e-15), 0.0, len(GOLDEN["start"][TABLE]))
    factors, after = (Tensor(1.0 / scale, ms.float32),) * len(weights), []
    for rate, gradients in zip(GOLDEN["rates"], GOLDEN["gradients"], strict=True):
        optimizer(tuple(Tensor(padded(w.name, gradients[w.name]) * np.float32(scale)) for w in weights), factors,
                  Tensor(rate, ms.float32))
        after.append({w.name: w.asnumpy().copy() for w in weights})
    return after, optimizer


@pytest.mark.parametrize("padding", [0, 9])
def test_steps_as_transformers(padding):
    after, optimizer = golden_steps(padding, scale=64.0)
    for found, wanted in zip(after, GOLDEN["after"], strict=True):
        for name, value in wanted.items():
            np.testing.assert_allclose(found[name][:len(value)], value, rtol=2e-6, atol=2e-7, err_msg=name)
            assert not found[name][len(value):].any()
    moved = np.abs(np.array(GOLDEN["after"][-1]["mlp.bias"]) - GOLDEN["start"]["mlp.bias"])
    assert moved.min() > 1e-3  # a thousand times the tolerance
    assert {p.name: p.shape for p in optimizer.state} == {
        "moment2_rows.embedding.token": (7 + padding,), "moment2_columns.embedding.token": (4,), "moment2_rows.mlp.weight": (5,),
        "moment2_columns.mlp.weight": (3,), "moment2.mlp.bias": (5,)}
    if padding:  # what a checkpoint keeps is the same
        for p, plain in zip(optimizer.state, golden_steps()[1].state, strict=True):
            np.testing.assert_allclose(p.asnumpy()[:plain.shape[0]], plain.asnumpy(), rtol=1e-5)


@pytest.fixture(scope="module")
def whole(tiny_yaml, tmp_path_factory):
    """The config of a run that was not interrupted."""
    config = load_config(tiny_yaml, [f"run.dir={tmp_path_factory.mktemp('whole')}", *QUIET, "health.every_steps=2"])
    assert run(config)
    return config


def tensors(config, step=4) -> dict[str, np.ndarray]:
    parts = store.load_given(config.run.folder / "checkpoints" / f"step_{step:08d}").tensors
    return {name: np.array(x) for part in parts.values() for name, x in part.items()}


@pytest.mark.long
def test_a_resumed_run_gives_the_same_bits(whole, tiny):
    run(tiny(*QUIET, "train.stop_at_step=2", "health.enabled=false"))
    config = tiny(*QUIET, "health.enabled=false")
    run(config)
    assert exact(metrics(config.run.folder)) == exact(metrics(whole.run.folder))
    found, wanted = tensors(config), tensors(whole)
    assert found.keys() == wanted.keys() and all(np.array_equal(found[name], wanted[name]) for name in found)
    assert found[f"moment2_rows.{TABLE}"].shape == (700,) and found[f"moment2_columns.{TABLE}"].shape == (16,)
    assert all(np.abs(found[name]).max() > 0 for name in found if name.startswith("moment2"))


def test_the_layers_are_watched_without_their_gradients(whole):
    layers = metrics(whole.run.folder)[-1]["health"]["layers"]
    for values in layers.values():
        assert values["grad_norm"] is None and values["weight_norm"] > 0 and values["update_ratio"] > 0


def test_another_optimizer_is_refused_in_one_line(whole, tiny):
    with pytest.raises(UserError, match="\n  train.optimizer: adafactor in the checkpoint, adamw here, whose state it do"):
        run(tiny(*QUIET, "train.optimizer=adamw", f"ckpt.resume={whole.run.folder / 'checkpoints' / 'step_00000002'}"))


def test_a_checkpoint_is_written_again_for_stages(whole, tmp_path):
    found = store.load_given(reshard(whole.run.folder / "checkpoints", tmp_path / "two", dp=1, tp=1, pp=2)).tensors
    wanted = tensors(whole)
    written = {name: np.asarray(x) for part in found.values() for name, x in part.items()}
    assert written.keys() == wanted.keys() and all(np.array_equal(written[name], wanted[name]) for name in wanted)


def test_an_epsilon_that_float32_does_not_square_is_refused(plan_yaml):
    with pytest.raises(UserError, match="train.eps=1e-20: train.optimizer=adafactor takes its square"):
        load_config(plan_yaml, ["train.optimizer=adafactor", "parallel.tp=1", "train.eps=1e-20"])


@pytest.mark.parametrize("override", [["parallel.tp=2"], ["parallel.tp=1", "parallel.optimizer_sharding=true"]])
def test_what_cuts_matrices_is_refused(override, plan_yaml):
    with pytest.raises(UserError, match=r"train.optimizer=adafactor takes means over whole matrices.*: set tp to 1 and optim"):
        load_config(plan_yaml, ["train.optimizer=adafactor", *override])


def test_the_estimate_of_memory(plan_yaml):
    """By hand, of 2 layers, hidden 32, ffn 128, 61 tokens, 16 positions, on one card."""
    one_card = ["parallel.dp=1", "parallel.tp=1", "parallel.pp=1", "parallel.stage_layers=[2]"]
    moments = {name: stage_memory(*plan_of(load_config(plan_yaml, [*one_card, f"train.optimizer={name}"]), Mesh(1), 1), 0).moments
               for name in ("adamw", "adafactor")}
    matrices = [(61, 32), (16, 32), *[(32, 32)] * 8, *[(128, 32), (32, 128)] * 2]
    vectors = 2 * (4 * 32 + 4 * 32 + 128 + 32) + 2 * 32
    assert moments["adamw"] == 8 * (sum(a * b for a, b in matrices) + vectors)
    assert moments["adafactor"] == 4 * (sum(a + b for a, b in matrices) + vectors)
