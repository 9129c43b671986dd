"""Whole runs of a tiny model in this process: resuming, refusals, what evaluation leaves unchanged."""
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ckpt import store, writing
from parallel.errors import UserError
from tests.conftest import exact, metrics
from train import launch
from train.__main__ import main
from train.checks import lock
from train.run import run


@pytest.fixture(scope="module")
def whole(tiny_yaml, tmp_path_factory):
    """20 steps without a stop: the folder of the run."""
    from train.config import load_config

    config = load_config(tiny_yaml, [f"run.dir={tmp_path_factory.mktemp('whole')}"])
    run(config)
    return config.run.folder


def test_stopping_and_resuming_changes_nothing(whole, tiny):
    # R1: accumulation (2 micro-batches) is on. R2: step 15 and on lie in the second epoch. R3: warm-up, dynamic scale, moments.
    for stop in (3, 10, 17):
        run(tiny(f"train.stop_at_step={stop}"))
    run(tiny())
    folder = tiny().run.folder
    assert exact(metrics(folder)) == exact(metrics(whole))
    assert [row["step"] for row in metrics(folder)] == list(range(1, 21))
    a, b = (store.load(f / "checkpoints" / "step_00000020") for f in (whole, folder))
    assert {**a.state, "run_id": ""} == {**b.state, "run_id": ""} and a.state["run_id"] != b.state["run_id"]
    for part in ("model", "optimizer"):
        assert a.tensors[part].keys() == b.tensors[part].keys()
        assert all(np.array_equal(a.tensors[part][n], b.tensors[part][n]) for n in a.tensors[part])
    report = [json.loads((f / "report.json").read_text()) for f in (whole, folder)]
    for key in ("loss", "val_loss", "unigram_perplexity", "steps", "consumed_samples"):
        assert report[0][key] == report[1][key]


def test_the_whole_state_changes_during_the_run(whole):
    # or equal state after a resume would prove nothing
    rows = metrics(whole)
    assert len({row["lr"] for row in rows}) > 10 and len({row["loss_scale"] for row in rows}) >= 3
    state = store.load(whole / "checkpoints" / "step_00000020").state
    assert state["updates"] == 20 and state["consumed_samples"] == 80 and state["good_steps"] == 2


def test_each_step_stands_once_in_tensorboard(whole, tiny):
    # P3: killed at 15 after a checkpoint at 10, resumed to 20.
    run(tiny("train.stop_at_step=15"))
    folder = tiny().run.folder
    shutil.rmtree(folder / "checkpoints" / "step_00000015")
    run(tiny())
    events = {f: EventAccumulator(str(f / "tensorboard"), size_guidance={"scalars": 0}).Reload() for f in (whole, folder)}
    for tag in ("train/loss", "train/learning_rate", "train/grad_norm", "train/loss_scale"):
        scalars = [[(s.step, s.value) for s in e.Scalars(tag)] for e in events.values()]
        assert [step for step, _ in scalars[1]] == list(range(1, 21))
        assert scalars[0] == scalars[1]
    assert [s.step for s in events[folder].Scalars("valid_all/loss")] == [5, 10, 15, 20]
    assert exact(metrics(folder)) == exact(metrics(whole))


@pytest.mark.parametrize("overrides", [("eval.stage.enabled=false", "eval.deep.enabled=false"),
                                       ("eval.stage.every=0.05", "eval.deep.at=[0.1,0.2,0.5,0.8]")])
def test_evaluation_changes_nothing_that_follows(whole, tiny, overrides):  # E3, with dropout 0.1
    run(tiny(*overrides))
    assert exact(metrics(tiny().run.folder)) == exact(metrics(whole))


def test_a_failing_evaluation_leaves_the_model_in_training_mode(tiny):
    from eval.step import mode_kept
    from model.gpt import GPT

    gpt = GPT(tiny("model.vocab_size=300").model).set_train()
    with pytest.raises(RuntimeError), mode_kept(gpt):
        gpt.set_train(False)
        raise RuntimeError
    assert gpt.training and gpt.blocks[0].attention.training


def test_another_batch_layout_gives_the_same_run(whole, tiny):
    # Same samples, same dropout masks, same update: only the rounding differs.
    run(tiny("train.micro_batch_size=4"))
    for a, b in zip(metrics(whole), metrics(tiny().run.folder), strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-4) and a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-3)
        assert a["tokens"] == b["tokens"]


def test_a_run_killed_before_its_report_gets_it(whole, tiny):
    folder = tiny().run.folder
    shutil.copytree(whole, folder)
    (folder / "report.json").unlink()
    run(tiny())
    before, after = (json.loads((f / "report.json").read_text()) for f in (whole, folder))
    for key in ("loss", "val_loss", "val_perplexity", "unigram_perplexity", "steps", "consumed_samples"):
        assert before[key] == after[key]
    assert exact(metrics(folder)) == exact(metrics(whole))


