"""Preflight: a good plan passes, an impossible one is refused, and faults that raise no error are found with the cell's name."""
import json
from collections import Counter

import pytest

from parallel import config_file
from parallel.cost.communication import communication
from parallel.cost.parameters import parameter_count
from parallel.dry_run.pool import compile_ranks
from parallel.mesh import Mesh
from tests.train.planted import FAULTS
from train import dry_compile, preflight
from train.config import load_config
from train.plans import plan_of, planned


def main(path, *arguments: str) -> int:
    return preflight.main(["--config", str(path), *map(str, arguments)])


def test_a_good_plan_passes(cache, plan_yaml, tmp_path, capsys):
    assert main(plan_yaml, "--report", tmp_path / "report.json") == 0
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert report["ok"] and report["findings"] == [] and report["mesh"] == {"dp": 2, "tp": 2, "pp": 2}
    assert list(report["ranks"]) == ["0", "4"]  # one of each stage
    config, _, count = planned(load_config(plan_yaml), None)
    for rank, found in report["ranks"].items():
        sizes, plan = plan_of(config, Mesh(2, 2, 2, int(rank)), count)
        expected = Counter()
        for t in communication(sizes, plan, found["stage"]):
            expected[t.kind, t.group, t.bytes] += t.count
        assert {(t["kind"], t["group"], t["bytes"]): t["count"] for t in found["communication"]} == expected
        assert all(sum(t["cells"].values()) == t["count"] for t in found["communication"])
        held, closed = found["compiled_memory"], found["memory"]
        assert held["weights"] == closed["weights"] and held["moments"] == 2 * held["weights"]
    assert report["parameters"] == parameter_count(sizes)
    out = capsys.readouterr().out
    assert "gradients and gathered weights, one parcel for all of a kind: " in out
    assert "cut as planned" in out and "VIOLATION" not in out and "compiled rank 4 (stage 1)" in out

    # A second time nothing is compiled, and all is found as before.
    assert main(plan_yaml, "--report", tmp_path / "again.json", "--ranks", "0,4") == 0
    again = json.loads((tmp_path / "again.json").read_text(encoding="utf-8"))
    assert again["ranks"] == report["ranks"] and "compiled rank" not in capsys.readouterr().out


@pytest.fixture(scope="session")
def faulty(cache, plan_yaml, tmp_path_factory):
    """(overrides, folder): a plan without a pipeline, each of its ranks compiled with another fault."""
    overrides = ["parallel.pp=1", "parallel.stage_layers=[2]", "train.micro_batch_size=8"]
    folder = tmp_path_factory.mktemp("faulty")
    config = load_config(plan_yaml, overrides)
    (folder / "config.yaml").write_text(config_file.dump(config), encoding="utf-8")
    (folder / "scratch").mkdir()
    jobs = [{"rank": rank, "world_size": 4, "config": str(folder / "config.yaml"), "kinds": ["train"], "out": str(folder),
             "scratch": str(folder / "scratch"), "fault": fault} for rank, fault in enumerate(FAULTS)]
    outcomes = compile_ranks("tests.train.planted:main", jobs, folder / "logs")
    assert all(o.ok for o in outcomes), outcomes
    return overrides, folder


