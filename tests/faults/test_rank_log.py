"""A rank's log is bounded, never overwritten, and read through while it is set aside."""
import os
import subprocess
import sys
import time
from pathlib import Path

from train import console
from train.rank_log import set_aside
from train.workers import _Tail

ROOT = Path(__file__).parents[2]

# Lines by print, by the system call as C++ does, from a child that was started before, and a traceback at the end.
WORKER = """
import os, subprocess, time
from train import rank_log
rank_log.LOOK = 0.02
child = subprocess.Popen(["sh", "-c", "sleep 0.3; echo child"])
rank_log.watch(part_bytes=2000)
for i in range(60):
    print("line", 2 * i, "x" * 80, flush=True)
    os.write(2, f"line {2 * i + 1}\\n".encode())
    time.sleep(0.01)
child.wait()
time.sleep(0.1)
raise RuntimeError("the end")
"""


def numbers(log: Path) -> list[int]:
    return sorted(int(path.name.split(".")[1]) for path in log.parent.glob(f"{log.stem}.*.log"))


def start(log: Path) -> subprocess.Popen:
    with log.open("w") as file:
        return subprocess.Popen([sys.executable, "-c", WORKER], cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)


def text(log: Path) -> str:
    parts = [log.with_name(f"{log.stem}.{n}.log") for n in numbers(log)]
    return "".join(path.read_text() for path in (*parts, log) if path.exists())


def test_a_log_that_grows_is_cut_into_parts_and_loses_nothing(tmp_path, capfdbinary):
    log = tmp_path / "rank_0.log"
    (tmp_path / "rank_0.1.log").write_text("an earlier start\n")
    process, tail = start(log), _Tail(log)
    while process.poll() is None:
        tail.copy()
        time.sleep(0.01)
    for _ in range(3):
        tail.copy()
    said = text(log)
    lines = [int(line.split()[1]) for line in said.splitlines() if line.startswith("line")]
    assert lines == list(range(120)) and said.startswith("an earlier start\n") and "child\n" in said
    assert len(numbers(log)) >= 2
    assert "RuntimeError: the end" in log.read_text()  # the newest part
    copied = capfdbinary.readouterr().out.decode()
    assert [int(line.split()[1]) for line in copied.splitlines() if line.startswith("line")] == lines


def test_long_lines_are_folded_on_a_terminal_alone(tmp_path, monkeypatch, capfdbinary):
    log = tmp_path / "rank_0.log"
    said = ("         note  " + " word" * 30 + "\n         文本\n").encode() + b"\xff\xe8\xaf"  # half a character
    log.write_bytes(said)
    _Tail(log).copy()
    assert capfdbinary.readouterr().out == said
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(console.shutil, "get_terminal_size", lambda: os.terminal_size((80, 24)))
    _Tail(log).copy()
    shown = capfdbinary.readouterr().out
    assert max(map(len, shown.split(b"\n"))) <= 80 and shown.split() == said.split()
    assert shown.split(b"\n")[1].startswith(b" " * 16 + b"word") and shown.endswith(b"\xff\xe8\xaf")


def test_the_oldest_parts_go_when_all_together_are_too_large(tmp_path):
    log = tmp_path / "rank_3.log"
    for size, left in ((100, [1]), (100, [1, 2]), (50, [1, 2, 3]), (100, [2, 3, 4]), (240, [5]), (900, [6]), (10, [7])):
        log.write_text("x" * size)
        set_aside(log, all_bytes=250)
        assert numbers(log) == left  # the newest stays, whatever its size


def test_numbers_go_on_where_parts_are_gone_and_other_files_are_left_alone(tmp_path):
    log = tmp_path / "rank_1.log"
    for name in ("rank_1.4.log", "rank_11.9.log", "rank_1.note.log", "rank_1.log"):
        (tmp_path / name).write_text(name)
    set_aside(log)
    assert (tmp_path / "rank_1.5.log").read_text() == "rank_1.log" and not log.exists()
    set_aside(log)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["rank_1.4.log", "rank_1.5.log", "rank_1.note.log", "rank_11.9.log"]
