"""Health rules in a run: told, and where they are of level stop the run is saved and ends with exit code 3."""
import json
import shutil

import numpy as np
import pytest

from ckpt import store
from data.tokenizer import PAD_ID
from eval.health.rules.base import Event
from eval.health.rules.data import batch_figures
from tests.conftest import metrics
from train.__main__ import main
from train.events import Events
from train.run import run
from train.tensorboard import TensorBoard
from train.triggers import Halted, Triggers

# Infinite weights after the first update, so that every later step is skipped.
SICK = ("train.lr=1e30", "train.warmup_steps=0", "train.clip_norm=null", "precision.loss_scale.dynamic=false",
        "eval.stage.enabled=false", "eval.deep.enabled=false", "health.rules.overflow_streak.threshold=4", "ckpt.every_steps=3",
        "health.locate_nan=false")


def test_a_run_that_only_skips_steps_is_saved_and_ends_with_3(tiny, tiny_yaml, tmp_path, capsys):
    copy = tmp_path / "told"
    code = main(["--config", str(tiny_yaml), "--set", f"run.dir={tmp_path}", *SICK, f"health.on_event=cat >> {copy}"])
    folder, err = tiny().run.folder, capsys.readouterr().err
    told = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    stop = next(event for event in told if event["level"] == "stop")
    assert code == 3 and stop["rule"] == "overflow_streak" and "4 steps in a row were skipped" in stop["message"], told
    assert "stopped: overflow_streak at step" in err and "There is no good checkpoint before it" in err
    step = metrics(folder)[-1]["step"]
    assert stop["step"] <= step < 20 and step == store.find(folder / "checkpoints")[0].step
    assert len(copy.read_text().splitlines()) == len(told)
    with pytest.raises(Halted):  # it is not cured by starting again
        run(tiny(*SICK))
    again = [json.loads(line)["step"] for line in (folder / "events.jsonl").read_text().splitlines()]
    assert again == sorted(again) and len(again) == len(told) + 1


def test_what_a_batch_is_made_of():
    figures = batch_figures(np.array([[6, 6, 6, 5], [5, 5, PAD_ID, PAD_ID]], np.int32), 7)
    assert figures["invalid_tokens"] == 0 and (figures["top_token_share"], figures["padding_share"]) == (0.5, 0.25)
    nothing = batch_figures(np.full((2, 3), PAD_ID, np.int32), 7)
    assert (nothing["top_token_share"], nothing["padding_share"]) == (0.0, 1.0)
    assert batch_figures(np.array([[7, -1, 2**31 - 1, 6]], np.int32), 7)["invalid_tokens"] == 3


def test_a_command_that_fails_is_said_and_nothing_more(tmp_path, capsys):
    triggers, board = Triggers(tmp_path, None, 0), TensorBoard(tmp_path / "board", 0)
    events = Events(tmp_path, 0, board, "exit 3", triggers)
    events.tell([Event(1, "loss_spike", "warn", "first")])
    events.running[0].wait()
    events.tell([Event(2, "loss_spike", "warn", "second")])
    assert "health.on_event ended with exit code 3" in capsys.readouterr().out and not triggers.halt
    board.close()
    shutil.rmtree(tmp_path / "board")
