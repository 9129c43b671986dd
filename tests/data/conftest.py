"""A small corpus cut from the shipped one, prepared once for the whole session."""
from pathlib import Path

import pytest

from data.config import DataConfig
from data.prepare import prepare

CORPUS = Path(__file__).parents[2] / "data" / "corpus"


def cut(name: str, size: int) -> str:
    """The first lines of a shipped text, about `size` bytes."""
    return (CORPUS / name).read_bytes()[:size].rpartition(b"\n")[0].decode() + "\n"


@pytest.fixture(scope="session")
def text_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    for name, size in (("train_en.txt", 150_000), ("train_zh.txt", 60_000), ("valid_en.txt", 20_000), ("valid_zh.txt", 10_000)):
        (folder / name).write_text(cut(name, size))
    return folder


def small_config(text_folder: Path, prepared_dir: Path, **changes) -> DataConfig:
    values = {
        "path": {"en": text_folder / "train_en.txt", "zh": text_folder / "train_zh.txt"},
        "valid_path": {"en": text_folder / "valid_en.txt", "zh": text_folder / "valid_zh.txt"},
        "seq_length": 32, "num_shards": 3, "num_workers": 1, "prepared_dir": prepared_dir,
        "tokenizer": {"vocab_size": 2500, "character_coverage": 0.98},
    }
    return DataConfig(**{**values, **changes})


@pytest.fixture(scope="session")
def config(text_folder, tmp_path_factory) -> DataConfig:
    return small_config(text_folder, tmp_path_factory.mktemp("work") / "prepared")


@pytest.fixture(scope="session")
def manifest(config):
    return prepare(config)
