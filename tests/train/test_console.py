"""The console's languages, colours and widths, and what it says of compiling."""
import json
import os
import pty
import re
import string
import sys
import threading
import time

import pytest

from parallel.errors import UserError
from parallel.mesh import Mesh
from train import compiling, console, messages, reports
from train.compiling import Compiling
from train.config import load_config

LOCALE = ("LC_ALL", "LC_MESSAGES", "LANG")
REPORT = {"steps": 100_000, "total_steps": 100_000, "train_seconds": 100_000.0, "compile_seconds": 234.0, "val_step": 100_000,
          "tokens_per_second": 1.2e6, "val_perplexity": 123.5, "val_loss": 11.1234, "val_accuracy": 0.5, "world_size": 128,
          "unigram_perplexity": 9999.0, "eval_time_fraction": 0.05, "health_time_fraction": 0.01, "data_wait_fraction": 0.001,
          "checkpoint_time_fraction": 0.002, "peak_memory_bytes": 60e9}
ROW = {"step": 123456, "loss": 11.23456, "lr": 1.5e-4, "grad_norm": 1234.5678, "loss_scale": 65536.0, "overflow": False,
       "tokens_per_second": 1234567.0, "step_seconds": 1.0, "data_wait": 0.012, "memory_bytes": 2.5e9}


@pytest.fixture(autouse=True)
def settings(monkeypatch):
    """No locale, and the language that is the default."""
    for name in (*LOCALE, "NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    yield
    messages.use("auto")


def fields(text: str) -> set:
    return {(name, spec) for _, name, spec, _ in string.Formatter().parse(text) if name}


@pytest.mark.parametrize("key", messages.TEXTS)
def test_every_text_exists_in_every_language_with_the_same_values(key):
    texts = messages.TEXTS[key]
    assert [*texts] == [*messages.LANGUAGES] and all(texts.values())
    assert fields(texts["zh"]) == fields(texts["en"])
    assert texts["en"].isascii()


def test_every_text_is_used_and_every_text_that_is_used_exists():
    from pathlib import Path
    sources = "".join(path.read_text(encoding="utf-8") for path in Path(messages.__file__).parent.rglob("*.py")
                      if path.name != "messages.py")
    used = {*re.findall(r'message\(["\']([\w.]+)["\']', sources)}
    patterns = (r'\("([\w.]+)",', r'"([\w.]+)" if', r'else "([\w.]+)"')
    named = {name for pattern in patterns for name in re.findall(pattern, sources)}
    columns = {f"column.{name}" for name in console.Console.WIDTHS}
    assert used <= messages.TEXTS.keys()
    assert messages.TEXTS.keys() <= used | named | columns


@pytest.mark.parametrize(("environment", "setting", "language"), [
    ({}, "auto", "en"), ({"LANG": "zh_CN.UTF-8"}, "auto", "zh"), ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, "auto", "en"),
    ({"LANG": "en_US.UTF-8", "LC_MESSAGES": "zh_TW"}, "auto", "zh"), ({"LC_ALL": "", "LANG": "zh"}, "auto", "zh"),
    ({"LANG": "zh_CN.UTF-8"}, "en", "en"), ({"LANG": "de_DE"}, "zh", "zh"), ({"LANG": "de_DE"}, "auto", "en")])
