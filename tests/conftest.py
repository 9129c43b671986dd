"""A tiny model on a small text, prepared once: what the tests of the loop, the evaluation and the scripts train."""
import json
import os
from pathlib import Path

import pytest
import yaml

from train.config import load_config

os.environ["LC_ALL"] = "C.UTF-8"  # tests read the console's English
CORPUS = Path(__file__).parents[1] / "data" / "corpus"

TINY = {
    "model": {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "seq_length": 16, "dropout": 0.1},
    "train": {"total_steps": 20, "global_batch_size": 4, "micro_batch_size": 2, "lr": 1e-2, "warmup_steps": 3,
              "log_every_steps": 5},
    "precision": {"loss_scale": {"dynamic": True, "initial": 1024.0, "growth_interval": 6}},
    "health": {"every_steps": 5, "probe_samples": 0},
    "eval": {"stage": {"every": 0.25, "num_batches": 2, "tasks": ["cloze"], "max_questions": 4, "time_budget": None},
             "deep": {"at": [0.5], "samples": 1, "max_new_tokens": 4, "instructions": False, "safety": False}},
    "ckpt": {"every_steps": 5},
}


def pytest_collection_modifyitems(items):
    """Rooms whose files take minutes first: of two workers neither ends up with one of them while the other has nothing left."""
    first = ("end_to_end", "train", "faults", "zoo")
    items.sort(key=lambda item: next((i for i, room in enumerate(first) if room in item.path.parts), len(first)))


@pytest.fixture(scope="session")
def tiny_yaml(tmp_path_factory) -> Path:
    """A config file; its text makes some 60 samples, so that 20 steps of 4 cross the end of an epoch."""
    from data.prepare import prepare

    folder = tmp_path_factory.mktemp("tiny")
    for name, size in (("train_en", 3_000), ("train_zh", 1_500), ("valid_en", 1_500), ("valid_zh", 600)):
        text = (CORPUS / f"{name}.txt").read_bytes()[:size].decode(errors="ignore")
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    data = {"path": {"en": "train_en.txt", "zh": "train_zh.txt"}, "valid_path": {"en": "valid_en.txt", "zh": "valid_zh.txt"},
            "prepared_dir": "prepared", "seq_length": 16, "num_shards": 2, "tokenizer": {"vocab_size": 700}}
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump({"run": {"name": "tiny", "dir": "runs"}, "data": data, **TINY}), encoding="utf-8")
    prepare(load_config(path).data)
    return path


@pytest.fixture
def tiny(tiny_yaml, tmp_path):
    """tiny(*overrides) -> the config of a run in a folder of this test."""
    return lambda *overrides: load_config(tiny_yaml, [f"run.dir={tmp_path}", *overrides])


def metrics(folder: Path) -> list[dict]:
    """The lines of a run's metrics.jsonl."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


EXACT = ("step", "loss", "grad_norm", "lr", "loss_scale", "overflow", "consumed_samples", "tokens")


def exact(rows: list[dict]) -> list[tuple]:
    """What must be equal to the bit between two runs that do the same."""
    return [tuple(row[key] for key in EXACT) for row in rows]
