"""The verdict on profiles of each kind, of files that the installed profiler's own viewers wrote; and on broken ones."""
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from parallel.cost.flops import model_flops
from parallel.cost.sizes import Sizes
from tests.train.profiles import FIRST, STEPS, WARMUP, make_ascend, make_run
from train.profile_report import main

ROOT = Path(__file__).parents[2]


def near(value):
    return pytest.approx(value, rel=1e-4, abs=1e-4)  # the viewers' steps do not overlap, so they end a nanosecond early


def judged(run, *arguments) -> dict:
    assert main([str(run), *arguments]) == 0
    return json.loads((run / "profile" / f"step_{FIRST:08d}" / "verdict.json").read_text())


def areas(found) -> list[str]:
    return [item["area"] for item in found["advice"]]


def test_healthy(tmp_path, capsys):
    run = make_run(tmp_path, memory=[1e9] * 100)
    make_ascend(run, 0, 1, computing=88, hidden=10, exposed=8, free=4, data=1)
    found = judged(run)
    assert found["shares"] == near({"computation": 0.88, "communication": 0.08, "data": 0.01, "host": 0.03})
    assert found["ratio"] == "8.8 : 0.8 : 0.1 : 0.3" and found["bottleneck"]["name"] == "computation"
    assert found["utilisation"]["stop"] and "Stop" in found["utilisation"]["text"]
    assert found["memory"]["leak"] is False and found["stragglers"] is None and not found["problems"]
    assert found["steps"] == list(range(FIRST + WARMUP, FIRST + WARMUP + STEPS)) and found["step_seconds"] == near(0.1)
    out = capsys.readouterr()
    assert "8.8 : 0.8 : 0.1 : 0.3" in out.out and not out.err


def test_mfu_and_rates(tmp_path):
    run = make_run(tmp_path, "parallel.topology.device_tflops=2")
    make_ascend(run, 0, 1, computing=88, exposed=8, free=4)
    found = judged(run)
    config = (run / "config.yaml").read_text()
    hidden, layers, seq, batch = (int(re.search(rf"\b{key}: (\d+)", config)[1]) for key in
                                  ("hidden_size", "num_layers", "seq_length", "global_batch_size"))
    flops = batch * seq * model_flops(Sizes(hidden, layers, 4, 4 * hidden, 2000, seq, seq))
    # 6 for each weight of a matrix product, twice: of the whole it is nearly all
    weights = 12 * layers * hidden**2 + hidden * 2000
    assert 1.0 < flops / (6 * weights * batch * seq) < 1.3
    assert found["model_flops_per_second"] == near(flops / 0.1)
    assert found["mfu"] == near(flops / 0.1 / 2e12)
    (run / "metrics.jsonl").write_text("".join(json.dumps({"step": s, "step_seconds": x}) + "\n" for s, x in
                                               ((1, None), (2, 0.07), (3, 0.08), (4, 0.3))))
    usual = judged(run)  # without the profiler, by the median
    assert usual["mfu"] == near(flops / 0.08 / 2e12) and usual["tokens_per_second"] == near(batch * seq / 0.08)
    assert usual["step_seconds"] == near(0.1)
    rate = {one["type"]: one["flops_per_second"] for one in found["operators"]}
    assert rate["MatMulV2"] == near(2 * 2 * 1024 * 512 * 2048 / (0.6 * 0.088))
    assert rate["BatchMatMulV2"] == near(2 * 8 * 128 * 64 * 128 / (0.1 * 0.088)) and rate["Add"] is None
    assert [one["type"] for one in found["operators"]][:2] == ["MatMulV2", "LayerNormGrad"]
    assert [one["calls"] for one in found["operators"]][:2] == [2 * STEPS, STEPS]
    assert sum(one["share"] for one in found["operators"]) == pytest.approx(1.0)


def test_data_bound(tmp_path):
    run = make_run(tmp_path)
    make_ascend(run, 0, 1, computing=60, exposed=5, free=35, data=30)
    found = judged(run)
    assert found["bottleneck"]["name"] == "data" and found["shares"]["data"] == near(0.30)
    first = found["advice"][0]
    assert first["area"] == "data" and first["gain"] == near(1 / 0.7)
    assert "data.prefetch (now auto and 8)" in first["try"][0] and not found["utilisation"]["stop"]
    assert areas(found) == ["data", "host", "operators", "parallel"]  # in the order in which to act


def test_communication_bound(tmp_path):
    run = make_run(tmp_path, "parallel.tp=2")
    make_ascend(run, 0, 4, computing=55, hidden=10, exposed=41, free=4, wait=0.25)
    found = judged(run)
    assert found["bottleneck"]["name"] == "communication" and found["shares"]["communication"] == near(0.41)
    one, = found["communication"]
    assert one["calls"] == STEPS and one["seconds"] == pytest.approx(STEPS * 0.051) and one["wait_share"] == near(0.25)
    assert one["gb_per_second"] == near(0.1 / (0.051 * 0.75)) and one["name"] == "allReduce over group 7"
    last = found["advice"][-1]
    assert last["area"] == "parallel" and last["gain"] == near(1 / 0.59)
    assert any("parallel.tp=1 (now 2)" in line for line in last["try"])


