"""The run that all faults are planted in is silent without one."""
import pytest

from tests.conftest import metrics
from train.__main__ import main


def silent(zoo_yaml, tmp_path, steps: int) -> None:
    assert main(["--config", str(zoo_yaml), "--set", f"run.dir={tmp_path}", f"train.stop_at_step={steps}"]) == 0
    assert (tmp_path / "sick" / "events.jsonl").read_text(encoding="utf-8") == ""
    rows = metrics(tmp_path / "sick")
    assert len(rows) == steps and rows[-1]["loss"] < 0.85 * rows[9]["loss"] and "health" in rows[-1]


def test_150_steps(zoo_yaml, tmp_path):
    silent(zoo_yaml, tmp_path, 150)


@pytest.mark.long
def test_500_steps(zoo_yaml, tmp_path):
    silent(zoo_yaml, tmp_path, 500)
