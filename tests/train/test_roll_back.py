"""A bad batch is passed over: rolled back from, or skipped before it is trained on. Then the run is as if it had never been."""
import json

import numpy as np
import pytest

from ckpt import store
from data.dataset import _Source
from data.order import Places, Reading
from parallel.errors import UserError
from tests.conftest import exact, metrics
from train.__main__ import main
from train.passed_over import FILE, Ledger, PassedOver, load, spoilt

QUICK = ("eval.stage.enabled=false", "eval.deep.enabled=false", "health.every_steps=50", "ckpt.every_steps=5", "ckpt.keep_last=9",
         "train.log_every_steps=4", "train.total_steps=30", "data.log_samples=true")
# 20 steps are what a spike is told by.
ROLL_BACK = ("health.rules.gradient_explosion.level=roll_back", "health.rules.gradient_explosion.threshold=5",
             "train.lr=1e-3")
BAD = 25 * 4  # position at which the bad batch begins: that of step 26


@pytest.fixture
def bad_batch(monkeypatch):
    """Plants a batch of one and the same token at the positions BAD to BAD + 3 of the order."""
    iterate = _Source.__iter__

    def planted(self):
        for tokens, *positions in iterate(self):
            bad = [(p >= BAD) & (p < BAD + 4) for p in positions]  # none of what is not the training's
            yield np.where(bad[0][:, None], np.int32(7), tokens) if bad else tokens, *positions
    monkeypatch.setattr(_Source, "__iter__", planted)


def start(tiny_yaml, folder, *overrides) -> int:
    return main(["--config", str(tiny_yaml), "--set", f"run.dir={folder}", *QUICK, *overrides])


def same(a, b) -> None:
    """To the bit: every step's figures, and the state at the end."""
    assert exact(metrics(a)) == exact(metrics(b))
    one, two = (store.find(folder / "checkpoints")[0] for folder in (a, b))
    assert one.state["consumed_samples"] == two.state["consumed_samples"]
    for part in store.PARTS:
        assert all(np.array_equal(one.tensors[part][n], two.tensors[part][n]) for n in two.tensors[part])


def test_after_a_roll_back_the_run_is_one_that_never_saw_the_batch(tiny_yaml, tmp_path, bad_batch, capsys):
    rolled, folder = tmp_path / "rolled", tmp_path / "rolled" / "tiny"
    assert start(tiny_yaml, rolled, *ROLL_BACK) == 5
    (entry,) = json.loads((folder / FILE).read_text())
    assert (entry["first"], entry["stop"], entry["step"], entry["rule"]) == (BAD - 4, BAD + 4, 26, "gradient_explosion")
    assert "rolled back: " in capsys.readouterr().err
    assert store.steps(folder / "checkpoints")[-1].name == "step_00000025"  # with one of the batches in it
    assert start(tiny_yaml, rolled, *ROLL_BACK, "train.stop_at_step=28") == 0
    out = capsys.readouterr().out
    assert "resumed from" in out and "step_00000020" in out and f"passes over the samples {BAD - 4} to {BAD + 3}" in out
    assert start(tiny_yaml, rolled, *ROLL_BACK) == 0  # and any later resume
    never = tmp_path / "never"
    (never / "tiny").mkdir(parents=True)
    (never / "tiny" / FILE).write_text(f'[{{"first": {BAD - 4}, "stop": {BAD + 4}}}]')
    assert start(tiny_yaml, never, *ROLL_BACK) == 0
    same(folder, never / "tiny")
    rows = metrics(folder)
    assert [row["consumed_samples"] for row in rows[22:26]] == [92, 96, 108, 112] and len(rows) == 30
    logs = [[json.loads(line)["samples"] for line in (f / "samples" / "rank_0.jsonl").read_text().splitlines()]
            for f in (folder, never / "tiny")]
    assert logs[0] == logs[1]


def test_no_more_roll_backs_than_allowed(tiny_yaml, tmp_path, bad_batch, capsys):
    assert start(tiny_yaml, tmp_path, *ROLL_BACK, "health.max_passed_over=0") == 3
    err = capsys.readouterr().err
    assert "gradient_explosion at step 26" in err and "No roll-back: 0 skips and roll-backs were made already" in err