def test_the_report_has_what_others_rely_on(whole):
    report = json.loads((whole / "report.json").read_text())
    assert report["steps"] == 20 and report["world_size"] == 1 and report["mesh"] == {"dp": 1, "tp": 1, "pp": 1}
    assert report["tokens_per_second"] > 0 and report["peak_memory_bytes"] > 1e8
    assert 0 < report["eval_time_fraction"] < 1 and 0 <= report["data_wait_fraction"] < 1
    assert report["val_perplexity"] == pytest.approx(np.exp(report["val_loss"])) and report["unigram_perplexity"] > 1
    assert [Path(c).name for c in report["checkpoints"]] == [f"step_{n:08d}" for n in (5, 10, 15, 20)]  # two, and milestones
    assert "Complete: 20 of 20 steps" in (whole / "report.html").read_text(encoding="utf-8")
    last = json.loads((whole / "eval" / "step_00000020.json").read_text())
    assert report["val_step"] == report["steps"] and last["stage"]["all"]["loss"] == report["val_loss"] and "deep" not in last
    assert len(json.loads((whole / "eval" / "step_00000010.json").read_text())["deep"]["samples"]["texts"]) == 4


@pytest.mark.long
def test_a_kill_before_the_first_checkpoint_doubles_nothing(tiny):  # P3
    run(tiny("train.stop_at_step=3"))
    folder = tiny().run.folder
    shutil.rmtree(folder / "checkpoints")
    (folder / "report.json").unlink()
    run(tiny("train.stop_at_step=4"))
    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    assert [s.step for s in events.Scalars("train/loss")] == [1, 2, 3, 4] == [row["step"] for row in metrics(folder)]


def test_going_back_asks_for_the_newer_checkpoints_to_be_moved(whole, tiny):
    shutil.copytree(whole, tiny().run.folder)
    with pytest.raises(UserError, match="move step_00000020 away"):
        run(tiny(f"ckpt.resume={tiny().run.folder}/checkpoints/step_00000015", "train.total_steps=30"))


