"""Health rules on the recorded figures of a real run (golden/healthy_run.jsonl: 400 steps of the smoke run), and on sick ones."""
import copy
import json
import math
from pathlib import Path

import pytest
from pydantic import ValidationError

from eval.config import HealthConfig
from eval.health.losses import LossWindow
from eval.health.rules.base import Facts
from eval.health.rules.config import RulesConfig
from eval.health.rules.engine import RULES, START_RULES, Bars, Rules
from eval.health.rules.reports import REPORT_RULES, report_events

HEALTHY = [json.loads(line) for line in
           (Path(__file__).parents[1] / "golden" / "healthy_run.jsonl").read_text(encoding="utf-8").splitlines()]
FACTS = Facts(unigram=math.log(685), warmup_steps=40, peak_lr=1.5e-3, expected_lr=lambda step: HEALTHY[step - 1]["lr"])
SETTINGS = HealthConfig()


def events(rows, config=SETTINGS.rules, facts=FACTS):
    """As the tier gives the rows to the rules."""
    rules, window, found = Rules(config, facts), LossWindow(SETTINGS.window, SETTINGS.spike_z), []
    for row in rows:
        window.add(row["loss"], row["overflow"])
        found += rules.see({**row, "loss_z": window.z})
    return found


def sick(change, first=200, last=400):
    """The healthy run with rows first..last changed in place."""
    rows = copy.deepcopy(HEALTHY)
    for row in rows[first - 1:last]:
        change(row)
    return rows


def layers(name, key, value):
    """Change one figure of one layer where there are any."""
    def change(row):
        if "health" in row:
            row["health"]["layers"][name][key] = value
    return change


def test_a_healthy_run_is_silent():
    assert events(HEALTHY) == []


@pytest.mark.parametrize("rule, rows, first", [
    ("loss_spike", sick(lambda row: row.update(loss=row["loss"] + 3.0), 250, 250), 250),
    ("loss_variance", sick(lambda row: row.update(loss=row["loss"] + (1.5 if row["step"] % 2 else -1.5))), (201, 260)),
    ("learning_nothing", sick(lambda row: row.update(loss=6.5 + row["step"] % 3 / 10), 1), 50),
    ("gradient_explosion", sick(lambda row: row.update(grad_norm=row["grad_norm"] * 1e4), 300, 300), 300),
    ("gradient_vanishing", sick(lambda row: row.update(grad_norm=row["grad_norm"] * 1e-5), 300), 300),
    ("gradient_vanishing", sick(lambda row: row.update(grad_norm=0.0), 1), 1),
    ("overflow_streak", sick(lambda row: row.update(overflow=True, grad_norm=None)), 229),
    ("overflow_rate", sick(lambda row: row.update(overflow=row["step"] % 5 == 0)), (250, 300)),
    ("learning_rate", sick(lambda row: row.update(lr=row["lr"] * 1.01), 321), 321),
    ("dead_layer", sick(layers("block_02", "grad_norm", 0.0)), 200),
    ("dead_layer", sick(layers("norm", "update_ratio", 0.0)), 200),
    ("update_ratio", sick(layers("embedding", "update_ratio", 0.3)), 200),
    ("activation_drift", sick(layers("block_01", "std", 40.0)), 200),
    ("saturation", sick(layers("block_03", "zeros", 0.95)), 200),
    ("saturation", sick(layers("block_03", "saturated", 0.95)), 200),
    ("attention_collapse", sick(layers("block_00", "attention_entropy_min", 0.001)), 200),
    ("data_repeated", sick(lambda row: row.update(batch_crc=row["step"] % 50)), 250),
    ("dominant_token", sick(lambda row: row.update(top_token_share=0.7), 222, 230), 222),
    ("mostly_padding", sick(lambda row: row.update(padding_share=0.95), 222, 230), 222),
    ("layer_gradient", sick(layers("block_02", "grad_norm", 1e3), 300, 300), 300),
    ("layer_gradient", sick(layers("block_02", "grad_norm", 1e-6), 300, 300), 300),
    ("slow_rank", sick(lambda row: row.update(slowest_rank=3, slowest_rank_seconds=0.5, usual_rank_seconds=0.01,
                                              step_seconds=1.0)), 219),
    ("throughput", sick(lambda row: row.update(tokens_per_second=2000.0), 333, 340), 333),
])
def test_each_rule_fires_where_it_is_broken_and_no_other_stops(rule, rows, first):
    found = events(rows)
    mine = [event for event in found if event.rule == rule]
    low, high = first if isinstance(first, tuple) else (first, first)
    assert mine and low <= mine[0].step <= high, found
    assert mine[0].level == getattr(SETTINGS.rules, rule).level and len(mine[0].message) > 60
    assert not [event for event in found if event.level == "stop" and event.rule != rule]


def test_ranks_that_are_slow_in_turn_or_by_little_are_none():
    def found(**figures):
        return [e for e in events(sick(lambda row: row.update({"step_seconds": 1.0, "usual_rank_seconds": 0.01, **{
            name: value(row["step"]) for name, value in figures.items()}}))) if e.rule == "slow_rank"]

    assert not found(slowest_rank=lambda step: step % 3, slowest_rank_seconds=lambda step: 0.5)
    assert not found(slowest_rank=lambda step: 1, slowest_rank_seconds=lambda step: 0.15)  # a trifle
    assert not found(slowest_rank=lambda step: 0, slowest_rank_seconds=lambda step: 5.0 if step % 10 == 0 else 0.01)  # its log
    assert found(slowest_rank=lambda step: 1, slowest_rank_seconds=lambda step: 0.5 if step % 3 else 0.01)


