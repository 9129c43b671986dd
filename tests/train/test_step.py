"""The step's own rules: token-weighted mean (N3), overflow, loss scale, schedule."""
import math

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops

from ckpt import store, writing
from eval.health.rules.base import Facts
from eval.health.rules.config import RulesConfig
from eval.health.rules.steps import LearningRate as LearningRateRule
from eval.step import EvalStep
from model.config import LossScaleConfig, ModelConfig, PrecisionConfig
from model.cpu import compiled, pure
from model.gpt import GPT, GPTLoss
from model.init import initialize
from model.precision import Precision
from parallel.mesh import Mesh
from train import show_schedule
from train.config import TrainConfig, load_config
from train.gradients import LocalGradients
from train.schedule import Schedule, learning_rate
from train.step import TrainStep

MODEL = ModelConfig(vocab_size=50, hidden_size=16, num_layers=1, num_heads=2, seq_length=120, init_std=0.1)


def make_step(batch, micro, count, loss_scale=None, mesh=None, model=MODEL, level="O0", **train):
    """A training step of a small model with tests' initial weights."""
    ms.set_context(mode=ms.GRAPH_MODE)
    gpt = GPT(model, precision=Precision(PrecisionConfig(level=level)))
    initialize(gpt, model, 3)
    config = TrainConfig(global_batch_size=batch, micro_batch_size=micro, lr=1e-2, schedule="constant", **train)
    gradients = LocalGradients(GPTLoss(gpt, 0), mesh or Mesh(1), count)
    return TrainStep(gradients, config, loss_scale or LossScaleConfig(), batch * 120).set_train()


def places(count, start=0):
    """Positions of samples that follow one another in the run."""
    return Tensor(np.arange(start, start + count), ms.int32)


def uneven():
    """Four sequences with 3, 5, 50 and 120 real tokens."""
    rng, tokens = np.random.RandomState(1), np.zeros((4, 121), np.int32)
    for row, length in zip(tokens, (3, 5, 50, 120), strict=True):
        row[:length + 1] = rng.randint(4, 50, length + 1)
    return tokens


@pytest.mark.parametrize(("level", "rounding"), [("O0", 1e-5), ("O2", 2e-3)])
def test_uneven_micro_batches_give_the_mean_over_all_tokens(level, rounding):  # N3
    results, scale = [], LossScaleConfig(initial=1024.0)
    for micro, count in ((4, 1), (1, 4), (2, 2)):
        step = make_step(4, micro, count, scale, level=level, eps=1.0)  # a large epsilon: updates are as the gradients
        loss, norm, _, overflow, _, tokens = (x.asnumpy().item() for x in step(Tensor(uneven()), places(4)))
        assert tokens == 3 + 5 + 50 + 120 and not overflow
        results.append((loss, norm, {p.name: p.asnumpy() for p in step.weights}))
    for loss, norm, weights in results[1:]:
        assert loss == pytest.approx(results[0][0], rel=rounding) and norm == pytest.approx(results[0][1], rel=rounding)
        for name, value in weights.items():
            np.testing.assert_allclose(value, results[0][2][name], rtol=1e-5, atol=0.01 * rounding)


def test_the_loss_is_the_mean_of_the_token_losses():
    step = make_step(4, 2, 2)
    losses, counts, _ = (x.asnumpy() for x in EvalStep(step.gradients.network.gpt, 0)(Tensor(uneven()), places(4) * 0))
    assert counts.tolist() == [3, 5, 50, 120]
    loss = step(Tensor(uneven()), places(4))[0].asnumpy().item()
    assert loss == pytest.approx(losses.sum() / counts.sum(), rel=1e-6)
    assert loss != pytest.approx((losses / counts).mean(), rel=1e-4)  # a mean of means is another number