def test_the_bubble_of_a_pipeline(tmp_path):
    run = make_run(tmp_path, "parallel.pp=2", "train.micro_batch_size=4")
    make_ascend(run, 0, 2, computing=50, exposed=46, receive=30, free=4)
    found = judged(run)
    assert found["bubble"] == near(0.30)
    assert any("num_micro_batches" in line and "pp=2" in line for line in found["advice"][-1]["try"])


def test_a_window_without_steps_of_the_profilers_own(tmp_path):
    run = make_run(tmp_path)
    path = make_ascend(run, 0, 1, computing=60, exposed=5, free=35, data=30) / "step_trace_time.csv"
    header, *rows = (line.split(",") for line in path.read_text().splitlines())
    whole = [sum(float(row[i]) for row in rows) for i in range(1, len(header))]
    path.write_text("\n".join([",".join(header), ",".join(map(str, [0, *whole])), ""]))
    found = judged(run)
    assert found["step_seconds"] == near(0.1) and found["shares"]["data"] == near(0.3) and found["steps"] == [FIRST + WARMUP]


def test_steps_that_are_not_ours_are_not_taken(tmp_path, capsys):
    run = make_run(tmp_path)
    path = make_ascend(run, 0, 1, computing=60, exposed=5, free=35, data=30) / "step_trace_time.csv"
    text = path.read_text()
    path.write_text(text + "9,1,1,1,1,1,1,1,1,1\n")
    assert judged(run)["steps"] == list(range(FIRST + WARMUP, FIRST + WARMUP + STEPS)) and not capsys.readouterr().err
    path.write_text(text.split("\n")[0] + "\n8,1,1,1,1,1,1,1,1,1\n9,1,1,1,1,1,1,1,1,1\n")
    assert judged(run)["shares"] is None and "are not those of the step marks, 13 to 16" in capsys.readouterr().err


def test_a_straggler(tmp_path):
    run = make_run(tmp_path)
    for rank in range(4):
        slow = 25 if rank == 2 else 0
        make_ascend(run, rank, 4, computing=60 + slow, exposed=36 - slow, free=4, data=2, wait=0.8)
    found = judged(run)
    (slow,) = found["stragglers"]["slow"]
    assert slow == {"rank": 2, "times": near(89 / 64), "part": "computation"}
    told = [item for item in found["advice"] if "rank 2" in item["why"]]
    assert told and told[0]["gain"] == near(89 / 64)
    assert "the ranks are uneven, it is not the link" in found["advice"][-1]["why"]
    assert judged(run, "--rank", "1")["stragglers"] is None


def test_even_ranks_have_no_straggler(tmp_path):
    run = make_run(tmp_path)
    for rank in range(2):
        make_ascend(run, rank, 2, computing=60 + rank, exposed=36 - rank, free=4)
    assert judged(run)["stragglers"]["slow"] == []


def test_a_leak(tmp_path):
    noise = np.random.default_rng(1).normal(0, 2e6, 200)
    run = make_run(tmp_path, memory=(1e9 + 1e6 * np.arange(200) + noise).tolist())
    make_ascend(run, 0, 1, computing=60, exposed=5, free=35)
    found = judged(run)
    assert found["memory"]["leak"] and found["memory"]["slope_bytes_per_step"] == pytest.approx(1e6, rel=0.02)
    assert areas(found)[-1] == "memory" and "64 GB are full in some 62," in found["advice"][-1]["why"]


def test_fragmentation(tmp_path):
    run = make_run(tmp_path)
    make_ascend(run, 0, 1, computing=90, free=10, reserved=2.5)
    found = judged(run)
    window = found["memory"]["window"]
    assert areas(found)[-1] == "memory" and "60% of the reserved memory" in found["advice"][-1]["why"]
    assert window["fragmentation"] == near(0.6)
    assert window["peak_allocated_bytes"] == pytest.approx(2**30, rel=1e-3)  # though the table's MB are 1000 x 1024 bytes


def test_the_pages(tmp_path):
    run = make_run(tmp_path, memory=[1e9, 2e9, 2e9])
    make_ascend(run, 0, 1, computing=60, exposed=5, free=35, data=30)
    found, window = judged(run), run / "profile" / f"step_{FIRST:08d}"
    page = (window / "verdict.html").read_text()
    assert "http" not in page and "width:30.00%" in page and "(now auto and 8)" in page
    assert page.count("<table>") == page.count("</table>") == 3
    assert 'points="0.0,60.0 300.0,10.0 600.0,10.0"' in page
    assert [one["step"] for one in found["each_step"]] == found["steps"]
    markdown = (window / "verdict.md").read_text()
    assert "Bottleneck: **data**" in markdown and "| MatMulV2 | 8 |" in markdown and "(at most 1.43 times as fast)" in markdown
    events = EventAccumulator(str(run / "tensorboard" / "profile")).Reload()
    (scalar,) = events.Scalars("profile/share_data")
    assert scalar.value == near(0.3) and scalar.step == found["steps"][-1]
    assert b"Bottleneck" in events.Tensors("profile/verdict/text_summary")[0].tensor_proto.string_val[0]


