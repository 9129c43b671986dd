"""Faults in the network, its labels, its gradients and its settings: the right rule says so within 50 steps."""
import re

import mindspore as ms
from mindspore import Tensor, nn
from mindspore.ops import functional as F

import train.build
import train.run
from model import gpt as model_gpt
from model.gpt import GPTLoss

BATCH = 16  # HEALTHY's


def test_learning_rate_100_times_too_high(sick):
    sick("learning rate 100 times too high", "update_ratio", "train.lr=0.25", "train.stop_at_step=10")


def test_zero_initialised_layer(sick):
    """Asked for in the config, or the start is refused (tests/train/test_initial.py)."""
    zeros = "model.init=[{pattern: 'blocks.1.[am]*', kind: zeros}]"
    sick("a layer initialised with zeros", "saturation", zeros, "health.probe_samples=2", "train.stop_at_step=20")


def test_frozen_layer(sick, monkeypatch):
    build = train.run.build_gpt

    def planted(*arguments):
        gpt = build(*arguments)
        for p in gpt.blocks[1].trainable_params():
            p.requires_grad = False
        return gpt
    monkeypatch.setattr(train.run, "build_gpt", planted)
    sick("a layer frozen by mistake", "dead_layer", "train.stop_at_step=10")


def unshifted(self, tokens):
    """Each position is to predict the token that it reads."""
    batch, t = tokens.shape
    labels = self.reshape(self.slice(tokens, (0, 0), (batch, t - 1), (1, 1)), (-1,))
    return labels, self.cast(self.not_equal(labels, self.pad), ms.float32)


def shuffled(self, tokens):
    """Each position is to predict a token of elsewhere in its batch."""
    batch, t = tokens.shape
    labels = self.reshape(self.slice(tokens, (0, 1), (batch, t), (1, 1)), (t - 1, batch))
    labels = self.reshape(F.transpose(labels, (1, 0)), (-1,))
    return labels, self.cast(self.not_equal(labels, self.pad), ms.float32)


def test_labels_that_are_not_shifted(sick, monkeypatch):
    monkeypatch.setattr(model_gpt.Labels, "construct", unshifted)
    (event,) = sick("labels not shifted", "label_shift")
    assert re.match(r"9\d%|100% ", event["message"]), event  # all but tokens that stand twice


def test_shuffled_labels(sick, monkeypatch):
    monkeypatch.setattr(model_gpt.Labels, "construct", shuffled)
    sick("labels shuffled", "label_shift")


class Backwards(nn.Cell):
    """The identity, whose gradient at the batch of one step is 10,000 times what it should be."""

    def construct(self, sums, positions):
        return sums * 1.0

    def bprop(self, sums, positions, out, dout):
        factor = F.select(positions[0] == 29 * BATCH, Tensor(1e4, ms.float32), Tensor(1.0, ms.float32))
        return dout * factor, F.zeros_like(positions)


class Planted(nn.Cell):
    """Around the network: what comes out of it goes through another cell."""

    def __init__(self, network: nn.Cell, last: nn.Cell):
        super().__init__(auto_prefix=False)
        self.network, self.last = network, last

    def construct(self, tokens, positions):
        return self.last(self.network(tokens, positions), positions)


class Infinite(nn.Cell):
    """The loss is divided by zero from step 10 on."""

    def construct(self, sums, positions):
        return sums / F.stack((F.cast(positions[0] < 9 * BATCH, ms.float32), Tensor(1.0, ms.float32)))


def test_one_gradient_10000_times_too_large(sick, monkeypatch):
    monkeypatch.setattr(train.build, "GPTLoss", lambda *arguments: Planted(GPTLoss(*arguments), Backwards()))
    events = sick("a gradient multiplied by 1e4 at step 30", "gradient_explosion", "train.stop_at_step=40")
    assert {event["step"] for event in events if event["rule"] in ("gradient_explosion", "layer_gradient")} == {30}


def test_inf_from_one_operator(sick, monkeypatch):
    monkeypatch.setattr(train.build, "GPTLoss", lambda *arguments: Planted(GPTLoss(*arguments), Infinite()))
    sick("an inf from one operator, from step 10 on", "overflow_streak")


def test_float16_without_a_loss_scale(sick):
    """What is lost depends on how many tokens the loss is a mean of: a scale of 1e-5 makes of these 512 some 50 million."""
    small = "precision.loss_scale.initial=1e-5", "precision.loss_scale.min=1e-5"
    events = sick("float16 without a loss scale, 50 M tokens a step", "gradient_vanishing", "precision.level=O2", *small,
                  "train.stop_at_step=10")
    assert "loss scale" in events[0]["message"]
