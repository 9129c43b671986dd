"""The runs of the zoo: a model as small, and a text as short, as a fault still shows on; prepared once."""
import json
import re
from pathlib import Path

import pytest
import yaml

from train.__main__ import main
from train.config import load_config

CORPUS = Path(__file__).parents[2] / "data" / "corpus"

HEALTHY = {
    "model": {"hidden_size": 64, "num_layers": 2, "num_heads": 2, "seq_length": 32, "dropout": 0.05, "init_std": 0.05},
    "train": {"total_steps": 500, "global_batch_size": 16, "lr": 2.5e-3, "warmup_steps": 20, "log_every_steps": 10},
    # The speed of a machine that runs other tests as well says nothing.
    "health": {"every_steps": 5, "rules": {"throughput": {"level": "off"}}},
    "eval": {"stage": {"every_steps": 50, "num_batches": 1, "tasks": [], "time_budget": None}, "deep": {"enabled": False}},
    "ckpt": {"every_steps": 10},
}
# What a fault does not need costs seconds to compile.
QUICK = ("train.stop_at_step=50", "eval.stage.enabled=false", "health.probe_samples=0")


@pytest.fixture(scope="session")
def zoo_yaml(tmp_path_factory) -> Path:
    """The config of a healthy run, its data prepared."""
    from data.prepare import prepare

    folder = tmp_path_factory.mktemp("zoo")
    for name, size in (("train", 80_000), ("valid", 4_000)):
        text = (CORPUS / f"{name}_en.txt").read_bytes()[:size].decode(errors="ignore")
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    data = {"path": "train.txt", "valid_path": "valid.txt", "prepared_dir": "prepared", "seq_length": 32, "num_shards": 2,
            "tokenizer": {"vocab_size": 340}}
    path = folder / "zoo.yaml"
    path.write_text(yaml.safe_dump({"run": {"name": "sick", "dir": "runs"}, "data": data, **HEALTHY}), encoding="utf-8")
    prepare(load_config(path).data)
    return path


@pytest.fixture
def sick(zoo_yaml, tmp_path, capsys):
    """sick(fault, rule, *overrides) -> the events of a run with a fault that was planted already.

    Its first event of that rule must come at the step that the table in eval/README.md gives, within 50 steps, and no other
    rule may stop the run.
    """
    def run(fault: str, rule: str, *overrides: str) -> list[dict]:
        code = main(["--config", str(zoo_yaml), "--set", f"run.dir={tmp_path}", *QUICK, *overrides])
        return found(fault, rule, tmp_path / "sick", code)
    return run


def found(fault: str, rule: str, folder: Path, code: int) -> list[dict]:
    """The events in a run's folder, which must be as `sick` says."""
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    first = next((event for event in events if event["rule"] == rule), None)
    assert first and first["step"] <= 50, events
    assert not [event for event in events if event["level"] == "stop" and event["rule"] != rule], events
    assert code == (3 if first["level"] == "stop" else 0)
    expected = table()[fault]
    assert expected[0] == rule and (expected[1] == "50 at most" or int(expected[1]) == first["step"]), (expected, first)
    return events


def table() -> dict[str, tuple[str, str]]:
    """Fault -> (rule, step), as eval/README.md says."""
    text = (Path(__file__).parents[2] / "eval" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?) \| `(\w+)` \| (\d+(?: at most)?) \|$", text, re.M)
    return {fault: (rule, step) for fault, rule, step in rows}
