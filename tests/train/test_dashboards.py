"""TensorBoard's layout and descriptions, by its own readers."""
import json
import re

import pytest
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.custom_scalar.custom_scalars_plugin import CustomScalarsPlugin
from tensorboard.plugins.scalar.scalars_plugin import ScalarsPlugin

from train.config import load_config
from train.dashboards import LAYOUT, TEXTS, told
from train.run import run
from train.tensorboard import TensorBoard


def plugins(folder):
    """TensorBoard's CUSTOM SCALARS and SCALARS over a folder of events."""
    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(folder))
    multiplexer.Reload()
    found: dict = {}
    context = TBContext(logdir=str(folder), multiplexer=multiplexer, plugin_name_to_instance=found,
                        data_provider=MultiplexerDataProvider(multiplexer, str(folder)))
    found |= {"custom_scalars": CustomScalarsPlugin(context), "scalars": ScalarsPlugin(context)}
    return found["custom_scalars"], found["scalars"]


@pytest.fixture(scope="module")
def board(tiny_yaml, tmp_path_factory):
    """Of a run of a few steps, resumed once, with all tiers."""
    where = tmp_path_factory.mktemp("board")
    for stop in (5, 10):
        run(load_config(tiny_yaml, [f"run.dir={where}", f"train.stop_at_step={stop}", "health.probe_samples=2",
                                    "eval.deep.at=[0.25]", "precision.loss_scale.growth_interval=2"]))
    return where / "tiny" / "tensorboard"


def test_every_chart_of_the_layout_has_curves(board):
    custom, _ = plugins(board)
    layout = json.loads(custom.layout_impl(RequestContext(), "e"))
    shown = {category["title"]: {chart["title"]: chart["multiline"]["tag"] for chart in category["chart"]}
             for category in layout["category"]}
    assert shown == LAYOUT
    for charts in shown.values():
        for title, patterns in charts.items():
            for pattern in patterns:
                found = custom.scalars_impl(RequestContext(), ".", pattern, "e")
                assert found["regex_valid"] and found["tag_to_events"], (title, pattern)


def test_every_curve_has_a_name_and_a_description(board):
    _, scalars = plugins(board)
    tags = scalars.index_impl(RequestContext(), "e")["."]
    assert {"train/loss", "valid_en/perplexity", "tasks/cloze_en", "health_update_ratio/block_00"} <= tags.keys()
    for tag, shown in tags.items():
        assert shown["description"] and shown["displayName"] != tag, tag
    assert tags["train/loss"]["displayName"] == "loss (nats a token)" and "Mean over" in tags["train/loss"]["description"]


def test_values_stand_beside_what_is_said_of_them(tmp_path):
    events = TensorBoard(tmp_path, 0)
    events.scalars(1, {"train/loss": 2.0, "mine/own": 1.0})
    events.scalars(2, {"train/loss": 1.5})
    events.close()
    found = EventAccumulator(str(tmp_path)).Reload()
    assert [(s.step, s.value) for s in found.Scalars("train/loss")] == [(1, 2.0), (2, 1.5)]
    assert found.SummaryMetadata("train/loss").display_name == "loss (nats a token)"
    assert [s.value for s in found.Scalars("mine/own")] == [1.0] and told("mine/own") is None


def test_what_is_said_of_curves_stands_under_text_too(tmp_path):
    TensorBoard(tmp_path, 0).close()
    (found,) = EventAccumulator(str(tmp_path)).Reload().Tensors("about/curves/text_summary")
    lines = found.tensor_proto.string_val[0].decode().splitlines()
    assert len(lines) == 2 + len(TEXTS) and all(line.count("|") == 4 for line in lines)
    assert "| `valid_*/bits_per_byte` | bits a byte, * | Loss by the text's" in "\n".join(lines)


def test_texts_fit_their_patterns():
    for pattern, name, description in TEXTS:
        groups = ["x"] * re.compile(pattern).groups
        assert name.format(*groups) and description.format(*groups)
