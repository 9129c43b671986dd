"""Which steps are looked into, and how what several ranks found is summed up."""
import math

import numpy as np
import pytest

from eval.health.rules.base import Event
from parallel.mesh import Mesh
from train.callbacks.locate import Locate, at_hand, summed_up
from train.clock import Clock
from train.locating.diagnosis import diagnosed, lines_of
from train.locating.findings import activations

FIXED, DYNAMIC = ("precision.loss_scale.dynamic=false",), ("precision.loss_scale.initial=1024", "precision.loss_scale.min=4")


def locate_of(config):
    locate = Locate(Clock(), config, Mesh(1), 1, None, 0, None, type("Nobody", (), {"examine": lambda self, rows: None})())
    locate.tell = lambda events: locate.told.extend(events)
    locate.told, locate.looks = [], []
    locate.look = lambda loss, scale: locate.looks.append((loss, scale))
    return locate


def looked_into(locate, overflows, scale=1024.0, loss=5.0):
    """The steps that are looked into, of a series of 0 and 1."""
    steps = [(step, loss if overflow else 5.0, scale, bool(overflow)) for step, overflow in enumerate(overflows, 1)]
    return [step[0] for step in steps if locate.due(*step)]


@pytest.mark.parametrize(("settings", "overflows", "given", "steps"), [
    (FIXED, [0, 0, 1, 1, 0, 1], {}, [3]),                               # nothing to adapt: at once, and once
    (DYNAMIC, [1] * 8 + [0, 0, 1, 1, 0], {}, []),                       # it looks for its value, and later for another
    (DYNAMIC, [1, 0, 0, 1, 1, 1, 1, 0, 1, 1, 1], {}, [6]),              # it had settled, and goes on falling
    (DYNAMIC, [0, 1], {"loss": math.nan}, [2]),                         # which the scale has no part in
    (DYNAMIC, [1, 1, 0], {"loss": math.inf}, [1]),
    (DYNAMIC, [1, 0], {"scale": 4.0}, [1]),                             # as low as it may be
    (DYNAMIC, [1] * 31, {}, [30]),                                      # what ends the run
    (("health.rules.overflow_streak.level=off",), [1] * 31, {}, []),
    (("health.locate_nan=false", *FIXED), [1] * 31, {}, []),
    (FIXED, [1] * 31, {}, [1]),                                         # the same weights and scale: nothing new at 30
    (FIXED, [0, 1, 0] + [1] * 31, {}, [2, 33]),                         # others
])
def test_which_steps(tiny, settings, overflows, given, steps):
    assert looked_into(locate_of(tiny(*settings)), overflows, **given) == steps


def rows_of(overflows, first=1):
    return [{"step": first + i, "loss": 5.0, "loss_scale": 8.0, "overflow": bool(o)} for i, o in enumerate(overflows)]


def test_on_a_device_the_last_step_is_run_again_while_the_weights_are_the_same(tiny):
    locate = locate_of(tiny(*FIXED))
    locate.on_host = False
    locate.examine(rows_of([0, 0, 1, 1]))
    assert locate.looks == [(5.0, 8.0)] and not locate.told
    late = locate_of(tiny(*FIXED))
    late.on_host = False
    late.examine(rows_of([0, 1, 0, 1]))
    assert not late.looks and late.told[0].step == 2 and "python -m train.locate_nan" in late.told[0].message
    late.examine(rows_of([0] * 4, 5))
    assert len(late.told) == 1


FOUND = {"verdict": "forward", "message": "forward, x", "norm": 1.0}
FINITE, OTHER = {"verdict": "finite", "message": "", "norm": 2.0}, {"verdict": "other", "message": ""}


@pytest.mark.parametrize(("ranks", "finite", "verdict", "rank", "says"), [
    ([FOUND], [0], "forward", 0, "forward, x"),
    ([FINITE], [0], "transient", 0, "on rank 0"),
    ([OTHER, FOUND], [1, 0], "forward", 1, "rank 1: forward, x"),
    ([FINITE, OTHER, FINITE], [0, 1, 0], "transient", 0, "on rank 0, 2"),
    ([FINITE, FINITE], [1, 1], "transient", None, "where the ranks' gradients were added up"),
    ([FINITE, {**FINITE, "norm": 2e19}], [1, 1], "norm", None, "squares of their sum"),
    ([{"verdict": "failed", "message": "it could not"}, OTHER], [0, 1], "failed", 0, "rank 0: it could not"),
])
def test_ranks_are_summed_up(ranks, finite, verdict, rank, says):
    found = summed_up(ranks, np.array(finite) != 0)
    assert (found["verdict"], found["rank"]) == (verdict, rank) and says in found["message"]
    assert found["verdicts"] == [one["verdict"] for one in ranks]


def test_a_cut_model_says_what_it_cannot_say():
    good, bad = np.ones(3, np.float32), np.float32([1, np.nan])
    found = at_hand({"a": good}, 7)
    assert found["verdict"] == "cut" and "the weights are finite; a model that is cut" in found["message"]
    found = at_hand({"a": good, "b.weight": bad}, 7)
    assert found["verdict"] == "weights" and found["weights"]["b.weight"]["nonfinite"] == 0.5 and "--step 7" in found["message"]


def test_a_diagnosis_without_a_rerun_shows_the_last_probe():
    rows = rows_of([0, 1, 1])
    rows[0]["health"] = {"layers": {"embedding": {"grad_norm": 1.0}, "block_00": {"abs_max": 7.5}}}
    report = diagnosed(Event(3, "overflow_streak", "stop", "2 steps"), rows, at_hand({"a": np.ones(1)}, 3), 1, None)
    assert report["layers"] == {"block_00": {"abs_max": 7.5, "nonfinite": 0.0}} and report["located"]["verdict"] == "cut"
    lines = lines_of(report)
    assert any("block_00 7.5" in line for line in lines) and "before step 2 with finite weights: none" in lines[-2]
    assert activations({"a": {"abs_max": None, "nonfinite": 1.0}, "b": {"abs_max": 2.0, "nonfinite": 0.5}}) == \
        "a nothing finite, b 2 (not all finite)"
