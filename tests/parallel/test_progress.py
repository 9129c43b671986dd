import sys

import pytest

from parallel.progress import Progress


def run(monkeypatch, terminal):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    with Progress("encode", 1000, "MB", scale=10) as progress:
        for _ in range(1000):
            progress.advance(1)


def test_one_line_in_a_log(monkeypatch, capsys):
    run(monkeypatch, terminal=False)
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1 and "\r" not in shown
    assert "encode" in shown and "100%" in shown and "100.0 MB" in shown


def test_a_bar_on_a_terminal(monkeypatch, capsys):
    run(monkeypatch, terminal=True)
    shown = capsys.readouterr().err
    assert 100 <= shown.count("\r") <= 202 and shown.count("\n") == 1
    assert "[" + "#" * 30 + "] encode     100%" in shown


@pytest.mark.parametrize("columns", [20, 60, 80, 200])
def test_a_bar_fits_its_terminal(monkeypatch, capsys, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with Progress("write", 123_456_789, "samples") as progress:
        progress.advance(100_000_000)
    drawn = [line.removesuffix("\033[K") for line in capsys.readouterr().err.strip().split("\r")]
    assert len(drawn) == 2 and max(map(len, drawn)) < columns
    assert columns < 80 or "[###" in drawn[-1] and drawn[-1].endswith("samples/s")


def test_seconds_have_no_rate(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with Progress("compile", 40, "s") as progress:
        progress.advance(20)
    assert "50%  20.0 s\033[K" in capsys.readouterr().err


def test_an_error_is_not_shown_as_done(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with pytest.raises(RuntimeError), Progress("write", 10, "samples") as progress:
        progress.advance(5)
        raise RuntimeError
    assert "100%" not in capsys.readouterr().err
