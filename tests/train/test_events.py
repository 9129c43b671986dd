"""Health rules in a run: told, and where they are of level stop the run is saved and ends with exit code 3."""
import http.server
import json
import shutil
import socket
import threading
import time

import numpy as np
import pytest

from ckpt import store
from data.tokenizer import PAD_ID
from eval.health.rules.base import Event
from eval.health.rules.data import batch_figures
from tests.conftest import metrics
from train import webhook
from train.__main__ import main
from train.events import Events
from train.run import run
from train.tensorboard import TensorBoard
from train.triggers import Halted, Triggers
from train.webhook import Webhook

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
    assert "stopped by the health rule overflow_streak" in (folder / "report.html").read_text(encoding="utf-8")
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


@pytest.fixture
def server():
    """(address, what was posted to it); it answers 500 to what has a step above 100."""
    got = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(500 if got[-1]["step"] > 100 else 204)
            self.end_headers()

        def log_message(self, *_):
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as here:
        threading.Thread(target=here.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{here.server_address[1]}/events", got
        here.shutdown()


def test_a_webhook_is_told(tmp_path, server):
    address, got = server
    triggers, board = Triggers(tmp_path, None, 0), TensorBoard(tmp_path / "board", 0)
    events = Events(tmp_path, 0, board, None, triggers, address)
    events.tell([Event(1, "loss_spike", "warn", "first"), Event(2, "corrupt_data", "stop", "second")])
    events.close()
    assert [(one["step"], one["rule"], one["level"], one["message"]) for one in got] == \
        [(1, "loss_spike", "warn", "first"), (2, "corrupt_data", "stop", "second")] and triggers.halt
    board.close()


def test_a_webhook_that_fails_is_said_once_and_holds_nothing_up(server):
    address, got = server
    said = []
    for url in (address, "http://127.0.0.1:9/nobody", "http://[broken"):
        hook = Webhook(url, said.append)
        began = time.monotonic()
        for step in (101, 102, 103):
            hook.post({"step": step})
        assert time.monotonic() - began < 0.5
        hook.close()
    assert len(said) == 3 and "HTTP Error 500" in said[0] and len(got) == 3


def test_a_webhook_that_does_not_answer_ends_with_the_run(monkeypatch):
    monkeypatch.setattr(webhook, "SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        said = []
        hook = Webhook(f"http://127.0.0.1:{silent.getsockname()[1]}", said.append)
        for step in range(50):
            hook.post({"step": step})
        began = time.monotonic()
        hook.close()
        assert time.monotonic() - began < 5
