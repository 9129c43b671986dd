"""Five training steps against PyTorch's (torch.optim.AdamW, clip_grad_norm_, schedule; figures: tests/golden/make_golden.py)."""
import json
from pathlib import Path
from types import SimpleNamespace

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor
from safetensors.numpy import load_file

from ckpt import hf, store
from model.config import LossScaleConfig, ModelConfig
from model.cpu import library
from model.gpt import GPT, GPTLoss
from parallel.mesh import Mesh
from train.config import TrainConfig
from train.gradients import LocalGradients
from train.state import identity_of, restore_weights
from train.step import TrainStep

GOLDEN = Path(__file__).parents[1] / "golden"
FIGURES = json.loads((GOLDEN / "golden.json").read_text())
TENSORS = load_file(GOLDEN / "training.safetensors")
SIZES = hf.model_of(hf.read_json(GOLDEN / "gpt2" / "config.json"), GOLDEN)
KEY_BIAS = ".attention.key.bias"


def make_step(name: str, micro_batch_size: int = 4, loss_scale: LossScaleConfig | None = None, **changes) -> TrainStep:
    """A training step on the golden model, with the settings of a golden run."""
    ms.set_context(mode=ms.GRAPH_MODE)
    config = TrainConfig(**{**FIGURES["runs"][name]["settings"], "micro_batch_size": micro_batch_size, **changes})
    gradients = LocalGradients(GPTLoss(GPT(ModelConfig(**SIZES)), FIGURES["pad"]), Mesh(1),
                               config.global_batch_size // micro_batch_size)
    step = TrainStep(gradients, config, loss_scale or LossScaleConfig(), config.global_batch_size * SIZES["seq_length"])
    weights = hf.from_hf(hf.read_weights(GOLDEN / "gpt2"), SIZES)
    for p in step.weights:
        p.set_data(Tensor(weights[p.name]))
    return step.set_train()


def run(step: TrainStep) -> list[tuple]:
    """(loss, grad_norm, loss_scale, overflow, lr, tokens) of each step."""
    return [tuple(x.asnumpy().item() for x in step(Tensor(tokens, ms.int32), Tensor(np.arange(len(tokens)), ms.int32)))
            for tokens in TENSORS["tokens"]]


def differences_of(step: TrainStep, name: str) -> dict[str, np.ndarray]:
    """Absolute differences of each weight from PyTorch's after the last step."""
    wanted = hf.from_hf({n.removeprefix(f"{name}."): a for n, a in TENSORS.items() if n.startswith(f"{name}.")}, SIZES)
    found = {p.name: p.asnumpy() for p in step.weights}
    assert found.keys() == wanted.keys()
    return {n: np.abs(found[n] - wanted[n]) for n in wanted}


def worst_differences(step: TrainStep, name: str) -> dict[str, float]:
    """The largest of each weight."""
    return {n: float(d.max()) for n, d in differences_of(step, name).items()}


def assert_as_pytorch(step: TrainStep, name: str, cancelling: int = 0) -> None:
    """cancelling: elements in the run `usual` whose gradient may be a sum that comes to nearly nothing."""
    figures = FIGURES["runs"][name]
    losses, norms, _, overflows, lrs, tokens = zip(*run(step), strict=True)
    np.testing.assert_allclose(losses, figures["losses"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(norms, figures["grad_norms"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(lrs, figures["lrs"], rtol=1e-6)
    assert not any(overflows)
    assert list(tokens) == [int((batch[:, 1:] != FIGURES["pad"]).sum()) for batch in TENSORS["tokens"]]
    differences = differences_of(step, name)
    if name == "usual":
        # A key's bias adds the same to all scores of a row, and softmax takes it away: its gradient is zero but for rounding,
        # which Adam magnifies to steps of up to the learning rate. In the run with the large epsilon it is held like all others.
        noise = [differences.pop(n) for n in list(differences) if n.endswith(KEY_BIAS)]
        assert len(noise) == SIZES["num_layers"]
        assert max(d.max() for d in noise) < 4 * sum(figures["lrs"])
    flat = np.sort(np.concatenate([d.ravel() for d in differences.values()]))
    assert flat[-1 - cancelling] < 1e-5 and flat[-1] < 1e-4, differences


@pytest.mark.parametrize("name", FIGURES["runs"])
def test_five_steps(name, monkeypatch):
    monkeypatch.setattr(library, "problem", lambda: "the pure form")
    assert_as_pytorch(make_step(name), name)


@pytest.mark.parametrize("name", FIGURES["runs"])
def test_five_steps_of_the_compiled_operators(name):
    assert library.problem() == ""
    assert_as_pytorch(make_step(name), name, cancelling=int(name == "usual"))  # one element of a value's weight


def test_two_micro_batches_with_uneven_numbers_of_tokens():
    assert_as_pytorch(make_step("large_eps", micro_batch_size=2), "large_eps")


def test_a_large_dynamic_loss_scale_changes_nothing():
    step = make_step("large_eps", loss_scale=LossScaleConfig(dynamic=True, initial=2.0**15, growth_interval=2))
    assert_as_pytorch(step, "large_eps")
    assert step.scaler.scale.asnumpy().item() == 2.0**17  # it grew twice on the way


def test_a_run_starts_from_an_imported_gpt2(tmp_path):
    """What ckpt.init_from does with the checkpoint that import-hf makes."""
    hf.import_hf(GOLDEN / "gpt2", tmp_path / "imported")
    step = make_step("usual")
    wanted = {p.name: p.asnumpy() for p in step.weights}
    for p in step.weights:
        p.set_data(Tensor(np.zeros(p.shape, np.float32)))
    checkpoint = store.load_given(tmp_path / "imported")
    config = SimpleNamespace(model=ModelConfig(**SIZES), run=SimpleNamespace(seed=0))
    restore_weights(step, checkpoint, identity_of(config, "tokenizer", "samples"), "imported")
    assert all(np.array_equal(p.asnumpy(), wanted[p.name]) for p in step.weights)


def test_weight_decay_and_bias_correction_are_seen():
    """The comparison above can fail: without weight decay, or with bias correction off by one step, the weights differ."""
    step = make_step("large_eps", weight_decay=0.0)
    run(step)
    assert max(worst_differences(step, "large_eps").values()) > 1e-4
    step = make_step("large_eps")
    step.optimizer.updates.set_data(Tensor(1, ms.int32))
    run(step)
    assert max(worst_differences(step, "large_eps").values()) > 1e-4
