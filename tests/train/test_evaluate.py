"""python -m eval: the same figures as in training, and what it refuses. The tiers in a run."""
import json
import shutil
import subprocess
import sys

import pytest

from train.callbacks.evaluate import REQUEST
from train.evaluate import main
from train.run import run

WHOLE = ["eval.stage.time_budget=null", "eval.stage.max_questions=6", "eval.stage.tasks=[cloze,continuation,mmlu,bbh,bbh_exact]",
         "eval.deep.at=[1.0]", "eval.deep.instructions=true", "eval.deep.safety=true"]


@pytest.fixture(scope="module")
def whole(tiny_yaml, tmp_path_factory):
    """The folder of a run of 20 steps without a time budget."""
    from train.config import load_config
    config = load_config(tiny_yaml, [f"run.dir={tmp_path_factory.mktemp('runs')}", *WHOLE])
    run(config)
    return config.run.folder


def report_of(folder, step):
    return json.loads((folder / "eval" / f"step_{step:08d}.json").read_text(encoding="utf-8"))


def without_time(report):
    return {name: {k: v for k, v in tier.items() if k not in ("seconds", "time_fraction")} if isinstance(tier, dict) else tier
            for name, tier in report.items()}


def test_the_same_numbers_to_the_last_digit(whole, tmp_path, capsys):
    for step, tiers in ((20, "stage,deep"), (15, "stage")):
        file = tmp_path / f"{step}.json"
        folder = whole / "checkpoints" / f"step_{step:08d}"
        assert main(["--checkpoint", str(folder), "--tiers", tiers, "--report", str(file)]) == 0
        assert without_time(json.loads(file.read_text(encoding="utf-8"))) == without_time(report_of(whole, step))
    assert "step 15" in capsys.readouterr().out


def leaves(tree, path=""):
    """(path, value) of every number and text."""
    if isinstance(tree, dict | list):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from leaves(value, f"{path}/{key}")
    else:
        yield path, tree


def test_two_workers_give_the_numbers_of_one(whole, tmp_path):
    """An odd number of rows: the rest of the batches is filled up and counts nowhere."""
    file = tmp_path / "two.json"
    checkpoint = str(whole / "checkpoints" / "step_00000020")
    code = "import sys; from train.evaluate import main; sys.exit(main())"  # a process of its own, which waits for its workers
    command = [sys.executable, "-c", code, "--checkpoint", checkpoint, "--workers", "2", "--report", str(file)]
    assert subprocess.run(command, timeout=300).returncode == 0
    one, two = (dict(leaves(without_time(r))) for r in (report_of(whole, 20), json.loads(file.read_text(encoding="utf-8"))))
    assert one.keys() == two.keys()
    for key, value in one.items():
        assert two[key] == (pytest.approx(value, rel=1e-6, abs=1e-9) if isinstance(value, float) else value), key


def test_the_tasks_are_asked_of_a_run(whole):
    tasks = report_of(whole, 20)["stage"]["tasks"]
    assert {"cloze_en", "continuation_en", "mmlu", "bbh", "bbh_exact"} <= set(tasks)
    assert all(len(t["items"]) == t["questions"] <= 6 for t in tasks.values())


def test_a_budget_leaves_out_what_it_does_not_pay_for_and_says_so(tiny, capsys):
    config = tiny("eval.stage.time_budget=1e-9", "eval.deep.enabled=false")
    run(config)
    assert "stage  not computed, the time budget" in capsys.readouterr().out
    assert "stage" not in report_of(config.run.folder, 10) and "stage" in report_of(config.run.folder, 10)["not_computed"]
    last = report_of(config.run.folder, 20)["stage"]
    assert last["shares"] == {"text": 0.5, "tasks": 0.0} and "time budget" in last["not_computed"]["cloze_en"]
    file = config.run.folder / "again.json"
    assert main(["--checkpoint", str(config.run.folder), "--tiers", "stage", "--report", str(file)]) == 0
    assert without_time(json.loads(file.read_text(encoding="utf-8"))) == without_time({"step": 20, "stage": last})
    assert main(["--checkpoint", str(config.run.folder), "--tiers", "stage", "--full", "--report", str(file)]) == 0
    assert json.loads(file.read_text(encoding="utf-8"))["stage"]["shares"] == {"text": 1.0, "tasks": 1.0}


def test_a_deep_evaluation_on_request(tiny):
    config = tiny("eval.stage.enabled=false", "eval.deep.at=[1.0]")
    config.run.folder.mkdir(parents=True)
    (config.run.folder / REQUEST).touch()
    run(config)
    assert not (config.run.folder / REQUEST).exists()
    assert sorted(p.name for p in (config.run.folder / "eval").iterdir()) == ["step_00000005.json", "step_00000020.json"]
    assert report_of(config.run.folder, 5)["deep"]["samples"]["texts"]


@pytest.mark.parametrize(("arguments", "says"), [
    (["--checkpoint", "/nowhere"], "no such checkpoint folder"),
    (["--checkpoint", "{run}", "--tiers", "stage,health"], "there is no tier health"),
    (["--checkpoint", "{run}", "--workers", "0"], "give 1 or more"),
    (["--checkpoint", "{run}", "--report", "/nowhere/r.json"], "give a file in a folder that exists"),
    (["--checkpoint", "{run}", "--set", "model.num_layers=3"], "missing: blocks.2"),
    (["--checkpoint", "{run}", "--set", "eval.stage.nmu_batches=3"], "num_batches"),
    (["--checkpoint", "{run}", "--set", "data.prepared_dir=/nowhere"], "/nowhere"),
    (["--checkpoint", "{run}", "--set", "model.vocab_size=50"], "the tokenizer of the prepared data has 700 pieces"),
])
def test_refusals(whole, capsys, arguments, says):
    assert main([a.format(run=whole) for a in arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and says in error


def test_a_checkpoint_of_another_tokenizer(whole, tiny_yaml, tmp_path, capsys):
    from ckpt import store, writing
    changed = tmp_path / "step_00000020"
    shutil.copytree(whole / "checkpoints" / "step_00000020", changed)
    checkpoint = store.load(changed)
    checkpoint.state["identity"]["tokenizer"] = "0" * 64
    shutil.rmtree(changed)
    writing.write(changed, checkpoint)
    assert main(["--checkpoint", str(changed)]) == 2
    assert "tokenizer: " + "0" * 64 in capsys.readouterr().err