def test_planted_faults_are_found_with_their_cells(faulty, plan_yaml, tmp_path, monkeypatch, capsys):
    overrides, folder = faulty
    monkeypatch.setattr(dry_compile, "compile_plan", lambda *_: folder)
    assert main(plan_yaml, "--ranks", "all", "--report", tmp_path / "report.json", "--set", *overrides) == 1
    report, out = json.loads((tmp_path / "report.json").read_text(encoding="utf-8")), capsys.readouterr().out
    assert not report["ok"] and out.count("VIOLATION") == len(report["findings"])
    found = {fault: [f for f in report["findings"] if f["rank"] == rank] for rank, fault in enumerate(FAULTS)}

    def named(fault: str, operator: str) -> set[str]:
        """Cells that are named for an operator, without how often."""
        return {cell.split(" ")[0] for f in found[fault] if f["operator"].startswith(operator) for cell in f["cell"].split(", ")}

    # One weight is not cut, so that its input has to be gathered.
    assert "blocks.0.attention.output.weight" in named("integer_tuples", "Parameter")
    assert "blocks.0.attention.output.affine" in named("integer_tuples", "AllGather over tp")

    lost, = [f for f in found["lost_data_parallelism"] if f["rule"] == "strategy"]
    assert (lost["cell"], lost["operator"], lost["found"]) == ("blocks.1.mlp.up.affine", "MatMul", "[[1, 1], [2, 1]]")
    assert "over dp=2" in lost["expected"] and named("lost_data_parallelism", "AlltoAll over dp") == {"blocks.1.mlp.up.affine"}

    transposed, = found["shared_transpose"]
    assert transposed["rule"] == "redistribution" and transposed["operator"].startswith("AlltoAll over tp")
    assert named("shared_transpose", "AlltoAll") == {"blocks.0.attention", "blocks.0.attention.core.scores",
                                                      "blocks.0.attention.core.weigh"}

    gathered, = [f for f in found["data_parallel"] if f["operator"].startswith("AllGather")]
    assert gathered["rule"] == "redistribution" and gathered["operator"].startswith("AllGather over tp")
    assert named("data_parallel", "AllGather") == {"labels"}  # the first to read the tokens


@pytest.mark.parametrize(("level", "mesh"), [
    ("O2", ["parallel.tp=1", "train.micro_batch_size=4"]),  # 61 rows of the token table, which dp does not divide
    ("O2", ["parallel.tp=2", "parallel.pp=1", "train.micro_batch_size=8"]),
    ("O1", ["parallel.tp=2", "parallel.sequence_parallel=true", "train.micro_batch_size=4", "model.vocab_multiple=4"]),
])
def test_what_computes_in_half_travels_in_half(cache, level, mesh, plan_yaml, capsys):
    assert main(plan_yaml, "--set", f"precision.level={level}", "precision.dtype=bfloat16", "parallel.optimizer_sharding=true",
                "parallel.optimizer_sharding_threshold_kb=1", "parallel.stage_layers=auto", *mesh) == 0, capsys.readouterr().out


