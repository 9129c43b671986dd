"""--help: every key of a config file, with what it takes, its unit, its default and its meaning."""
import re

import pytest

from parallel.config_docs import UNITS, describe, keys, meaning, unit
from train.__main__ import main
from train.config import RunConfig

KEYS = dict(keys(RunConfig))


@pytest.mark.parametrize("name", KEYS)
def test_every_key_says_what_it_means(name):
    assert re.search(r"\w{3}", meaning(KEYS[name])), f"{name}: give its Field a description, or its section a docstring"


def test_help_lists_every_key(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    text = capsys.readouterr().out
    assert end.value.code == 0 and text.endswith(describe(RunConfig) + "\n")
    assert set(re.findall(r"^([\w.\[\]]+): ", describe(RunConfig), re.M)) == {"base", *KEYS}
    assert max(map(len, text.splitlines())) <= 80
    flat = " ".join(text.split())
    for line in ("train.total_steps: an integer >= 1 and < 2147483648; steps; default 400 optimizer updates of the whole run",
                 "run.dir: a path; required folder that holds the runs",
                 "train.betas: a list of 2, [a number, a number]; default [0.9, 0.95] AdamW's decay",
                 'parallel.dp: "auto" or an integer > 0; default "auto" data-parallel ranks',
                 "supervise.lease_seconds: a number >= 3; seconds; default 30.0 a node of several",
                 "parallel.topology.node_bandwidth_gbs: a number > 0; GB/s; default 150.0",
                 "train.groups[].pattern: text length >= 1; required glob on parameter names",
                 "eval.deep.judge.timeout_s: a number > 0 and <= 3600; seconds; default 30.0 seconds to wait",
                 "health.rules.loss_spike.threshold: a number > 0; default 8.0 a loss this many robust",
                 "grouped-query attention, no biases). model.architecture: ",
                 "precision.loss_scale: Loss scale: dynamic with growth and backoff, or fixed."):
        assert line in flat, line


def test_no_unit_is_there_for_nothing_and_none_for_what_is_no_number():
    used = {name.rpartition(".")[2] for name, field in KEYS.items() if unit(name, field)}
    assert all(any(key == one or key.endswith(f"_{one}") for key in used) for one in UNITS)
    assert unit("health.window", KEYS["health.window"]) == "steps"
    assert unit("data.path", KEYS["data.path"]) is None and unit("train.lr", KEYS["train.lr"]) is None
