"""Whole runs of a tiny Llama: what watches the model sees it, a resume changes nothing, texts are written."""
import json

import numpy as np
import pytest

from ckpt import store
from parallel.errors import UserError
from tests.conftest import exact, metrics
from train.config import load_config
from train.generate import main as generate
from train.run import run

LLAMA = ("model.architecture=llama", "model.num_kv_heads=1", "model.tie_embeddings=false", "model.ffn_hidden_size=24",
         "model.num_layers=1", "train.total_steps=10", "health.probe_samples=2")
HALF = ("precision.level=O2", "precision.loss_scale.initial=65536")


@pytest.fixture(scope="module")
def folder(tiny_yaml, tmp_path_factory):
    """10 steps without a stop, and an evaluation in both tiers."""
    config = load_config(tiny_yaml, [f"run.dir={tmp_path_factory.mktemp('llama')}", *LLAMA])
    assert run(config)
    return config.run.folder


def test_it_learns_and_is_watched(folder):
    rows = metrics(folder)
    assert rows[-1]["loss"] < rows[0]["loss"] - 0.1
    layers = next(row["health"]["layers"] for row in reversed(rows) if row.get("health"))
    assert list(layers) == ["embedding", "block_00", "norm"] and all(f["grad_norm"] > 0 for f in layers.values())
    assert 0 <= layers["block_00"]["saturated"] < 1 and 0 < layers["block_00"]["attention_entropy"] <= 1
    reports = [json.loads(path.read_text()) for path in (folder / "eval").glob("*.json")]
    assert any("deep" in report for report in reports) and all(np.isfinite(report["stage"]["all"]["loss"]) for report in reports)


@pytest.mark.long
def test_stopping_and_resuming_changes_nothing(folder, tiny):
    for more in (("train.stop_at_step=5",), ()):
        assert run(tiny(*LLAMA, *more))
    again = tiny().run.folder
    assert exact(metrics(again)) == exact(metrics(folder))
    a, b = (store.load(f / "checkpoints" / "step_00000010").tensors for f in (folder, again))
    assert "head.token" in a["model"] and all(np.array_equal(a[part][n], b[part][n]) for part in a for n in a[part])


@pytest.mark.parametrize(("change", "says"), [
    ("model.rope_theta=500", r"model\.rope_theta: 10000\.0 in the checkpoint, 500\.0 here"),
    ("model.num_kv_heads=2", r"model\.num_kv_heads: 1 in the checkpoint, 2 here")])
def test_another_function_of_the_same_weights_is_refused(folder, tiny, change, says):
    with pytest.raises(UserError, match=says):
        run(tiny(*LLAMA, change, f"ckpt.init_from={folder}"))


def test_a_gpt2_takes_no_llama(folder, tiny):
    with pytest.raises(UserError, match="unexpected: head.token"):
        run(tiny(f"ckpt.init_from={folder}"))


def test_texts(folder, capsys):
    capsys.readouterr()
    assert generate(["--checkpoint", str(folder), "--prompt", "It is", "--max-new-tokens", "8"]) == 0
    assert len(capsys.readouterr().out) > len("It is\n")


@pytest.mark.long
def test_half_precision_follows(folder, tiny):
    assert run(tiny(*LLAMA, *HALF))
    found, wanted = ([row["loss"] for row in metrics(f)] for f in (tiny().run.folder, folder))
    assert found != wanted
    np.testing.assert_allclose(found, wanted, rtol=0.02)
