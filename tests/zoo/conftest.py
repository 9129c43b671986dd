"""The runs of the zoo: a model as small, and a text as short, as a fault still shows on; prepared once."""
from pathlib import Path

import pytest
import yaml

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
