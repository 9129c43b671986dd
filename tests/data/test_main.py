"""The command line, in this process where no other is needed."""
import subprocess
import sys

import numpy as np
import pytest

from data.__main__ import main
from data.inspect_samples import as_text
from data.prepare import load_tokenizer
from tests.data.conftest import cut


@pytest.fixture
def run_file(tmp_path):
    (tmp_path / "a.txt").write_text(cut("train_en.txt", 20_000))
    (tmp_path / "run.yaml").write_text(
        "model: {hidden_size: 64}\n"
        "data:\n  path: a.txt\n  prepared_dir: out\n  seq_length: 16\n  num_workers: 1\n  tokenizer: {vocab_size: 500}\n")
    return tmp_path / "run.yaml"


def test_prepare_then_inspect(run_file, capsys):
    common = ["--config", str(run_file), "--set", "data.num_shards=2"]
    assert main(["prepare", *common]) == 0
    assert len(list((run_file.parent / "out" / "train").glob("*.mindrecord"))) == 2
    capsys.readouterr()
    assert main(["inspect", *common, "--count", "2"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("--- train sample 0 of ") and "PRIDE AND" in shown and "--- train sample 1 of" in shown
    assert main(["inspect", *common, "--set-name", "valid_text", "--count", "999"]) == 0
    assert capsys.readouterr().out.rstrip().rsplit("\n", 1)[-1].count("<eos>") == 1


@pytest.mark.parametrize("arguments, message", [
    (["prepare", "--set", "data.pth=x"], "unknown key"),
    (["prepare", "--set", "data.path=missing.txt"], "does not exist"),
    (["prepare", "--set", "data.tokenizer.vocab_size=100000"], "too large for this text"),
    (["inspect"], "holds no prepared data"),
])
def test_mistakes_end_with_code_2_and_one_line(run_file, capsys, arguments, message):
    assert main([arguments[0], "--config", str(run_file), *arguments[1:]]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert not (run_file.parent / "out").exists()


def test_inspect_refuses_what_is_not_there(run_file, capsys):
    main(["prepare", "--config", str(run_file)])
    for option, value, message in (("--set-name", "valid_fr", "there are train, valid_text"), ("--start", "100000", "from 0")):
        assert main(["inspect", "--config", str(run_file), option, value]) == 2
        assert message in capsys.readouterr().err


def test_as_a_command(run_file):
    command = [sys.executable, "-m", "data", "prepare", "--config", str(run_file)]
    done = subprocess.run([*command, "--set", "data.nothing=1"], capture_output=True, text=True)
    assert done.returncode == 2 and "nothing" in done.stderr and "Traceback" not in done.stderr


def test_special_tokens_are_shown(config, manifest):
    tokenizer = load_tokenizer(config)
    tokens = np.array([1, *tokenizer.encode("hi\n你"), 2, 0, 0, 0])
    assert as_text(tokens, tokenizer) == "<bos>hi\n你<eos><pad>*3"
    assert as_text(tokens, tokenizer, pieces=True).count("|") == len(tokens) - 6


def test_help_and_refusals_do_not_import_mindspore(run_file):
    code = ("import sys; from data.__main__ import main\n"
            f"assert main(['inspect', '--config', {str(run_file)!r}]) == 2\n"
            f"assert main(['prepare', '--config', {str(run_file)!r}, '--set', 'data.path=none.txt']) == 2\n"
            "assert 'mindspore' not in sys.modules")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
