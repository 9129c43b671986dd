"""python -m model.generate."""
from pathlib import Path

import numpy as np
import pytest

from ckpt import store, writing
from train.generate import main
from train.run import run


@pytest.fixture(scope="module")
def checkpoint(tiny_yaml, tmp_path_factory):
    """The folder of a run of 5 steps."""
    from train.config import load_config
    config = load_config(tiny_yaml, [f"run.dir={tmp_path_factory.mktemp('runs')}", "train.total_steps=5",
                                     "eval.stage.enabled=false", "eval.deep.enabled=false"])
    run(config)
    return str(config.run.folder)


def text(capsys, *arguments) -> str:
    assert main(list(arguments)) == 0
    return capsys.readouterr().out


def test_texts_go_on_and_the_seed_decides(checkpoint, capsys):
    capsys.readouterr()
    given = ["--checkpoint", checkpoint, "--prompt", "It is", "--prompt", "子曰：", "--max-new-tokens", "8"]
    first = text(capsys, *given)
    assert first.startswith("It is") and "\n子曰：" in first and len(first) > len("It is\n子曰：\n")
    assert text(capsys, *given) == first
    assert text(capsys, *given, "--seed", "1") != first
    assert text(capsys, *given, "--temperature", "0") == text(capsys, *given, "--temperature", "0", "--seed", "1")


def test_prompts_are_asked_for(checkpoint, capsys, monkeypatch):
    answers = iter(["It is", ""])
    monkeypatch.setattr("builtins.input", lambda _: next(answers))
    capsys.readouterr()
    assert text(capsys, "--checkpoint", checkpoint, "--max-new-tokens", "4").startswith("It is")


def test_weights_that_are_not_finite_are_said_to_be(checkpoint, capsys, monkeypatch, tmp_path):
    broken = store.load_given(Path(checkpoint))
    weights = {name: np.full_like(value, np.nan) for name, value in broken.tensors["model"].items()}
    writing.write(tmp_path / "nan", store.Checkpoint({"model": weights}, broken.state, broken.config))
    capsys.readouterr()
    assert main(["--checkpoint", str(tmp_path / "nan"), "--prompt", "It is"]) == 2
    assert "the logits are not finite" in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "says"), [
    (["--checkpoint", "/nowhere", "--prompt", "a"], "no such checkpoint folder"),
    (["--checkpoint", "{run}", "--prompt", "a", "--temperature", "-1"], "temperature=-1.0 is not possible"),
    (["--checkpoint", "{run}", "--prompt", "a", "--top-p", "0"], "top_p=0.0 is not possible"),
    (["--checkpoint", "{run}", "--prompt", "a", "--max-new-tokens", "0"], "give 1 or more"),
    (["--checkpoint", "{run}", "--prompt", "a", "--prompt", "b\udcff"], "the prompt 'b\\udcff' is not UTF-8 at character 2"),
])
def test_refusals(checkpoint, capsys, arguments, says):
    capsys.readouterr()
    assert main([a.format(run=checkpoint) for a in arguments]) == 2
    found = capsys.readouterr()
    assert found.err.startswith("error: ") and says in found.err and not found.out