@pytest.mark.parametrize(("overrides", "says"), [
    # P1 of the reported faults: sizes that do not divide
    (["parallel.tp=8", "model.num_heads=12", "model.hidden_size=96"],
     "parallel.tp=8 does not divide model.num_heads=12: allowed are 1, 2, 3, 4, 6, 12"),
    (["parallel.dp=3", "parallel.pp=1", "--world-size=8"], "dp=3 x tp=2 x pp=1 = 6, but 8 rank(s)"),
    (["model.hidden_size=100", "model.num_heads=12"], "model.num_heads=12 does not divide model.hidden_size=100: allowed"),
    # and their kin
    (["parallel.tp=4", "model.ffn_hidden_size=130"], "parallel.tp=4 does not divide model.ffn_hidden_size=130: allowed are 1, 2"),
    (["train.micro_batch_size=8"], "parallel.num_micro_batches=1 is less than parallel.pp=2"),
    (["train.micro_batch_size=3"], "train.micro_batch_size=3 does not divide the 8 samples"),
    (["parallel.dp=3"], "train.global_batch_size=16 must be a multiple of 3"),
    (["parallel.pp=1", "parallel.stage_layers=auto", "parallel.virtual_stages=2"], "virtual_stages=2 interleaves pipeline"),
    (["parallel.pp=4", "parallel.stage_layers=auto"], "pp=4 x virtual_stages=1 = 4 parts need a block each, but model.num_l"),
    (["parallel.stage_layers=[1,2]"], "stage_layers=[1, 2] must be pp * virtual_stages = 2 numbers that add up to model."),
    (["parallel.stage_layers=[2]"], "parallel.stage_layers=[2] must be pp * virtual_stages = 2 numbers"),
    (["parallel.recompute_layers=[2]"], "parallel.recompute_layers: block 2 does not exist"),
    (["data.seq_length=15", "train.micro_batch_size=1", "parallel.sequence_parallel=true"], "does not divide the 15 tokens"),
    (["--ranks=some"], "--ranks some: stages, kinds, all, or numbers such as 0,5,9"),
    (["--ranks=0,8"], "--ranks 0,8: there is no rank 8, the ranks are 0 to 7"),
    (["parallel.dp=auto"], "parallel.dp=auto: say how many ranks the job has, --world-size N (a multiple of tp * pp = 4)"),
    (["--advise"], "--advise: say for how many devices, --world-size N"),
])
def test_what_cannot_be_is_refused_in_one_line(overrides, says, plan_yaml, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    options = [o for o in overrides if o.startswith("--")]
    sets = [f"--set={o}" for o in overrides if not o.startswith("--")]
    assert main(plan_yaml, *options, *sets, "--report", tmp_path / "report.json") == 2
    out, error = capsys.readouterr()
    assert error.startswith("error: ") and says in error and error.count("\n") == 1 and not out
    assert list(tmp_path.iterdir()) == []


def test_30_layers_on_4_stages_lose_none(plan_yaml):  # P1
    overrides = ["parallel.pp=4", "parallel.stage_layers=auto", "model.num_layers=30"]
    plan = plan_of(*planned(load_config(plan_yaml, overrides), None))[1]
    assert len(plan.stage_layers) == 4 and sum(plan.stage_layers) == 30 and max(plan.stage_layers) == 8
    assert sorted(b for stage in range(4) for b in plan.blocks(stage)) == list(range(30))


def test_a_vocabulary_that_tp_does_not_divide_is_padded(plan_yaml):  # P1
    sizes, _ = plan_of(*planned(load_config(plan_yaml, ["model.vocab_size=50257"]), None))
    assert sizes.vocab == 50258
    h, f = sizes.hidden, sizes.ffn
    assert parameter_count(sizes) == (50258 + 16) * h + 2 * (4 * h * h + 2 * h * f + 9 * h + f) + 2 * h


def test_kinds_are_fewer_than_stages(plan_yaml):
    overrides = ["parallel.pp=6", "parallel.stage_layers=[1,2,2,1,2,1]", "model.num_layers=9", "train.global_batch_size=24"]
    plan = plan_of(*planned(load_config(plan_yaml, overrides), None))[1]
    assert preflight.chosen("stages", plan) == [0, 4, 8, 12, 16, 20]
    assert preflight.chosen("kinds", plan) == [0, 4, 12, 20]
    assert preflight.chosen("all", plan) == list(range(24)) and preflight.chosen("7,3,7", plan) == [3, 7]


def test_advice_ranks_the_plans_that_fit(plan_yaml, tmp_path, capsys):
    gpt2 = ["model.vocab_size=50257", "model.hidden_size=768", "model.num_layers=12", "model.num_heads=12",
            "model.seq_length=1024", "data.seq_length=1024", "train.global_batch_size=64"]
    assert main(plan_yaml, "--advise", "--world-size", "8", "--report", tmp_path / "advice.json", "--set", *gpt2) == 0
    found = json.loads((tmp_path / "advice.json").read_text(encoding="utf-8"))
    assert found[0]["plan"].startswith("dp 8 x tp 1 x pp 1")  # it fits, and so needs no tensor parallelism and no pipeline
    assert len(found) > 5 and found[0]["memory_bytes"] < 64e9
    out = capsys.readouterr().out
    assert f"{len(found)} plans fit" in out and f"1. {found[0]['plan']}; " in out
    assert "12 layers, hidden 768" in out and "cluster (parallel.topology): nodes of 8 cards of 64 GB" in out
    proposed = out.partition("to prove the first, without --advise: --set ")[2].split()
    assert str(plan_of(*planned(load_config(plan_yaml, [*gpt2, *proposed]), None))[1]) == found[0]["plan"]