def test_the_language(environment, setting, language, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    messages.use(setting)
    assert messages.language() == language


def test_a_budget_that_allows_no_text_is_told_in_the_language():
    report, said = {"not_computed": {"stage": reports.NO_TEXT, "other": "why"}}, []
    reports.show(report, said.append)
    messages.use("zh")
    reports.show(report, said.append)
    assert said[0] == " " * 9 + "stage  not computed, the time budget allows none of the text now"
    assert said[1] == said[3] == " " * 9 + "other  not computed, why" and "未计算" in said[2]


def test_what_is_not_translated_is_english(monkeypatch):
    monkeypatch.setitem(messages.TEXTS, "new", {"en": "new {x}"})
    messages.use("zh")
    assert messages.message("new", x=1) == "new 1"


def test_a_console_that_cannot_show_chinese_gets_english(monkeypatch):
    class Latin:
        encoding = "latin-1"
    monkeypatch.setattr(sys, "stdout", Latin())
    messages.use("zh")
    assert messages.message("model") == "model"


@pytest.mark.parametrize("language", messages.LANGUAGES)
def test_80_columns(language, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    messages.use(language)
    console.Console(200_000).write([ROW])
    lines = capsys.readouterr().out.splitlines()
    assert [console.width(line) for line in lines] == [77, 77]
    console.summary(REPORT, tmp_path / "runs" / "smoke")
    lines = capsys.readouterr().out.splitlines()
    assert ("完成" if language == "zh" else "done: 100000 of 100000 steps") in lines[1]
    assert len(lines) == 7 and max(map(console.width, lines)) <= 80


def test_the_summary_in_chinese_is_aligned(capsys, tmp_path):
    messages.use("zh")
    console.summary(REPORT, tmp_path)
    values = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert {console.width(re.match(r"  \S+ +", line)[0]) for line in values} == {15}


def on_terminal(monkeypatch, columns=80, **environment):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(console.shutil, "get_terminal_size", lambda: os.terminal_size((columns, 24)))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


def test_colours_on_a_terminal_alone(monkeypatch, capsys):
    assert console.painted("x", "red") == "x"
    on_terminal(monkeypatch)
    assert console.painted("x", "red") == "\033[31mx\033[0m" and console.painted("x", None) == "x"
    monkeypatch.setenv("NO_COLOR", "1")
    assert console.painted("x", "red") == "x"
    monkeypatch.setenv("NO_COLOR", "")  # empty is as if it were not there
    assert console.painted("x", "red") != "x"
    monkeypatch.setenv("TERM", "dumb")
    assert console.painted("x", "red") == "x"


def test_long_lines_are_folded_on_a_terminal_alone(monkeypatch, capsys):
    long = "note         " + "a word " * 30
    console.say(long)
    assert capsys.readouterr().out == long + "\n"
    on_terminal(monkeypatch)
    console.header([("note", "a word " * 30), ("zh", "词元 批次 " * 20)])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) >= 6 and max(map(console.width, lines)) <= 80
    assert lines[1].startswith(" " * 13 + "word") and " ".join(lines).split().count("word") == 30
    console.say("x" * 200)  # what has no space is left to the terminal
    assert capsys.readouterr().out == "x" * 200 + "\n"


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "c.yaml"
    path.write_text("run: {dir: runs}\ndata: {path: {en: x.txt}, prepared_dir: p}\n")
    return lambda *overrides: load_config(path, list(overrides))


def compiled(config, seconds=0.0) -> None:
    one = Compiling(config, Mesh(1), "CPU")
    one.start()
    one.began -= seconds
    one.on_train_step_end(None)
    one.on_train_step_end(None)
    one.close()


def test_compiling_says_how_long_it_took_last_time(config, capsys):
    compiled(config(), 75)
    first = capsys.readouterr().out.splitlines()
    assert first[0] == "compiling the training step and the evaluation ..." and first[1:] == \
        ["compiled, and the first step done, in 1:15"]
    compiled(config("train.total_steps=7", "run.name=other"), 20)
    assert "(last time: 1:15)" in capsys.readouterr().out
    compiled(config())
    assert "(last time: 0:20)" in capsys.readouterr().out
    compiled(config("model.num_layers=3"))
    assert "last time" not in capsys.readouterr().out


def test_a_cache_that_is_damaged_or_refused_is_done_without(config, capsys, tmp_path, monkeypatch):
    for content in ("[]", "{", '{"a": "x"}', '{"a": null}'):
        (tmp_path / "cache" / "mindgpt").mkdir(parents=True, exist_ok=True)
        (tmp_path / "cache" / "mindgpt" / compiling.FILE).write_text(content)
        compiled(config(), 5)
        assert "last time" not in capsys.readouterr().out
    assert len(json.loads((tmp_path / "cache" / "mindgpt" / compiling.FILE).read_text())) == 1

    def refuse():
        raise UserError("no folder for a cache")
    monkeypatch.setattr(compiling, "cache_folder", refuse)
    compiled(config())
    assert "compiled" in capsys.readouterr().out


def test_few_times_are_kept(config):
    for i in range(compiling.KEPT + 5):
        compiling.remember(str(i), 1.0)
    assert [*compiling.remembered()][-1] == str(compiling.KEPT + 4) and len(compiling.remembered()) == compiling.KEPT


def test_a_bar_while_it_compiles_on_a_terminal(config, monkeypatch, capfd):
    compiled(config(), 100)
    parent, child = pty.openpty()
    terminal = os.fdopen(child, "w")
    monkeypatch.setattr(sys, "stderr", terminal)
    one = Compiling(config(), Mesh(1), "CPU")
    one.start()
    deadline = time.monotonic() + 10
    seen = b""
    while b"compile" not in seen and time.monotonic() < deadline:
        seen += os.read(parent, 1000)
    console.say("a line between")
    assert os.read(parent, 1000).endswith(b"\r\x1b[K")  # the bar goes before another line comes
    one.close()
    assert threading.active_count() and not one.thread.is_alive()
    terminal.close()
    os.close(parent)


def test_texts_of_the_model_reach_terminal_and_tensorboard_as_they_are(capsys):
    wild = "# \x1b[2Jone\n    two *three* [four](x)\n1. five | six_\n- seven"
    found = reports.literal(wild)
    assert "\x1b" not in found and found.startswith("\\# \u241b\\[2Jone  \n" + "\u00a0" * 4 + "two \\*three\\*")
    assert "\n1\\. five | six\\_  \n\\- seven" in found
    assert reports.literal("<b>x</b> &lt;") == "&lt;b>x&lt;/b> &amp;lt;"
    deep = {"not_computed": {}, "truncated": 0, "samples": {
        "distinct_2": None, "repetition_4": None, "self_bleu": None, "empty_rate": 0.0,
        "texts": [{"prompt": "a\x1b]0;x\x07", "text": wild}]}}
    reports.show_deep(deep, print)
    assert "\x1b" not in (said := capsys.readouterr().out) and "\u241b" in said