def test_a_batch_is_skipped_before_it_is_trained_on(tiny_yaml, tmp_path, bad_batch, capsys):
    skipping = ("health.rules.dominant_token.level=skip", "health.rules.dominant_token.threshold=0.6")
    assert start(tiny_yaml, tmp_path / "skipped", *skipping, "train.stop_at_step=26") == 0
    folder = tmp_path / "skipped" / "tiny"
    (entry,) = json.loads((folder / FILE).read_text())
    assert (entry["first"], entry["stop"], entry["step"], entry["rule"]) == (BAD, BAD + 4, 26, "dominant_token")
    assert "skip   dominant_token at step 26" in capsys.readouterr().out
    assert [row["consumed_samples"] for row in metrics(folder)[-2:]] == [100, 108]
    (folder / FILE).unlink()  # the checkpoint has the list too
    assert start(tiny_yaml, tmp_path / "skipped", *skipping) == 0 and (folder / FILE).exists()
    never = tmp_path / "never" / "tiny"
    never.mkdir(parents=True)
    (never / FILE).write_text(f'[{{"first": {BAD}, "stop": {BAD + 4}}}]')
    assert start(tiny_yaml, tmp_path / "never") == 0
    same(folder, never)


def test_the_first_batch_can_be_skipped_too_and_one_too_many_stops(tiny_yaml, tmp_path, capsys):
    always = ("health.rules.dominant_token.level=skip", "health.rules.dominant_token.threshold=0.001", "health.max_passed_over=3")
    assert start(tiny_yaml, tmp_path, *always) == 3
    assert [(one.first, one.stop) for one in load(tmp_path / "tiny")] == [(0, 4), (4, 8), (8, 12)]
    assert "3 skips and roll-backs were made already" in capsys.readouterr().err and not metrics(tmp_path / "tiny")


def test_places_against_the_plain_list():
    rng = np.random.RandomState(0)
    for _ in range(200):
        start, ranges = rng.randint(30), [(first, first + rng.randint(9)) for first in rng.randint(0, 60, rng.randint(6))]
        left = [p for p in range(start, 300) if not any(first <= p < stop for first, stop in ranges)]
        assert Places(start, ranges).at(np.arange(150)).tolist() == left[:150]
    reading = Reading(Places(3, [(5, 7)]), 4)
    assert reading.consumed == 3 and reading.next_batch().tolist() == [3, 4, 7, 8]
    reading.batches += 1
    assert reading.consumed == 9


def test_which_checkpoints_are_spoilt(tmp_path):
    entry = PassedOver(first=100, stop=108, rule="loss_spike")
    assert spoilt({"consumed_samples": 100}, [entry]) == "" == spoilt({"consumed_samples": 200}, [])
    assert "trained on the samples 100 to 107" in spoilt({"consumed_samples": 101}, [entry])
    assert spoilt({"consumed_samples": 200, "passed_over": [entry.model_dump()]}, [entry]) == ""
    (tmp_path / FILE).write_text('[{"first": "a"}]')
    with pytest.raises(UserError, match="passed_over.json cannot be read .* expected a list of"):
        load(tmp_path)


def test_a_list_is_kept_in_order_and_bounded(tmp_path):
    ledger = Ledger(tmp_path, [], 2, 0)
    assert [ledger.add(PassedOver(first=first, stop=first + 4)) for first in (8, 0)] == ["", ""]
    assert ledger.add(PassedOver(first=20, stop=24)).startswith("2 skips") and ledger.ranges == [(0, 4), (8, 12)]
    assert [one.range for one in load(tmp_path, {"passed_over": [{"first": 8, "stop": 12}, {"first": 50, "stop": 60}]})] == \
        [(0, 4), (8, 12), (50, 60)]
    assert Ledger(tmp_path, [], 2, 1).add(PassedOver(first=0, stop=1)) == "" and len(load(tmp_path)) == 2  # rank 0 writes