def test_dropout_goes_by_the_positions():
    step = make_step(4, 2, 2, model=MODEL.model_copy(update={"dropout": 0.3}))
    start = [p.asnumpy() for p in step.weights]

    def loss(*positions):
        for p, value in zip(step.weights, start, strict=True):
            p.set_data(Tensor(value))
        return step(Tensor(uneven()), Tensor(positions, ms.int32))[0].asnumpy().item()

    here = loss(0, 1, 2, 3)
    assert loss(0, 1, 2, 3) == here
    for others in ((0, 1, 2, 4), (0, 5, 2, 3), (-2**31, 2**31 - 1, 2, 3)):  # in each micro-batch
        assert loss(*others) != pytest.approx(here, rel=1e-5)


class Overflowing(nn.Cell):
    """A loss of one weight whose gradient is infinite where the batch says so: x / 0."""

    def __init__(self):
        super().__init__(auto_prefix=False)
        self.weight, self.stack = Parameter(Tensor([[2.0]], ms.float32), name="weight"), ops.Stack()

    def construct(self, tokens, positions):
        divisor = tokens.astype(ms.float32).sum()
        return self.stack(((self.weight / divisor).sum(), Tensor(1.0, ms.float32)))


def run_overflows(batches, **loss_scale):
    """Rows (scale, overflow, weight after) of one-sample batches; 0 overflows."""
    config = TrainConfig(global_batch_size=1, micro_batch_size=1, schedule="constant", weight_decay=0.0)
    scale = LossScaleConfig(dynamic=True, **loss_scale)
    step = TrainStep(LocalGradients(Overflowing(), Mesh(1), 1), config, scale, 1).set_train()
    rows = []
    for value in batches:
        _, _, scale, overflow, _, _ = (x.asnumpy().item() for x in step(Tensor([[value, 0]], ms.int32), places(1)))
        rows.append((scale, bool(overflow), step.weights[0].asnumpy().item()))
    return step, rows


def test_an_overflow_skips_the_update_and_halves_the_scale():
    step, rows = run_overflows([1, 1, 0, 0, 1, 1, 1, 1, 1], initial=1024.0, growth_interval=3)
    assert [r[0] for r in rows] == [1024, 1024, 1024, 512, 256, 256, 256, 512, 512]
    assert [r[1] for r in rows] == [False, False, True, True, False, False, False, False, False]
    weights = [r[2] for r in rows]
    assert weights[1] == weights[2] == weights[3] != weights[4]
    assert all(np.isfinite(p.asnumpy()).all() for p in step.get_parameters())
    assert step.optimizer.updates.asnumpy() == 7 and step.steps.asnumpy() == 9


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_in_float16_a_scale_that_is_far_too_large_settles_and_trains(level):  # N1, third
    step = make_step(4, 4, 1, LossScaleConfig(dynamic=True, initial=2.0**30, max=2.0**30), level=level)
    rows = [[x.asnumpy().item() for x in step(Tensor(uneven()), places(4))] for _ in range(30)]
    skipped = [bool(row[3]) for row in rows]
    settled = skipped.index(False)
    assert 4 < settled < 24 and not any(skipped[settled:])
    assert [row[2] for row in rows[:settled + 1]] == [2.0**(30 - i) for i in range(settled + 1)]
    assert len({row[0] for row in rows[:settled + 1]}) == 1  # no weight moved
    assert rows[-1][0] < rows[0][0] - 0.5


def test_the_scale_stays_within_its_bounds():  # N1
    _, rows = run_overflows([0] * 6, initial=4.0, min=1.0)
    assert [r[0] for r in rows] == [4, 2, 1, 1, 1, 1]
    _, rows = run_overflows([1] * 6, initial=4.0, max=16.0, growth_interval=1)
    assert [r[0] for r in rows] == [4, 8, 16, 16, 16, 16]


