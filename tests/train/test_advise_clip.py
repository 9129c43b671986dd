"""Advice for train.clip_norm from recorded norms."""
import json
import shutil
from pathlib import Path

from train.__main__ import main

GOLDEN = Path(__file__).parents[1] / "golden" / "healthy_run.jsonl"


def test_percentiles_of_a_run(tiny_yaml, tmp_path, capsys):
    command = ["--config", str(tiny_yaml), "--advise-clip", "--set", f"run.dir={tmp_path}", "train.warmup_steps=10",
               "train.total_steps=200"]
    assert main(command) == 2 and "metrics.jsonl cannot be read" in capsys.readouterr().err
    (tmp_path / "tiny").mkdir()
    path = tmp_path / "tiny" / "metrics.jsonl"
    path.write_text("".join(json.dumps({"step": i, "grad_norm": float(i) if i != 7 else None, "overflow": i == 100}) + "\n"
                            for i in range(1, 112)))
    assert main([*command, "train.warmup_steps=70"]) == 2 and "has 40 gradient norms after the warm-up" in capsys.readouterr().err
    assert main([*command, "train.clip_norm=91"]) == 0
    out = capsys.readouterr().out
    # 11 to 111 without 100
    assert "steps 11 to 111 of" in out and "(100 steps, 1 skipped)" in out and "p50  60.5" in out and "max  111" in out
    assert "train.clip_norm=91 clips 19.0% of the steps" in out
    assert main([*command, "train.clip_by=norm"]) == 0
    assert capsys.readouterr().out.endswith("train.clip_by=norm limits others, of which a run keeps no figures\n")
    shutil.copy(GOLDEN, path)
    assert main([*command, "train.clip_norm=null"]) == 0
    assert "nothing is clipped" in capsys.readouterr().out