def test_nothing_learned_is_told_from_knowing_nothing():
    facts = Facts(FACTS.unigram, 40, 1.5e-3, FACTS.expected_lr, uniform=math.log(2000))
    for loss, words in ((6.6, "knows no more than how frequent tokens are"), (7.6, "knows nothing at all")):
        found = events(sick(lambda row, loss=loss: row.update(loss=loss), 1, 60)[:60], facts=facts)
        assert words in next(e.message for e in found if e.rule == "learning_nothing")


def test_a_batch_is_barred_each_time_and_a_streak_has_a_beginning():
    bars = Bars(RulesConfig(dominant_token={"level": "skip"}, mostly_padding={"level": "stop", "threshold": 0.5}))
    rows = [{"step": step, "top_token_share": 0.7, "padding_share": 0.2, "batch_crc": step} for step in (1, 2)]
    assert [(e.step, e.rule, e.level) for e in map(bars.see, rows)] == [(step, "dominant_token", "skip") for step in (1, 2)]
    assert bars.see({"step": 3, "padding_share": 0.9}).rule == "mostly_padding" and bars.see({"step": 4}) is None
    found = Bars(SETTINGS.rules).see({"step": 5, "invalid_tokens": 3})
    assert (found.step, found.rule, found.level) == (5, "corrupt_data", "stop") and "3 tokens of this batch" in found.message
    assert Bars(SETTINGS.rules).see({"step": 5, "invalid_tokens": 0}) is None
    assert "dominant_token" not in Rules(RulesConfig(dominant_token={"level": "skip"}), FACTS).rules
    found = events(sick(lambda row: row.update(overflow=True, grad_norm=None)))
    assert next(e for e in found if e.rule == "overflow_streak").began == 200


def test_memory_that_grows():
    rows = [{**row, "step": i + 1, "memory_bytes": int(1e9 * (1 + i / 1000))} for i, row in enumerate(HEALTHY * 2)]
    facts = Facts(FACTS.unigram, 40, 1.5e-3, lambda step: rows[step - 1]["lr"])
    (event,) = [e for e in events(rows, facts=facts) if e.rule == "memory_growth"]
    assert event.step == 501 and "from 1.00 to 1.50 GB" in event.message
    flat = [{**row, "memory_bytes": 10**9} for row in rows]
    assert not [e for e in events(flat, facts=facts) if e.rule == "memory_growth"]


def test_a_batch_that_comes_again_after_the_window_is_none():
    rows = [{**row, "batch_crc": row["step"] % 150} for row in HEALTHY]
    assert [e.step for e in events(rows, RulesConfig(data_repeated={"window": 149}))] == []
    assert [e.step for e in events(rows, RulesConfig(data_repeated={"window": 150}))] == [151, 301]


def test_what_goes_on_is_told_once_in_each_window():
    rows = sick(lambda row: row.update(grad_norm=row["grad_norm"] * 1e3), 150, 380)
    assert [event.step for event in events(rows) if event.rule == "gradient_explosion"] == [150, 250, 350]


def test_what_is_not_finite_is_no_spike_and_breaks_nothing_else():
    rows = sick(lambda row: row.update(loss=None, grad_norm=math.nan, overflow=True), 200, 210)
    assert [event.rule for event in events(rows)] in ([], ["overflow_rate"])


def test_reports_are_held_against_rules_too():
    def found(time_fraction, repetition, rules=SETTINGS.rules, **more):
        past = {"stage/all/perplexity": [(10, 200.0), (20, 100.0)], "deep/samples/repetition_4": [(10, 0.1), (20, repetition)]}
        report = {"step": 20, "stage": {"time_fraction": time_fraction}, "deep": {}, **more}
        return [(event.step, event.rule, event.level) for event in report_events(report, past, 0.05, rules)]

    assert found(0.05, 0.12) == [] == found(None, None)
    assert found(0.07, 0.12) == [(20, "eval_budget", "note")]
    assert found(0.05, 0.4) == [(20, "quality", "warn")]
    assert found(0.05, 0.12, dropout_spread=1e-6) == []
    assert found(0.05, 0.12, dropout_spread=0.003) == [(20, "eval_dropout", "warn")] == found(0.05, 0.12, dropout_spread=math.nan)
    off = RulesConfig(eval_budget={"level": "off"}, quality={"level": "off"})
    assert found(0.07, 0.4, off) == []
    assert report_events({"step": 20}, {}, None, SETTINGS.rules) == []


def test_levels_and_thresholds_are_the_users():
    rows = sick(lambda row: row.update(grad_norm=row["grad_norm"] * 1e4), 300, 300)
    stops = RulesConfig(gradient_explosion={"level": "stop"})
    assert stops.gradient_explosion.threshold == 20.0 and events(rows, stops)[0].level == "stop"
    assert events(rows, RulesConfig(gradient_explosion={"level": "off"})) == []
    assert events(rows, RulesConfig(gradient_explosion={"threshold": 1e6})) == []
    with pytest.raises(ValidationError):
        RulesConfig(gradient_explosion={"level": "panic"})
    for name, level in (("gradient_explosions", "warn"), ("gradient_explosion", "skip"), ("dominant_token", "roll_back"),
                        ("label_shift", "skip")):
        with pytest.raises(ValidationError):
            RulesConfig(**{name: {"level": level}})


def test_every_rule_has_settings_and_is_explained():
    assert {*START_RULES, *RULES, *REPORT_RULES} == set(RulesConfig.model_fields)
    text = (Path(__file__).parents[2] / "eval" / "README.md").read_text(encoding="utf-8")
    for name, one in RulesConfig():
        assert f"| `{name}` | {one.level} |" in text and type(one).__doc__ in text, name
