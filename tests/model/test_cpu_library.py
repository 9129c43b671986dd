"""How kernels.cc becomes a library, and what it does with what is no number."""
import os
import subprocess
import sys
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor

from model.config import ModelConfig
from model.cpu import compiled, library

ROOT = Path(__file__).parents[2]


@pytest.fixture
def unmade(monkeypatch, tmp_path):
    """No library yet, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    library._made.cache_clear()
    yield tmp_path / "mindgpt"
    library._made.cache_clear()


def test_it_is_made_once_for_a_source_a_compiler_and_its_flags(unmade, monkeypatch):
    assert library.problem() == ""
    made, = unmade.iterdir()
    assert made.suffix == ".so" and library.operator("gelu") == f"{made}:gelu"
    monkeypatch.setattr(library.subprocess, "run", run := Counting())
    library._made.cache_clear()
    assert library.problem() == "" and run.commands == ["--version"]
    monkeypatch.setattr(library, "FLAGS", (*library.FLAGS, "-DOTHER"))
    library._made.cache_clear()
    assert library.problem() == "" and len([*unmade.iterdir()]) == 2


class Counting:
    """subprocess.run that notes the first argument of each command."""

    def __init__(self):
        self.commands, self.run = [], subprocess.run

    def __call__(self, command, **options):
        self.commands.append(command[1])
        return self.run(command, **options)


@pytest.mark.parametrize(("compiler", "message"), [
    ("/nonexistent/g++", "No such file or directory: '/nonexistent/g++'"), ("false", "false: it failed"),
    ("g++ 'x", "No closing quotation")])
def test_without_a_compiler_that_works_the_reason_is_known(unmade, monkeypatch, compiler, message):
    monkeypatch.setenv("CXX", compiler)
    assert message in library.problem() and not unmade.exists()


def test_a_library_that_holds_nothing_is_made_again(unmade):
    path = library._compiled()
    path.write_bytes(b"")
    assert library.problem() == "" and path.stat().st_size > 10_000


def test_a_compiler_that_refuses_the_source_is_quoted(unmade, monkeypatch):
    monkeypatch.setattr(library, "FLAGS", ("-fno-such-flag",))
    assert "-fno-such-flag" in library.problem() and library.problem().startswith("g++: ")
    assert not [*unmade.iterdir()]


def test_the_pure_form_is_taken_then_and_a_run_says_so(tiny_yaml, tmp_path):
    command = [sys.executable, "-m", "train", "--config", str(tiny_yaml), "--set", f"run.dir={tmp_path}", "train.stop_at_step=2",
               "eval.stage.enabled=false", "eval.deep.enabled=false", "health.enabled=false"]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True,
                         env={**os.environ, "CXX": "/nonexistent/g++"}).stdout
    assert "no C++ compiler made ours" in out and "/nonexistent/g++" in out and "done: 2 of 20 steps" in out


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_no_number_comes_out_as_none(bad):
    """As -ffast-math would not promise."""
    ms.set_context(mode=ms.GRAPH_MODE)
    x = np.random.RandomState(0).standard_normal((40, 33)).astype(np.float32)
    x[5, 7] = bad
    ones, zeros = Tensor(np.ones(33, np.float32)), Tensor(np.zeros(33, np.float32))
    y = compiled.Normalize(33, 1e-5)(Tensor(x), ones, zeros)[0].asnumpy()
    assert np.isnan(y[5]).all() and np.isfinite(np.delete(y, 5, 0)).all()
    y = compiled.Gelu()(Tensor(x))[0].asnumpy()
    assert not np.isfinite(y[5, 7]) and np.isfinite(np.delete(y.reshape(-1), 5 * 33 + 7)).all()
    q, k, v = (np.random.RandomState(i).standard_normal((1, 19, 2, 5)).astype(np.float32) for i in range(3))
    k[0, 18, 1] = bad  # which the last position alone sees
    y = compiled.AttentionCore(ModelConfig(vocab_size=9, hidden_size=10, num_heads=2, seq_length=19))(
        *(Tensor(a) for a in (q, k, v)), Tensor(np.zeros((19, 1), np.int32)))[0].asnumpy()
    assert np.isfinite(y[0, :18]).all() and np.isfinite(y[0, 18, 0]).all() and np.isnan(y[0, 18, 1]).all()
    table, labels = Tensor(np.eye(33, dtype=np.float32)), Tensor(np.zeros(40, np.int32))
    losses = compiled.HeadLoss(31, 2)(Tensor(x), table, labels)[0].asnumpy()
    assert not np.isfinite(losses[5]) and np.isfinite(np.delete(losses, 5)).all()


def test_a_label_that_is_none_has_no_loss():
    ms.set_context(mode=ms.GRAPH_MODE)
    square, labels = Tensor(np.eye(4, dtype=np.float32)), Tensor(np.array([0, -1, 3, 2**31 - 1], np.int32))
    losses, hits, _ = compiled.HeadLoss(3, 1)(square, square, labels)
    assert np.isnan(losses.asnumpy()[1:]).all() and np.isfinite(losses.asnumpy()[0]) and hits.asnumpy().tolist() == [1, 0, 0, 0]


def test_another_format_is_refused(capfd):
    """Float16 would be read as if it were float32."""
    ms.set_context(mode=ms.GRAPH_MODE)
    x = Tensor(np.ones((4, 4), np.float16))
    with pytest.raises(RuntimeError):
        compiled.Gelu()(x)[0].asnumpy()
    assert "operator gelu: input or output 0 is float16, and must be float32" in capfd.readouterr().err
