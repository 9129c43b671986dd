"""Clipping in each mode against its formula and PyTorch's; what is not finite skips the step in each.

The PyTorch figures, torch 2.13.0:
    a, b = (torch.nn.Parameter(torch.zeros(n)) for n in (2, 3))
    a.grad, b.grad = torch.tensor([3.0, -4.0]), torch.tensor([0.1, 0.2, -0.2])
    clip_grad_norm_([a, b], 1.0); clip_grad_norm_([a], 1.0), clip_grad_norm_([b], 1.0); clip_grad_value_([a, b], 0.15)
"""
import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

from model.config import LossScaleConfig
from parallel.mesh import Mesh
from train.clipping import Clip
from train.config import TrainConfig
from train.gradients import LocalGradients
from train.step import TrainStep

GRADIENTS = {"a": [3.0, -4.0], "b": [0.1, 0.2, -0.2]}  # norms 5 and 0.3
TORCH = {"global_norm": {"a": [0.59892285, -0.79856378], "b": [0.0199641, 0.03992819, -0.03992819]},
         "norm": {"a": [0.5999999, -0.79999983], "b": [0.1, 0.2, -0.2]},
         "value": {"a": [0.15, -0.15], "b": [0.1, 0.15, -0.15]}}
THRESHOLD = {"global_norm": 1.0, "norm": 1.0, "value": 0.15}
MODES = [*THRESHOLD, None]


class Linear(nn.Cell):
    """A loss whose gradients are GRADIENTS, of the weight that the batch names infinite."""

    def __init__(self):
        super().__init__(auto_prefix=False)
        self.a, self.b = (Parameter(Tensor(np.zeros(len(g)), ms.float32), name=n) for n, g in GRADIENTS.items())
        self.slope_a, self.slope_b = (Tensor(g, ms.float32) for g in GRADIENTS.values())
        self.one, self.stack = Tensor(1.0, ms.float32), ops.Stack()

    def construct(self, tokens, positions):
        divisors = tokens[0].astype(ms.float32)  # 0: infinite
        loss = (self.a * self.slope_a / divisors[0]).sum() + (self.b * self.slope_b / divisors[1]).sum()
        return self.stack((loss, self.one))


def make_step(mode, scale=8.0):
    ms.set_context(mode=ms.GRAPH_MODE)
    clip = {"clip_norm": None} if mode is None else {"clip_norm": THRESHOLD[mode], "clip_by": mode}
    config = TrainConfig(global_batch_size=1, schedule="constant", weight_decay=0.0, betas=(0.0, 0.0), **clip)
    gradients = LocalGradients(Linear(), Mesh(1), 1, config.clips_each)
    return TrainStep(gradients, config, LossScaleConfig(initial=scale), 1).set_train()


def run(step, batch):
    _, norm, _, overflow, _, _ = (x.asnumpy().item() for x in step(Tensor([batch], ms.int32), Tensor([0], ms.int32)))
    return norm, overflow


@pytest.mark.parametrize("mode", MODES)
def test_what_the_optimizer_is_given(mode):
    """With betas of 0 Adam's first moment is the gradient that it was given. The norm is that before clipping."""
    step = make_step(mode)
    norm, overflow = run(step, [1, 1])
    assert norm == pytest.approx(np.sqrt(25.09), rel=1e-6) and not overflow
    for moment in step.optimizer.moment1:
        name = moment.name.removeprefix("moment1.")
        np.testing.assert_allclose(moment.asnumpy(), (TORCH.get(mode) or GRADIENTS)[name], rtol=2e-6, err_msg=name)


@pytest.mark.parametrize("batch", [[0, 1], [1, 0]], ids=["a", "b"])
@pytest.mark.parametrize("mode", MODES)
def test_one_infinite_gradient_skips_the_step(mode, batch):
    step = make_step(mode)
    run(step, [1, 2])
    before = {p.name: p.asnumpy().copy() for p in step.get_parameters() if p.name != "steps"}
    norm, overflow = run(step, batch)
    assert overflow and not np.isfinite(norm)
    assert {p.name for p in step.get_parameters()} == before.keys() | {"steps"}
    for p in step.get_parameters():
        if p.name != "steps":
            assert np.array_equal(p.asnumpy(), before[p.name]), p.name
    assert np.abs(before["a"]).min() > 0 and np.abs(before["moment1.b"]).min() > 0
    assert run(step, [1, 1]) == (pytest.approx(np.sqrt(25.09), rel=1e-6), False)


@pytest.mark.parametrize("count", [1, 2, 7, 600])  # 600: 37 blocks of GPT-2
def test_every_parameter_gets_the_factor_also_of_a_deep_model(count):
    factors = Clip(TrainConfig(clip_norm=1.0), count)(Tensor(4.0), Tensor([0.0]), Tensor(0.5))
    assert len(factors) == count and {float(f) for f in factors} == {float(np.float32(0.5) * np.float32(1.0 / 4.000001))}
