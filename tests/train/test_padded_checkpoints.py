"""The token table's padding in training: it stays 0, changes no step, and is not in a checkpoint."""
import numpy as np
import pytest
from mindspore import Tensor

from ckpt import store
from model import attention, gpt, layers
from tests.conftest import metrics
from tests.train.test_step import MODEL, make_step, places, uneven
from train.config import RunConfig, load_config
from train.run import run
from train.state import identity_of

TABLE = "embedding.token"
PADDED = MODEL.model_copy(update={"vocab_multiple": 16})  # 50 tokens in 64 rows


@pytest.fixture(params=["cpu forms", "plain cells"])
def form(request, monkeypatch):
    if request.param == "plain cells":
        for module in (layers, attention, gpt):
            monkeypatch.setattr(module, "on_cpu", lambda: False)


def three_steps(model) -> tuple[list[list[float]], dict[str, np.ndarray]]:
    """(outputs of each step, weights and moments after the last); the strong weight decay would move any row but one of 0."""
    step = make_step(4, 2, 2, model=model, weight_decay=1.0, eps=1e-3)
    rows = [[x.asnumpy().item() for x in step(Tensor(uneven()), places(4, 4 * i))] for i in range(3)]
    return rows, {p.name: p.asnumpy() for p in (*step.weights, *step.optimizer.moment1, *step.optimizer.moment2)}


def test_padding_stays_0_and_changes_no_step(form):
    rows, wanted = three_steps(MODEL)
    padded_rows, found = three_steps(PADDED)
    np.testing.assert_allclose(padded_rows, rows, rtol=1e-5)
    tables = [name for name in found if name.endswith(TABLE)]
    assert len(tables) == 3  # the weights and both moments
    for name in tables:
        assert found[name].shape == (64, 16) and not found[name][50:].any() and np.abs(found[name][:50]).max(1).min() > 0
        found[name] = found[name][:50]
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.fixture(scope="module")
def trained(tiny_yaml, tmp_path_factory):
    """trained(name, *overrides) -> the config of a run that has been done: 20 steps with a checkpoint at 10."""
    folder = tmp_path_factory.mktemp("padding")

    def train(name, *overrides):
        config = load_config(tiny_yaml, [f"run.dir={folder}", f"run.name={name}", "ckpt.every_steps=10",
                                         "eval.stage.enabled=false", "eval.deep.enabled=false", *overrides])
        run(config)
        return config

    return train


@pytest.fixture(scope="module")
def runs(trained) -> dict[int, RunConfig]:
    """A run without padding, and one of 10 steps with the table's 700 rows padded to a multiple of 8, by that number."""
    return {1: trained("by_1"), 8: trained("by_8", "model.vocab_multiple=8", "train.stop_at_step=10")}


def checkpoint_of(config: RunConfig, step: int) -> store.Checkpoint:
    return store.load(store.folder_of(config.run.folder / "checkpoints", step))


def assert_same_steps(config: RunConfig, whole: RunConfig, steps: range) -> None:
    rows, wanted = metrics(config.run.folder), metrics(whole.run.folder)[steps.start - 1:steps.stop - 1]
    for a, b in zip(rows, wanted, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-5) and a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-4)
        assert all(a[key] == b[key] for key in ("step", "tokens", "consumed_samples", "loss_scale"))


def test_a_checkpoint_has_no_padding(runs):
    assert_same_steps(runs[8], runs[1], range(1, 11))
    plain, padded = (checkpoint_of(config, 10).tensors for config in runs.values())
    for part in ("model", "optimizer"):
        assert {n: a.shape for n, a in plain[part].items()} == {n: a.shape for n, a in padded[part].items()}
    assert padded["model"][TABLE].shape == padded["optimizer"][f"moment2.{TABLE}"].shape == (700, 16)


@pytest.mark.long
@pytest.mark.parametrize(("written", "resumed"), [(1, 8), (8, 1)])
def test_a_run_goes_on_with_another_padding(runs, trained, capsys, written, resumed):
    checkpoint = store.folder_of(runs[written].run.folder / "checkpoints", 10)
    config = trained(f"from_{written}", f"ckpt.resume={checkpoint}", f"model.vocab_multiple={resumed}")
    assert f"model.vocab_multiple {written} -> {resumed}" in capsys.readouterr().out
    assert_same_steps(config, runs[1], range(11, 21))
    assert checkpoint_of(config, 20).tensors["optimizer"][f"moment1.{TABLE}"].shape == (700, 16)


def test_padding_does_not_make_another_model(runs):
    """Or weights from elsewhere, as from import-hf, which know nothing of padding, would be refused."""
    identities = [identity_of(config, "tokenizer", "samples") for config in runs.values()]
    assert identities[0] == identities[1] and "vocab_multiple" not in identities[0]["model"]