def test_a_finished_run_says_so_and_stays_as_it_is(whole, tiny, capsys):
    shutil.copytree(whole, tiny().run.folder)
    before = (tiny().run.folder / "metrics.jsonl").read_bytes()
    run(tiny())
    assert "nothing to do" in capsys.readouterr().out
    assert (tiny().run.folder / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize(("overrides", "says"), [
    (["train.total_steps=15"], "past step 15"),
    (["ckpt.resume=none"], "choose another run.name"),
    (["ckpt.resume=/nowhere"], "no such checkpoint folder"),
    (["model.num_layers=3"], "(?s)missing: blocks.2.mlp.up.weight(?!.*moment).*\nAnother run.name begins a new run"),  # K4
    (["model.hidden_size=24"], "shape of norm.weight: \\[16\\] in the file, \\[24\\] in the model"),
    (["run.seed=7"], "seed: 1234 in the checkpoint, 7 here"),
    (["model.vocab_size=701"], "the tokenizer of the prepared data has 700 pieces"),
    (["train.total_steps=30", "train.global_batch_size=1000", "train.micro_batch_size=1000"],  # D2
     "one global batch needs 1000"),
    (["train.micro_batch_size=3"], "allowed are 1, 2, 4, or auto"),
    (["parallel.num_micro_batches=3"], "set it to 2 or auto"),
    (["parallel.dp=2"], "set parallel.dp to 1 or auto"),
    (["parallel.tp=2", "parallel.dp=1"], "python -m train.preflight"),
    (["parallel.recompute=full"], "set recompute to selective or none"),  # with the tiny run's dropout
])
def test_refusals_write_nothing(whole, tiny, overrides, says):
    shutil.copytree(whole, tiny().run.folder)
    files = {p: p.stat().st_mtime_ns for p in tiny().run.folder.rglob("*")}
    with pytest.raises(UserError, match=says):
        run(tiny(*overrides))
    assert {p: p.stat().st_mtime_ns for p in tiny().run.folder.rglob("*")} == files


def damage(folder, what):
    """Make a checkpoint incomplete, with a manifest that fits it: as a writer of another version might."""
    checkpoint = store.load(folder)
    state, tensors = dict(checkpoint.state), {k: dict(v) for k, v in checkpoint.tensors.items()}
    what(state, tensors)
    shutil.rmtree(folder)
    writing.save(folder.parent, store.Checkpoint(tensors, state, checkpoint.config), keep_last=9)


@pytest.mark.parametrize(("what", "says"), [
    (lambda state, tensors: state.pop("loss_scale"), "missing: loss_scale"),  # R3
    (lambda state, tensors: state.pop("updates"), "missing: updates"),
    (lambda state, tensors: tensors.pop("optimizer"), "missing: moment1.norm.weight"),
    (lambda state, tensors: tensors["model"].update({"other": tensors["model"].pop("norm.bias")}), "unexpected: other"),
])
def test_an_incomplete_checkpoint_is_refused(whole, tiny, what, says):
    shutil.copytree(whole, tiny().run.folder)
    damage(tiny().run.folder / "checkpoints" / "step_00000020", what)
    with pytest.raises(UserError, match=says):
        run(tiny("train.total_steps=30"))


def test_a_broken_checkpoint_is_passed_over(whole, tiny, capsys):
    shutil.copytree(whole, tiny().run.folder)
    file = tiny().run.folder / "checkpoints" / "step_00000020" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    run(tiny())
    out = capsys.readouterr().out
    assert "passed over" in out and "step_00000015" in out
    assert exact(metrics(tiny().run.folder)) == exact(metrics(whole))


@pytest.mark.parametrize(("override", "says"), [("model.num_heads=4", "model.num_heads: 2 in the checkpoint, 4 here"),
                                               ("model.num_layers=1", "unexpected: blocks.1.norm1.bias")])
def test_initial_weights_of_another_model_are_refused(whole, tiny, override, says):
    with pytest.raises(UserError, match=says):
        run(tiny("run.name=next", f"ckpt.init_from={whole / 'checkpoints'}", override))
    assert not tiny("run.name=next").run.folder.exists()


def test_weights_that_fit_in_part_are_taken_only_where_that_is_asked_for(whole, tiny, capsys):
    """A third layer, which the checkpoint lacks, keeps its initial values."""
    options = ("run.name=next", f"ckpt.init_from={whole / 'checkpoints'}", "model.num_layers=3", "train.total_steps=1",
               "train.warmup_steps=0", "train.lr=1e-30", "train.min_lr=0", "train.weight_decay=0", "eval.stage.enabled=false",
               "eval.deep.enabled=false")
    with pytest.raises(UserError, match="ckpt.init_partial=true"):
        run(tiny(*options))
    run(tiny(*options, "ckpt.init_partial=true"))
    config = tiny(*options)
    out = capsys.readouterr().out
    for words in ("36 of 52 tensors loaded", "keep their initial values: blocks.2.", "does not fit: model.num_layers: 2"):
        assert words in out
    new, old = (store.find(folder / "checkpoints")[0].tensors["model"] for folder in (config.run.folder, whole))
    for name in new:
        assert np.array_equal(new[name], old[name]) if name in old else name.startswith("blocks.2."), name
    assert new["blocks.2.norm1.weight"].std() == 0 and new["blocks.2.mlp.up.weight"].std() > 0


def test_initial_weights_from_a_checkpoint(whole, tiny):
    run(tiny("run.name=next", f"ckpt.init_from={whole / 'checkpoints'}", "train.total_steps=5", "train.warmup_steps=0"))
    first, last = metrics(tiny("run.name=next").run.folder)[0], metrics(whole)[-1]
    assert first["step"] == 1 and first["loss"] < metrics(whole)[0]["loss"] - 0.5 and abs(first["loss"] - last["loss"]) < 1.0


def test_a_run_that_diverges_ends_with_a_report_of_nulls(tiny):
    run(tiny("train.lr=1e30", "train.clip_norm=null", "train.total_steps=5", "precision.loss_scale.dynamic=false",
             "health.locate_nan=false"))
    report = json.loads((tiny().run.folder / "report.json").read_text())
    assert report["val_loss"] is None and report["validation"]["en"]["loss"] is None and report["steps"] == 5


def test_two_starts_of_one_run_do_not_mix(tiny):
    folder = tiny().run.folder
    folder.mkdir(parents=True)
    held = lock(folder)
    with pytest.raises(UserError, match="another process is training"):
        run(tiny())
    assert not (folder / "metrics.jsonl").exists()
    held.close()


@pytest.mark.parametrize("place", ["", "checkpoints"])
def test_a_file_in_place_of_a_folder_is_refused(tiny, place):
    path = tiny().run.folder / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    with pytest.raises(UserError, match="is a file, not a folder"):
        run(tiny())


def test_data_that_a_run_goes_on_with_is_not_replaced(whole, tiny_yaml, capsys):
    prepared = tiny_yaml.parent / "prepared" / "manifest.json"
    before = prepared.read_bytes()
    assert main(["--config", str(tiny_yaml), "--set", f"run.dir={whole.parent}", "data.seq_length=8"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "prepared with data.seq_length 16 (now 8); preparing again would replace what" in said
    assert prepared.read_bytes() == before


def test_a_launch_into_a_run_that_is_at_work_touches_nothing(tiny_yaml, tmp_path, capsys):
    (tmp_path / "tiny").mkdir()
    with lock(tmp_path / "tiny"):
        assert launch.main(["--config", str(tiny_yaml), "--set", f"run.dir={tmp_path}"]) == 2
    assert "another process is training in" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "tiny").iterdir()] == [".lock"]
