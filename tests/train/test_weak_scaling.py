"""python -m train.weak_scaling: every preset, on every number of cards."""
import json
from pathlib import Path

import pytest

from parallel.cost.estimate import estimate
from parallel.cost.memory import budget, peak
from train import weak_scaling
from train.config import load_config
from train.plans import plan_of, planned

CONFIGS = Path(__file__).parents[2] / "run_scripts" / "configs"
SAMPLES = {"smoke": 8, "gpt2_124m": 8, "gpt_1b3": 2, "gpt_13b": 1, "gpt3_175b": 1}  # of a card, in the preset
WIDTH = {"gpt_13b": 32, "gpt3_175b": 128}  # tp * pp
HALF = "precision.level=O2"


def main(preset: str, *arguments) -> int:
    return weak_scaling.main(["--config", str(CONFIGS / f"{preset}.yaml"), *map(str, arguments)])


@pytest.mark.parametrize("preset", SAMPLES)
def test_presets_are_predicted_at_all_sizes(preset, tmp_path, capsys):
    more = ["--world-size", 1] if preset == "smoke" else []
    assert main(preset, "--set", HALF, "--report", tmp_path / "r.json", *more) == 0
    out, report = capsys.readouterr().out, json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    possible = [n for n in (8, 64, 256, 1024) if n % WIDTH.get(preset, 1) == 0]
    assert [s["cards"] for s in report["cards"]] == possible
    assert sorted([*possible, *map(int, report["refused"])]) == [8, 64, 256, 1024]
    for s in report["cards"]:
        # The same by way of the config of such a run, as preflight reckons it.
        asked = [HALF, f"parallel.dp={s['dp']}", f"train.global_batch_size={s['cards'] * SAMPLES[preset]}"]
        config, mesh, count = planned(load_config(CONFIGS / f"{preset}.yaml", asked), None)
        sizes, plan = plan_of(config, mesh, count)
        e = estimate(sizes, plan, config.parallel.topology)
        assert (s["estimate"]["step_seconds"], s["estimate"]["mfu"]) == (e.step_seconds, e.mfu) and s["plan"] == str(plan)
        assert s["memory_bytes"] == peak(sizes, plan) and s["fits"] == (peak(sizes, plan) <= budget(config.parallel.topology))
        first = report["cards"][0]["estimate"]["tokens_per_second"] / possible[0]
        assert s["efficiency"] == pytest.approx(e.tokens_per_second / s["cards"] / first)
        assert f"{e.tokens_per_second:,.0f} {e.mfu:5.1%} {s['efficiency']:6.1%}" in out
    assert "assumed: matrix products reach 50% of the 16-bit peak" in out


def test_faster_links_scale_better(tmp_path):
    found = []
    for network in (5, 20, 80):
        links = [f"parallel.topology.network_bandwidth_gbs={network}", "parallel.topology.network_latency_us=0"]
        assert main("gpt2_124m", "--report", tmp_path / "r.json", "--set", HALF, *links) == 0
        found.append(json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))["cards"][-1]["efficiency"])
    assert found == sorted(found) and found[0] < found[-1] <= 1


def test_the_best_plan_fits_and_is_no_slower(tmp_path, capsys):
    assert main("gpt_13b", "--cards", "8,64", "--set", HALF, "--report", tmp_path / "config.json") == 0
    assert main("gpt_13b", "--cards", "8,64", "--best", "--set", HALF, "--report", tmp_path / "best.json") == 0
    own, best = (json.loads((tmp_path / f"{n}.json").read_text(encoding="utf-8"))["cards"] for n in ("config", "best"))
    assert [s["cards"] for s in best] == [8, 64] and all(s["fits"] for s in best)
    assert all(s["global_batch_size"] == s["cards"] for s in best)
    assert best[1]["estimate"]["tokens_per_second"] >= own[0]["estimate"]["tokens_per_second"]
    assert "8 tp=8 x pp=4 needs a multiple of 32 cards" in capsys.readouterr().out


def test_parcels_of_the_config_stay(tmp_path):
    for options in ([], ["--best"]):
        assert main("gpt2_124m", *options, "--set", "parallel.fusion_mb=3", "--report", tmp_path / "r.json") == 0
        report = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
        assert [s["estimate"]["fusion_mb"] for s in report["cards"]] == [3] * 4


def test_work_that_is_no_whole_batch_is_told(tmp_path, capsys):
    few = ["parallel.tp=2", "parallel.dp=4", "train.global_batch_size=12", "train.micro_batch_size=1"]  # 3 samples for 2 cards
    assert main("gpt2_124m", "--best", "--cards", "7,8", "--set", *few) == 0
    assert "7 3/2 samples a card make no whole batch" in capsys.readouterr().out


@pytest.mark.parametrize(("preset", "options", "says"), [
    ("gpt_13b", ["--cards", "8,16"], "--cards 8: tp=8 x pp=4 needs a multiple of 32 cards; 16: tp=8"),
    ("gpt3_175b", ["--cards", "8", "--best"], "--cards 8: no plan fits: 8 devices have 57.6 GB each"),
    ("gpt_1b3", ["--cards", "some"], "--cards some: numbers of cards, such as 8,64,256,1024"),
    ("gpt_1b3", ["--cards", "0"], "--cards 0: numbers of cards"),
    ("smoke", [], "parallel.dp=auto: say how many ranks the job has, --world-size N"),
])
def test_what_cannot_be_is_refused_in_one_line(preset, options, says, tmp_path, capsys):
    assert main(preset, *options, "--report", tmp_path / "r.json") == 2
    out, error = capsys.readouterr()
    assert error.startswith("error: ") and says in error and error.count("\n") == 1 and not out
    assert list(tmp_path.iterdir()) == []
