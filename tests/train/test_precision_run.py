"""Runs in half precision: they follow float32, resume to the bit, and what cannot be is refused before anything is written."""
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from mindspore import Tensor

from parallel.errors import UserError
from parallel.mesh import Mesh
from tests.conftest import exact, metrics
from train.__main__ import main
from train.build import build_gpt, build_train_step, lack_of_kernels
from train.config import load_config
from train.evaluation import open_model
from train.plans import resolved
from train.run import precision_lines, run

HALF = ("precision.level=O2", "precision.loss_scale.initial=65536", "health.probe_samples=2")


@pytest.fixture(scope="module")
def runs(tiny_yaml, tmp_path_factory):
    """The tiny run in float32 and in half precision: their folders."""
    folders = []
    for name, overrides in (("float32", ()), ("half", HALF)):
        config = load_config(tiny_yaml, [f"run.dir={tmp_path_factory.mktemp(name)}", *overrides])
        assert run(config)
        folders.append(config.run.folder)
    return folders


def test_training_evaluation_and_texts_follow_float32(runs):
    float32, half = (metrics(folder) for folder in runs)
    assert [row["loss"] for row in float32] != [row["loss"] for row in half]
    np.testing.assert_allclose([row["loss"] for row in half], [row["loss"] for row in float32], rtol=0.02)
    reports = [[json.loads(path.read_text()) for path in sorted((folder / "eval").glob("*.json"))] for folder in runs]
    assert len(reports[0]) == len(reports[1]) > 3
    for exact_one, one in zip(*reports, strict=True):
        assert one["stage"]["all"]["loss"] == pytest.approx(exact_one["stage"]["all"]["loss"], rel=0.02)
    assert any("deep" in report for report in reports[1])


def test_the_layers_are_watched_in_half_precision_too(runs):
    seen = [[row["health"]["layers"] for row in metrics(folder) if row.get("health")] for folder in runs]
    for name, figures in seen[1][-1].items():
        assert figures["grad_norm"] == pytest.approx(seen[0][-1][name]["grad_norm"], rel=0.3)
    blocks = [figures for layers in seen[1] for name, figures in layers.items() if name.startswith("block")]
    assert blocks and all(np.isfinite(f["std"]) and f["abs_max"] > f["std"] > 0 for f in blocks)


@pytest.mark.long
def test_a_resume_changes_nothing(runs, tiny):
    first = tiny(*HALF, "train.stop_at_step=10")
    assert run(first) and run(tiny(*HALF))
    assert exact(metrics(first.run.folder)) == exact(metrics(runs[1]))


def test_bfloat16_on_cpu_is_refused_before_anything_is_written(tiny_yaml, tmp_path, capsys):
    code = main(["--config", str(tiny_yaml), "--set", f"run.dir={tmp_path}", "precision.level=O1", "precision.dtype=bfloat16"])
    assert code == 2 and not list(tmp_path.iterdir())
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "precision.dtype=bfloat16: MindSpore has no CPU kernels for it" in said


def test_a_model_trained_in_bfloat16_is_opened_on_cpu_in_another_format(runs):
    bfloat16 = ["precision.level=O2", "precision.dtype=bfloat16"]
    with pytest.raises(UserError, match="precision.dtype=bfloat16: .* precision.level=O0"):
        open_model(runs[0], bfloat16)
    config, *_ = open_model(runs[0], [*bfloat16, "precision.level=O0"])
    assert config.precision.level == "O0"


def test_an_operator_without_a_kernel_is_named_with_its_place(tiny):
    """bfloat16 past its refusal: as an operator of a fork's own would be."""
    config = resolved(tiny("precision.level=O2", "precision.dtype=bfloat16"))
    step = build_train_step(build_gpt(config, Mesh(1)), config, Mesh(1), 2).set_train()
    says = r"no CPU kernel of Gather for input\[BFloat16 .*\] at .+model/gpt.py:\d+: put the cell into precision.black_list"
    with pytest.raises(UserError, match=says), lack_of_kernels():
        step.compile(Tensor(np.zeros((4, 17), np.int32)), Tensor(np.zeros(4, np.int32)))


def test_a_pattern_that_fits_nothing_is_refused_before_anything_is_written(tiny_yaml, tmp_path, capsys):
    code = main(["--config", str(tiny_yaml), "--set", f"run.dir={tmp_path}", "precision.level=O1", "precision.black_list=[Gleu]"])
    assert code == 2 and not list(tmp_path.iterdir())
    assert "precision.black_list: Gleu is no type and fits no name of a cell" in capsys.readouterr().err


def test_list_casts(tiny_yaml):
    command = [sys.executable, "-m", "train", "--config", str(tiny_yaml), "--list-casts"]
    done = subprocess.run([*command, "--set", "precision.level=O1", "precision.black_list=[blocks.1]"],
                          cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = {line.split()[0]: line.split(maxsplit=3)[1:] for line in done.stdout.splitlines()}
    assert rows["blocks.0.mlp.up"] == ["Linear", "float16", "O1: only matrix products in half"]
    assert rows["blocks.0.mlp.gelu"] == ["Gelu", "float32", "O1: only matrix products in half"]
    assert rows["blocks.1.mlp.up"] == ["Linear", "float32", "black_list: blocks.1"]
    assert rows["head_loss.loss"][1] == "float32"


@pytest.mark.parametrize(("overrides", "says"), [
    ((), ["float32; loss scale dynamic from 1024"]),
    (("precision.level=O2",), ["O2 in float16, weights float32; loss scale dynamic from 1024"]),
    (("precision.level=O2", "precision.loss_scale.dynamic=false", "precision.loss_scale.initial=1"),
     ["O2 in float16, weights float32; loss scale 1",
      "float16 loses gradients under 6e-8: set precision.loss_scale.dynamic=true"]),
    (("precision.level=O1", "precision.dtype=bfloat16"),
     ["O1 in bfloat16, weights float32; loss scale dynamic from 1024",
      "bfloat16 needs no loss scale: its range is that of float32"]),
])
def test_what_a_run_says_of_its_precision(tiny, overrides, says):
    assert [text for _, text in precision_lines(tiny(*overrides))] == says
