"""Parameter groups: what the config refuses, which setting a parameter has, and three steps against PyTorch's AdamW."""
import re
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
import yaml
from mindspore import Parameter, ParameterTuple, Tensor

from parallel.errors import UserError
from parallel.mesh import Mesh
from train import scaled
from train.config import TrainConfig, load_config
from train.groups import described, setting_of
from train.optimizer import AdamW

GROUPS = [{"pattern": "*.norm?.*", "lr_factor": 0.0}, {"pattern": "*.bias", "weight_decay": 0.3, "lr_factor": 2.0},
          {"pattern": "blocks.0.*", "weight_decay_factor": 0.5}]


def test_the_first_match_counts():
    config = TrainConfig(groups=GROUPS, weight_decay=0.1)
    for name, ndim, setting in (("blocks.0.norm1.bias", 1, (0.0, 0.0)), ("blocks.0.mlp.up.bias", 1, (2.0, 0.3)),
                                ("blocks.0.mlp.up.weight", 2, (1.0, 0.05)), ("blocks.1.mlp.up.weight", 2, (1.0, 0.1)),
                                ("norm.weight", 1, (1.0, 0.0))):
        assert setting_of(name, ndim, config) == setting, name
    assert described(["blocks.0.norm1.bias", "blocks.0.mlp.up.bias", "blocks.0.mlp.up.weight"], config) == [
        "*.norm?.* (1 parameters): frozen", "*.bias (1 parameters): learning rate x 2, weight decay 0.3",
        "blocks.0.* (1 parameters): learning rate x 1, weight decay x 0.5"]


@pytest.mark.parametrize(("override", "says"), [
    ("train.groups=[{pattern: 'blocks.*.atention.*'}]",
     "train.groups: the pattern blocks.*.atention.* matches no parameter; the nearest are blocks.*.attention."),
    ("train.groups=[{pattern: blocks.2.*}]", "the pattern blocks.2.* matches no parameter"),  # of two layers
    ("train.groups=[{pattern: '*'}, {pattern: norm.bias}]", "the pattern norm.bias does nothing, since the first match counts"),
    ("train.groups=[{pattern: '*', weight_decay: 1.0, weight_decay_factor: 2}]", "train.groups.0: weight_decay and weight_de"),
    ("train.groups=[{lr_factor: 2}]", "train.groups.0.pattern: missing; expected text"),
    ("train.groups=[{pattern: '*', lr_facto: 2}]", "train.groups.0.lr_facto: unknown key"),
    ("train.groups=[{pattern: '*', lr_factor: -1}]", "train.groups.0.lr_factor: got -1 (integer), expected a number >= 0"),
    ("train.groups={pattern: '*'}", "train.groups: got a map with the keys pattern, expected a list, each a section"),
    ("model.init=[{pattern: '*.wait', kind: ones}]", "model.init: the pattern *.wait matches no parameter; the nearest are"),
    ("model.init=[{pattern: '*.mlp.*', kind: he_normal}]",
     "model.init: he_normal is for matrices, but its pattern *.mlp.* is also the first to match the vector blocks.0.mlp.up.bias"),
    ("model.init=[{pattern: '*', kind: zeros, std: 0.1}]", "model.init.0: std=0.1 means nothing for zeros"),
])
def test_what_would_do_nothing_or_something_else_is_refused(override, says, plan_yaml):
    with pytest.raises(UserError) as error:
        load_config(plan_yaml, [override])
    assert str(error.value).startswith(f"--set {override}: ") and says in str(error.value)


@pytest.mark.parametrize("readme", ["README.md", "README_zh.md"])
def test_the_example_of_the_readme_is_a_config(readme, plan_yaml, tmp_path):
    text = (Path(__file__).parents[2] / readme).read_text(encoding="utf-8")
    shown, = re.findall(r"```yaml\n(.*?)```", text, re.S)
    path, plan = tmp_path / "shown.yaml", yaml.safe_load(plan_yaml.read_text(encoding="utf-8"))
    for name, section in yaml.safe_load(shown).items():
        plan[name] |= section
    path.write_text(yaml.safe_dump(plan), encoding="utf-8")
    config = load_config(path, ["parallel.tp=1"])
    assert config.train.optimizer == "adafactor" and len(config.train.groups) == 2 and len(config.model.init) == 1


def test_three_steps_as_pytorch():
    """torch 2.13.0: AdamW with a group for each of these (lr 0.01 times the factor, betas 0.9 and 0.95, eps 1e-8), the loss
    sum over i of (i + 1) * sum(p_i ** 2)."""
    ms.set_context(mode=ms.GRAPH_MODE)
    start = {"m.weight": [[1.0, -2.0], [0.5, 3.0]], "m.bias": [1.0, -1.0], "n.weight": [[2.0, 1.0]], "n.bias": [4.0]}
    wanted = {"m.weight": [0.9820196032524109, -1.9790219068527222, 0.4835195541381836, 2.976024627685547],
              "m.bias": [0.9611241221427917, -0.9611241221427917], "n.weight": [2.0, 1.0], "n.bias": [3.970001220703125]}
    groups = [{"pattern": "m.weight", "lr_factor": 0.5, "weight_decay_factor": 2.0}, {"pattern": "m.*", "weight_decay": 0.3},
              {"pattern": "n.weight", "lr_factor": 0.0}]
    weights = ParameterTuple(Parameter(Tensor(value, ms.float32), name=name) for name, value in start.items())
    optimizer = AdamW(weights, TrainConfig(groups=groups, weight_decay=0.1), 0.0)
    one, lr = Tensor(1.0, ms.float32), Tensor(1e-2, ms.float32)
    for _ in range(3):
        gradients = tuple(Tensor(2.0 * (i + 1) * p.asnumpy()) for i, p in enumerate(weights))
        optimizer(gradients, (one,) * len(weights), lr)
    for p in weights:
        np.testing.assert_allclose(p.asnumpy().reshape(-1), wanted[p.name], rtol=3e-7, err_msg=p.name)
    assert np.abs(optimizer.moment1[2].asnumpy()).min() > 0  # frozen: its moments go on


def test_a_rehearsal_keeps_the_groups_that_its_small_model_has(plan_yaml):
    config = load_config(plan_yaml, ["model.num_layers=8", "parallel.stage_layers=auto",
                                     "model.init=[{pattern: blocks.7.*, kind: ones}]",
                                     "train.groups=[{pattern: blocks.7.*, lr_factor: 0}, {pattern: '*.bias', lr_factor: 2}]"])
    small = scaled.scaled(config, Mesh(2, 2, 2), 4, set())
    assert small.model.num_layers == 4 and [group.pattern for group in small.train.groups] == ["*.bias"]