FILES = ("step_trace_time.csv", "kernel_details.csv", "op_statistic.csv", "communication.json", "memory_record.csv")


def cut(text: str) -> str:
    return text[:int(len(text) * 0.6)].rstrip("\n")


DAMAGE = {"half-written": cut, "empty": lambda text: "", "other columns": lambda text: "a,b\n1,2\n",
          "no numbers": lambda text: text.replace(".", "x").replace("0", "x"), "a picture": lambda text: "\x89PNG\n\x00,\x00"}


@pytest.mark.parametrize("damage", [*DAMAGE, "missing"])
@pytest.mark.parametrize("name", FILES)
def test_a_broken_file_is_named_and_the_rest_is_used(tmp_path, capsys, name, damage):
    run = make_run(tmp_path)
    path = make_ascend(run, 0, 1, computing=60, hidden=10, exposed=5, free=35, data=30) / name
    text = path.read_text()
    path.unlink() if damage == "missing" else path.write_text(DAMAGE[damage](text))
    found = judged(run)
    err = capsys.readouterr().err.splitlines()
    assert len(err) == 1 and str(path) in err[0] and found["problems"] == [err[0].removeprefix("not used: ")]
    if name != "step_trace_time.csv":
        assert found["bottleneck"]["name"] == "data"
    else:
        assert found["shares"] is None and found["operators"]
    assert (found["memory"]["window"] is None) == (name == "memory_record.csv")
    assert bool(found["operators"]) and (found["communication"] == []) == (name == "communication.json")


def test_broken_marks(tmp_path, capsys):
    run = make_run(tmp_path)
    make_ascend(run, 0, 1, computing=60, exposed=5, free=35, data=30)
    path = run / "profile" / f"step_{FIRST:08d}" / "rank_0" / "marks.json"
    whole = json.loads(path.read_text())
    wrong = [{**whole, **change} for change in ({"world_size": None}, {"first": "x"}, {"steps": 3}, {"steps": [
        {**whole["steps"][0], "gap": None}]}, {"steps": [{**whole["steps"][0], "gap": {"data": "x"}}]})]
    for text in (path.read_text()[:300], "[]", "{}", "", *map(json.dumps, wrong)):
        path.write_text(text)
        found = judged(run)
        assert str(path) in capsys.readouterr().err and found["shares"]["host"] == near(0.35)


def test_a_cell_beyond_csvs_limit_and_a_number_beyond_floats(tmp_path, capsys):
    run = make_run(tmp_path, memory=[1e9] * 50)
    output = make_ascend(run, 0, 1, computing=60, hidden=10, exposed=5, free=35, data=30)
    table, traffic = output / "op_statistic.csv", output / "communication.json"
    table.write_text(table.read_text() + "x" * 200_000 + "\n")
    traffic.write_text(traffic.read_text().replace("100.0", "1" + "0" * 400))
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 51, "memory_bytes": NaN}\n{"step": 52, "memory_bytes": 1' + "0" * 400 + "}\n" + "[" * 100_000 + "\n")
    done = subprocess.run([sys.executable, "-m", "train.profile_report", str(run)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert str(table) in done.stderr and str(traffic) in done.stderr and "metrics.jsonl:53" in done.stderr


def test_a_half_written_line_of_metrics(tmp_path, capsys):
    run = make_run(tmp_path, memory=[1e9] * 50)
    make_ascend(run, 0, 1, computing=90, free=10)
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 51, "mem')
    assert judged(run)["memory"]["leak"] is False
    assert "metrics.jsonl:51" in capsys.readouterr().err


def refused(capsys, *arguments) -> str:
    assert main([str(a) for a in arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and err.count("\n") == 1
    return err


def test_refusals(tmp_path, capsys):
    assert "config.yaml" in refused(capsys, tmp_path)
    run = make_run(tmp_path)
    assert "profile.enabled=true" in refused(capsys, run) and "request_profile" in refused(capsys, run)
    out = make_ascend(run, 0, 1, computing=90, free=10)
    assert "of rank 0" in refused(capsys, run, "--rank", "3")
    assert "a rank's number" in refused(capsys, run, "--rank", "first")
    assert "step 11" in refused(capsys, run, "--step", "4")
    for name in FILES:
        (out / name).unlink(missing_ok=True)
    assert "nothing of this profile can be read" in refused(capsys, run)
    assert not list(run.glob("profile/*/verdict*"))
