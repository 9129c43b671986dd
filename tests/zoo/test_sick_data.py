"""Faults in the data, in evaluation and in one rank: the right rule says so within 50 steps."""
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
from mindspore import nn

from data.manifest import read_manifest
from data.order import SampleOrder
from eval.step import EvalStep
from tests.zoo.conftest import QUICK, found, table
from train.config import load_config

HEADER = 256 << 10  # bytes, as data/records.py sets it for small files
ROOT = Path(__file__).parents[2]


def test_text_in_random_order(sick, zoo_yaml, tmp_path):
    """Tokens as frequent as ever, and nothing to learn of the ones before."""
    text = [*(zoo_yaml.parent / "train.txt").read_text(encoding="utf-8")]
    random.Random(0).shuffle(text)
    (tmp_path / "train.txt").write_text("".join(text), encoding="utf-8")
    sick("text in random order", "learning_nothing", f"data.path={tmp_path / 'train.txt'}",
         f"data.prepared_dir={tmp_path / 'prepared'}")


def test_one_corrupted_shard(sick, zoo_yaml, tmp_path):
    """16 KiB of a file are noise, among the samples, which begin behind its header; its size and its index are as ever."""
    prepared = shutil.copytree(load_config(zoo_yaml).data.prepared_dir, tmp_path / "prepared")
    entry = read_manifest(prepared).sets["train"].files
    path = prepared / next(file.name for file in reversed(entry) if file.name.endswith(".mindrecord"))
    content = bytearray(path.read_bytes())
    middle = HEADER + (32 << 10)
    content[middle:middle + (16 << 10)] = random.Random(0).randbytes(16 << 10)
    path.write_bytes(content)
    sick("one corrupted shard", "corrupt_data", f"data.prepared_dir={prepared}")


def test_duplicated_data(sick, monkeypatch):
    """The order begins anew every four batches."""
    at = SampleOrder.at
    monkeypatch.setattr(SampleOrder, "at", lambda self, positions: at(self, np.asarray(positions) % 64))
    sick("data read again and again", "data_repeated", "train.stop_at_step=10")


def test_dropout_left_on_in_evaluation(sick, monkeypatch):
    monkeypatch.setattr(EvalStep, "set_train", lambda self, mode=True: nn.Cell.set_train(self, True))
    sick("dropout left on in evaluation", "eval_dropout", "eval.stage.enabled=true", "eval.stage.every_steps=10",
         "train.stop_at_step=10")


LAUNCH = """
import sys
from pathlib import Path
from train.launch import free_port
from train.workers import Topology, run_workers
sys.exit(run_workers(["-m", "tests.zoo.slow_rank", *sys.argv[2:]], Topology(2, free_port()), Path(sys.argv[1])))
"""


def test_a_slow_rank(zoo_yaml, tmp_path):
    options = ["--config", str(zoo_yaml), "--set", f"run.dir={tmp_path}", *QUICK, "train.stop_at_step=30",
               "data.prefetch=1"]
    done = subprocess.run([sys.executable, "-c", LAUNCH, str(tmp_path / "logs"), *options], cwd=ROOT, capture_output=True,
                          text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    events = found("a slow rank", "slow_rank", tmp_path / "sick", done.returncode)
    assert all("waited for rank 1" in event["message"] for event in events if event["rule"] == "slow_rank")


def test_the_table_names_every_fault_of_this_zoo():
    here = Path(__file__).parent
    planted = "".join((here / name).read_text(encoding="utf-8") for name in ("test_sick_network.py", "test_sick_data.py"))
    assert len(table()) == 13 and all(f'"{fault}", "{rule}"' in planted for fault, (rule, _) in table().items())
