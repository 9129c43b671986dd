"""Before the first step: weights that were left uninitialised are refused, and the spread of the blocks' outputs is told."""
import json

import numpy as np
import pytest
from mindspore import Tensor

from ckpt import store, writing
from parallel.errors import UserError
from tests.conftest import metrics
from train import run as training
from train.config import load_config
from train.initial import report_outputs
from train.run import run

QUIET = ("eval.stage.enabled=false", "eval.deep.enabled=false", "train.total_steps=2", "train.warmup_steps=0",
         "health.probe_samples=2")
UP, TABLE = "blocks.1.mlp.up.weight", "embedding.token"
MEANT = f"model.init=[{{pattern: {UP}, kind: zeros}}, {{pattern: '*.down.weight', kind: ones}}]"


@pytest.fixture(scope="module")
def started(tiny_yaml, tmp_path_factory):
    """The config of a run of one step of two, with weights that are constant because the config says so."""
    config = load_config(tiny_yaml, [f"run.dir={tmp_path_factory.mktemp('started')}", *QUIET, MEANT, "train.stop_at_step=1"])
    assert run(config)
    return config


@pytest.fixture
def starts(monkeypatch, tiny):
    """starts(*overrides): does such a run come to its first step? Where it is refused, nothing was written."""
    monkeypatch.setattr(training.Training, "train", lambda _: True)

    def start(*overrides):
        config = tiny(*QUIET, *overrides)
        try:
            return run(config)
        finally:
            assert not config.run.folder.exists()
    return start


@pytest.fixture
def planted(monkeypatch):
    """planted(name, change): that parameter's value is changed after the initialisation."""
    initialize = training.initialize

    def plant(name, change):
        def wrong(gpt, *args):
            initialize(gpt, *args)
            p = dict(gpt.parameters_and_names())[name]
            p.set_data(Tensor(change(p.asnumpy().copy())))
        monkeypatch.setattr(training, "initialize", wrong)
    return plant


@pytest.mark.parametrize(("name", "value", "says"), [
    (UP, 0.0, f"the initial weights: left uninitialised, one value everywhere: {UP} (all 0); if that is meant"),
    ("embedding.position", 0.25, "one value everywhere: embedding.position (all 0.25)"),
    (UP, np.nan, f"the initial weights: not finite in {UP}"), (UP, np.inf, f"not finite in {UP}"),
])
def test_a_matrix_of_one_value_is_refused(name, value, says, planted, starts):
    planted(name, lambda x: np.full_like(x, value))
    with pytest.raises(UserError) as error:
        starts()
    assert says in str(error.value) and "\n" not in str(error.value)


def test_one_infinite_value_is_enough(planted, starts):
    def one(x):
        x[3, 4] = -np.inf
        return x
    planted(UP, one)
    with pytest.raises(UserError, match=f"not finite in {UP}"):
        starts()


def test_what_pads_the_token_table_does_not_count(planted, starts):
    assert starts("model.vocab_multiple=512")  # 700 tokens, 1024 rows
    planted(TABLE, lambda x: np.where(np.arange(1024)[:, None] < 700, 0.5, 0.0 * x).astype(np.float32))
    with pytest.raises(UserError, match=rf"{TABLE} \(all 0.5\)"):
        starts("model.vocab_multiple=512")


def test_each_blocks_output_is_told(started):
    layers = json.loads((started.run.folder / "initial.json").read_text())["layers"]
    assert list(layers) == ["block_00", "block_01"] and layers["block_01"]["zeros"] == 1.0  # what the GELU gives of nothing
    for values in layers.values():
        assert values["variance"] == pytest.approx(values["std"]**2) and values["std"] > 0


@pytest.mark.long
def test_a_resumed_run_does_not_look_again(started, tiny, capsys):
    told = started.run.folder / "initial.json"
    told.rename(told.with_suffix(".kept"))
    frozen = "train.groups=[{pattern: embedding.*, lr_factor: 0}]"
    assert run(tiny(f"run.dir={started.run.dir}", *QUIET, "model.init=[]", frozen))
    assert len(metrics(started.run.folder)) == 2 and not told.exists()
    out = capsys.readouterr().out
    assert "changed since: model.init" in out and "outputs at step 0" not in out
    assert "changed since: train.groups" in out and "embedding.* (2 parameters): frozen" in out
    before, after = (store.load_given(started.run.folder / "checkpoints" / f"step_{i:08d}").tensors["model"] for i in (1, 2))
    same = {name for name in before if np.array_equal(before[name], after[name])}
    assert same == {"embedding.token", "embedding.position"}


def test_the_line_on_the_console(tmp_path, capsys):
    figures = {f"block_{i:02d}": {"std": 0.1 * i if i else None} for i in range(30)}
    report_outputs(figures, tmp_path)
    line, = capsys.readouterr().out.splitlines()
    assert "block_00 not finite" in line and line.endswith("block_29 2.9") and line.count("block_") == 8
    assert json.loads((tmp_path / "initial.json").read_text())["layers"]["block_00"]["variance"] is None


def test_weights_from_a_checkpoint_are_looked_at_too(started, starts, tmp_path):
    found = store.load_given(started.run.folder / "checkpoints")
    model = {name: np.array(value) for name, value in found.tensors["model"].items()}
    assert np.abs(model[UP]).max() > 0  # it has learned
    model[UP][:] = 0.0
    writing.save(tmp_path / "broken", store.Checkpoint({"model": model}, found.state, found.config), 1)
    source = f"ckpt.init_from={tmp_path / 'broken'}"
    with pytest.raises(UserError, match=rf"ckpt.init_from=.*broken: left uninitialised, one value everywhere: {UP} \(all 0\)"):
        starts(source)
    assert starts(source, MEANT)