def test_a_fixed_scale_stays(tmp_path):
    config = TrainConfig(global_batch_size=1, micro_batch_size=1)
    step = TrainStep(LocalGradients(Overflowing(), Mesh(1), 1), config, LossScaleConfig(initial=8.0), 1).set_train()
    assert [step(Tensor([[v, 0]], ms.int32), places(1))[2].asnumpy().item() for v in (1, 0, 1)] == [8, 8, 8]


@pytest.mark.parametrize("shape", ["cosine", "linear", "constant", "wsd", "inverse_sqrt"])
@pytest.mark.parametrize("warmup", [0, 4])
def test_schedule_by_its_formula(shape, warmup):
    config = TrainConfig(total_steps=20, lr=2.0, min_lr=0.5, warmup_steps=warmup, schedule=shape, decay_fraction=0.25)
    schedule = Schedule(config)
    for step in range(25):
        share = min(max((step - warmup) / (20 - warmup), 0.0), 1.0)
        lr = {"constant": 2.0, "linear": 2.0 - 1.5 * share, "cosine": 0.5 + 0.75 * (1 + math.cos(math.pi * share)),
              "wsd": np.interp(share, [0.0, 0.75, 1.0], [2.0, 2.0, 0.5]),
              "inverse_sqrt": max(0.5, 2.0 * (max(warmup, 1) / max(step + 1, warmup)) ** 0.5)}[shape]
        if warmup:
            lr *= min((step + 1) / warmup, 1.0)
        assert schedule(Tensor(step, ms.int32)).asnumpy() == pytest.approx(lr, rel=1e-5)
        assert learning_rate(config, step) == pytest.approx(lr, rel=1e-9)


@pytest.mark.parametrize("shape", ["cosine", "linear", "wsd"])
def test_float32_at_the_end_of_a_schedule_is_no_fault(shape):
    """What the step computes, against what the health rule expects, where hardly anything is left of the peak."""
    config = TrainConfig(total_steps=100_000, lr=6e-4, min_lr=0.0, warmup_steps=2000, schedule=shape)
    schedule = Schedule(config)
    facts = Facts(6.0, 2000, config.lr, lambda step: learning_rate(config, step - 1))
    rule = LearningRateRule(RulesConfig().learning_rate, facts)
    for step in (1, 2000, 2001, 50_000, 91_000, *range(99_900, 100_001, 10), 99_999):
        lr = schedule(Tensor(step - 1, ms.int32)).asnumpy().item()
        assert rule.see({"step": step, "lr": lr}) is None, (step, lr)
        assert rule.see({"step": step, "lr": lr * 1.01 + config.lr * 1e-4}) is not None


def test_the_schedule_is_shown_from_the_newest_checkpoint_on(tiny_yaml, tmp_path, capsys):
    arguments = ["--config", str(tiny_yaml), "--set", f"run.dir={tmp_path}", "train.schedule=wsd"]
    assert show_schedule.main(["--steps", "15", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 15 and lines[0].split()[0] == "1"
    folder = tmp_path / "tiny" / "checkpoints"
    writing.save(folder, store.Checkpoint({"model": {"w": np.zeros(1, np.float32)}}, {"step": 12}, ""), 1)
    assert show_schedule.main(arguments) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    config = load_config(tiny_yaml, ["train.schedule=wsd"]).train
    assert [int(step) for step, _ in rows] == [*range(13, 21)]
    assert [float(rate) for _, rate in rows] == pytest.approx([learning_rate(config, step) for step in range(12, 20)], rel=1e-5)
    for wrong in (["--steps", "0"], ["--from-step", "20"], ["--from-step", "-1"]):
        assert show_schedule.main([*wrong, *arguments]) == 2
        assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.parametrize("form", [pure, compiled])
def test_the_norm_of_many_values_on_cpu(form):
    x = np.random.RandomState(0).standard_normal(20_000_000).astype(np.float32) * np.float32(1e-3)
    found = form.SquareSums()((Tensor(x),)).asnumpy().item()
    assert found == pytest.approx(float(np.square(x.astype(np.float64)).sum()), rel=1e-6)
