"""metrics.jsonl, TensorBoard and the console on their own."""
import json
import math

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from train import console
from train.callbacks.evaluate import due_steps
from train.metrics_log import MetricsLog
from train.tensorboard import TensorBoard


def test_metrics_drop_what_comes_again_and_half_lines(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path, 0)
    log.write([{"step": s, "loss": float(s)} for s in range(1, 6)])
    log.close()
    with open(path, "a") as f:
        f.write('{"step": 6, "lo')
    log = MetricsLog(path, 3)
    log.write([{"step": 4, "loss": math.nan}])
    log.sync()
    log.close()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [r["step"] for r in rows] == [1, 2, 3, 4] and rows[-1]["loss"] is None  # N2: valid JSON


def test_tensorboard_takes_nan_none_and_numpy(tmp_path):  # P3, fourth
    board = TensorBoard(tmp_path, 0)
    board.write([{"step": 1, "loss": math.nan, "lr": np.float32(0.5), "grad_norm": None}, {"step": 2, "loss": 1.5}])
    board.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(s.step, s.value) for s in events.Scalars("train/loss")] == [(2, 1.5)]
    assert [s.value for s in events.Scalars("train/learning_rate")] == [0.5]
    assert "train/grad_norm" not in events.Tags()["scalars"]


def test_writers_opened_within_a_second_keep_their_events(tmp_path):  # P3, second
    for step in (1, 2, 3):
        board = TensorBoard(tmp_path, step - 1)
        board.write([{"step": step, "loss": float(step)}])
        board.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [s.step for s in events.Scalars("train/loss")] == [1, 2, 3]


def test_after_a_kill_each_step_stands_once(tmp_path):  # P3, first
    killed = TensorBoard(tmp_path, 0)
    for step in range(1, 16):
        killed.write([{"step": step, "loss": float(step)}])
        if step == 13:
            killed.sync()  # steps 14 and 15 never reach the disk: the writer is not closed
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [s.step for s in events.Scalars("train/loss")] == list(range(1, 14))  # what was synced is there
    board = TensorBoard(tmp_path, 10)
    for step in range(11, 21):
        board.write([{"step": step, "loss": 100.0 + step}])
    board.close()
    found = [(s.step, s.value) for s in EventAccumulator(str(tmp_path)).Reload().Scalars("train/loss")]
    assert found == [(s, float(s)) for s in range(1, 11)] + [(s, 100.0 + s) for s in range(11, 21)]


def test_console_lines_fit_80_columns(capsys):
    row = {"step": 123456, "loss": 11.23456, "lr": 1.5e-4, "grad_norm": 1234.5678, "loss_scale": 65536.0, "overflow": False,
           "tokens_per_second": 1234567.0, "step_seconds": 1.0, "data_wait": 0.012, "memory_bytes": 2.5e9}
    console.Console(200_000).write([row])
    console.Console(200_000).write([{**row, "tokens_per_second": None, "step_seconds": None, "data_wait": None}])
    for scale in (524_288.0, 2.0**24, 1.0, 0.25):
        console.Console(200_000).write([{**row, "loss_scale": scale}])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 12 and max(map(len, lines)) <= 80
    assert len(lines[0]) == len(lines[1])


def test_a_window_with_a_nan_has_the_mean_of_the_others():  # N2
    assert console.mean_of_finite([1.0, math.nan, 3.0, math.inf]) == 2.0
    assert math.isnan(console.mean_of_finite([math.nan]))


@pytest.mark.parametrize(("total", "every", "steps"), [
    (20, 0.25, {5, 10, 15, 20}), (7, 0.3, {2, 4, 6, 7}), (1, 0.05, {1}), (100, 1.0, {100}), (10, 0.05, set(range(1, 11)))])
def test_steps_of_a_tier(total, every, steps):
    assert due_steps(total, every) == steps


def test_sizes_and_durations():
    assert [console.size(x) for x in (0, 999, 4.5e6, 2e12)] == ["0", "999", "4.5M", "2.0T"]
    assert [console.duration(x) for x in (5, 75, 3700, math.inf)] == ["0:05", "1:15", "1:01:40", "-"]
