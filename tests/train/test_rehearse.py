"""Rehearsal: all ranks of a compiled plan equal one card, and a plan that is broken on purpose does not.

The whole matrix of meshes and options is tests/train/test_matrix.py.
"""
import json
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from mindspore import Tensor

from data.tokenizer import PAD_ID
from parallel.lockstep.errors import LockstepError
from parallel.lockstep.kernels import KERNELS
from parallel.lockstep.mindir import Graph, Node
from tests.train.conftest import PLAN
from train import dry_compile, rehearsal, rehearse, scaled
from train.config import load_config
from train.plans import planned

ONE_LAYER_A_STAGE = ["model.num_layers=2", "parallel.stage_layers=[1,1]"]  # by hand, so that scaling leaves them
LOSS, PARAMETERS = 1e-5, 1e-4  # the tolerances that are promised


def run(path, folder, *overrides: str, steps: int = 3) -> tuple[int, dict]:
    """Exit code and report of the command."""
    report = folder / "report.json"
    code = rehearse.main(["--config", str(path), "--steps", str(steps), "--report", str(report), "--set", *overrides])
    return code, json.loads(report.read_text(encoding="utf-8")) if report.exists() else {}


def check(report: dict, clip_norm: float) -> None:
    """Every figure and parameter of every rank agrees; the norm is clipped; step 2 overflows, and is skipped by all."""
    first, second, third = report["steps"]
    assert report["evaluation_difference"] <= LOSS
    for step in report["steps"]:
        assert max(step["differences"].values()) <= LOSS and step["parameter_difference"] <= PARAMETERS
        assert set(step["differences"]) == {"loss", "grad_norm", "loss_scale", "overflow", "lr", "tokens"}
    for step in (first, third):
        assert not step["skipped"] and step["figures"]["overflow"] == 0 and clip_norm < step["figures"]["grad_norm"] < np.inf
    assert second["skipped"] and second["figures"]["overflow"] == 1 and not np.isfinite(second["figures"]["grad_norm"])
    assert [s["figures"]["loss_scale"] for s in report["steps"]] == [1024, 1024, 512]
    assert first["figures"]["loss"] != third["figures"]["loss"]


@pytest.fixture(scope="module")
def small(plan_yaml):
    """Config and mesh of the 3D plan."""
    config, mesh, count = planned(load_config(plan_yaml, ONE_LAYER_A_STAGE), None)
    return scaled.scaled(config, mesh, count, {o.partition("=")[0] for o in ONE_LAYER_A_STAGE}), mesh


@pytest.fixture(scope="module")
def report_3d(cache, plan_yaml, tmp_path_factory):
    return run(plan_yaml, tmp_path_factory.mktemp("report"), *ONE_LAYER_A_STAGE)


def test_dp_2_tp_2_pp_2_with_4_micro_batches_clipping_and_overflow(report_3d):
    code, report = report_3d
    assert code == 0 and report["ok"] and report["mesh"] == {"dp": 2, "tp": 2, "pp": 2}
    check(report, PLAN["train"]["clip_norm"])


def test_ranks_and_micro_batches_count_different_tokens(small, report_3d):
    config, mesh = small
    for step, (tokens, _) in zip(report_3d[1]["steps"], scaled.batches(config, 3, PAD_ID, config.run.seed), strict=True):
        of_ranks = (tokens[:, 1:] != PAD_ID).reshape(mesh.dp, 4, -1).sum(-1)  # [rank, micro-batch]
        assert step["figures"]["tokens"] == of_ranks.sum() < tokens[:, 1:].size
        assert len(set(of_ranks.sum(1))) == mesh.dp and all(len(set(counts)) > 1 for counts in of_ranks)


@pytest.mark.matrix
def test_sequence_parallelism_and_dropout(cache, plan_yaml, tmp_path):
    options = ["parallel.dp=1", "parallel.pp=1", "parallel.stage_layers=[2]", "model.num_layers=2", "train.micro_batch_size=16",
               "train.global_batch_size=16", "parallel.sequence_parallel=true", "model.dropout=0.1"]
    code, report = run(plan_yaml, tmp_path, *options)
    assert code == 0 and report["mesh"] == {"dp": 1, "tp": 2, "pp": 1}
    check(report, PLAN["train"]["clip_norm"])


@pytest.mark.matrix
def test_optimizer_sharding(cache, plan_yaml, tmp_path):
    options = ["parallel.tp=1", "parallel.pp=1", "parallel.stage_layers=[2]", "model.num_layers=2",
               "parallel.optimizer_sharding=true", "train.micro_batch_size=8", "train.global_batch_size=16"]
    code, report = run(plan_yaml, tmp_path, *options)
    assert code == 0 and report["mesh"] == {"dp": 2, "tp": 1, "pp": 1}
    check(report, PLAN["train"]["clip_norm"])


def test_llama(cache, plan_yaml, tmp_path):
    """Grouped queries whose heads are cut; the 3D plans are in the matrix."""
    options = ["parallel.dp=1", "parallel.pp=1", "parallel.stage_layers=[1]", "model.num_layers=1", "train.micro_batch_size=16",
               "train.global_batch_size=16", "model.architecture=llama", "model.num_kv_heads=2", "model.ffn_hidden_size=48",
               "model.tie_embeddings=false"]
    code, report = run(plan_yaml, tmp_path, *options)
    assert code == 0 and report["mesh"] == {"dp": 1, "tp": 2, "pp": 1}
    check(report, PLAN["train"]["clip_norm"])


BFLOAT16, FLOAT16 = ("precision.level=O2", "precision.dtype=bfloat16"), ("precision.level=O2", "model.dropout=0.1")
OF_STAGES = ("parallel.dp=1", "parallel.tp=1", "train.global_batch_size=8")  # of the table, which one stage sends the other


@pytest.mark.parametrize("options", [(*OF_STAGES, *BFLOAT16), pytest.param(FLOAT16, marks=pytest.mark.long), pytest.param(
    (*BFLOAT16, "parallel.sequence_parallel=true"), marks=pytest.mark.long)])
def test_half_precision_is_near_one_card(options, cache, plan_yaml, tmp_path):
    code, report = run(plan_yaml, tmp_path, *ONE_LAYER_A_STAGE, *options)
    first, second, third = report["steps"]
    assert code == 0 and second["skipped"] and [s["figures"]["loss_scale"] for s in report["steps"]] == [1024, 1024, 512]
    for step in (first, third):
        assert 1e-7 < step["differences"]["loss"] < 1e-3 and step["parameter_difference"] < 0.05
    assert 1e-7 < report["evaluation_difference"] < 2e-3


@pytest.mark.parametrize("options", [
    ("parallel.dp=1", "parallel.pp=1", "parallel.stage_layers=[1]", "model.num_layers=1", "train.micro_batch_size=16"),
    pytest.param((), marks=pytest.mark.long)])
def test_flash_attention_is_near_one_card(options, cache, plan_yaml, tmp_path, monkeypatch):
    """The fused kernel on all ranks, heads cut over tp, against one card's plain form."""
    called = []
    for name in ("FlashAttentionScore", "FlashAttentionScoreGrad"):
        monkeypatch.setitem(KERNELS, name, lambda *xs, name=name, f=KERNELS[name]: called.append(name) or f(*xs))
    code, report = run(plan_yaml, tmp_path, *ONE_LAYER_A_STAGE, "precision.level=O2", "model.hidden_size=64", *options)
    assert code == 0 and report["mesh"] == ({"dp": 1, "tp": 2, "pp": 1} if options else {"dp": 2, "tp": 2, "pp": 2})
    for step in (report["steps"][0], report["steps"][2]):
        assert 1e-7 < step["differences"]["loss"] < 1e-3 and step["parameter_difference"] < 0.05
    assert report["evaluation_difference"] < 2e-3 and set(called) == {"FlashAttentionScore", "FlashAttentionScoreGrad"}


@pytest.mark.long
@pytest.mark.parametrize("dp", [1, 2])
def test_each_parameter_clipped_by_its_own_norm(dp, cache, plan_yaml, tmp_path):
    """Slices over tp, copies over dp, parameters of two stages and the tied table: each norm counts everything once."""
    options = [f"parallel.dp={dp}", "train.clip_by=norm", "train.clip_norm=0.05", "eval.stage.enabled=false"]
    code, report = run(plan_yaml, tmp_path, *ONE_LAYER_A_STAGE, *options)
    assert code == 0
    check(report, 0.05)


# --- Can the rehearsal fail? Each fault is planted into the graphs that agreed above. ---

WEIGHT = "blocks.0.attention.query.weight"


def graphs(compiled) -> list[Graph]:
    return [g for c in compiled.values() for g in (c.program.main, *c.program.functions.values())]


def select(compiled, choose) -> list[Node]:
    found = [n for g in graphs(compiled) for n in g.nodes if choose(n)]
    assert found
    return found


def is_sum_over_tp(node: Node) -> bool:
    return node.op == "AllReduce" and "/0-Block/attention-CausalSelfAttention/output-Linear/affine-Affine/AllReduce" in node.scope


def is_sum_of_gradient(node: Node) -> bool:
    return node.op == "AllReduce" and node.marks.get("mirror_user_id") == WEIGHT and "Grad__Mirror" in node.scope


def is_sum_of_norm(node: Node) -> bool:
    return node.op == "AllReduce" and "/gradients-ShardedGradients/AllReduce-" in node.scope


def drop(found: list[Node]) -> None:
    """Each of these gives back what it is given."""
    for node in found:
        node.op, node.inputs = "Depend", (node.inputs[0], node.inputs[0])


def double(compiled, choose) -> None:
    """Twice the result of each of the chosen nodes."""
    select(compiled, choose)
    for graph in graphs(compiled):
        for node in filter(choose, list(graph.nodes)):
            output, node.output = node.output, f"{node.output}.once"
            twice = Node("Add", (node.output, node.output), output, {}, {}, node.scope, node.type)
            graph.nodes.insert(graph.nodes.index(node) + 1, twice)


def double_gradient(compiled):
    double(compiled, is_sum_of_gradient)


def count_twice(compiled):
    """Of each stage one parameter that all its ranks hold alike: its share in the norm is 1 / (dp tp)."""
    chosen = []
    for graph in graphs(compiled):
        halves = {n.output for n in graph.nodes if n.op == "L2Loss"}
        shares = [n for n in graph.nodes if n.op == "Muls" and n.inputs[0] in halves]
        chosen += [n for n in shares if graph.constants[n.inputs[1]] == 1 / 4][:1]
    double(compiled, lambda node: any(node is c for c in chosen))


def dropping(choose):
    return lambda compiled: drop(select(compiled, choose))


@pytest.fixture(scope="module")
def graph_folder(small, report_3d):
    config, mesh = small
    return dry_compile.compile_plan(config, mesh.world_size, range(mesh.world_size), ["train", "eval"])


@pytest.fixture(scope="module")
def card(small):
    """One card, compiled once, and how it starts."""
    card = rehearsal.OneCard(small[0])
    return card, {p.name: p.asnumpy().copy() for p in card.step.get_parameters()}


@pytest.fixture
def rehearsed(small, graph_folder, card, monkeypatch):
    """rehearsed(change) -> the outcome of one step; what is not changed, the evaluation, is not looked at."""
    def first_again(_):
        for p in card[0].step.get_parameters():
            p.set_data(Tensor(card[1][p.name]))
        return card[0]

    monkeypatch.setattr(rehearsal, "OneCard", first_again)
    monkeypatch.setattr(rehearsal, "evaluate", lambda *_: 0.0)
    return partial(rehearsal.rehearse, *small, graph_folder, 1, None)


def test_without_a_fault_it_agrees(rehearsed):
    assert rehearsed().ok


@pytest.mark.parametrize(("change", "wrong", "right", "parameter"), [
    (dropping(is_sum_over_tp), {"loss", "grad_norm"}, {"tokens"}, "blocks."),
    (dropping(is_sum_of_gradient), {"grad_norm"}, {"loss", "tokens"}, WEIGHT),
    (dropping(is_sum_of_norm), {"grad_norm", "tokens"}, {"lr"}, ""),
    (double_gradient, {"grad_norm"}, {"loss", "tokens"}, WEIGHT),
    (count_twice, {"grad_norm"}, {"loss", "tokens"}, ""),
], ids=["no sum over tp", "no sum of a gradient", "no sum of the norm", "a gradient twice", "a parameter twice in the norm"])
def test_a_planted_fault_is_caught(change, wrong, right, parameter, rehearsed):
    result = rehearsed(change)
    step, = result.steps
    assert not result.ok and not step.ok
    differing = {name for name, d in step.differences.items() if d > LOSS}
    assert wrong <= differing and not right & differing
    assert step.parameter.startswith(parameter)
    assert "DIFFERS" in rehearse.table(result)[1] and "do NOT compute" in rehearse.table(result)[-1]


def test_slices_that_are_swapped_between_two_ranks_are_caught(rehearsed, monkeypatch):
    part = rehearsal.part

    def swapped(whole, name, compiled, mesh):
        rank = 1 - compiled.rank if name == WEIGHT and compiled.rank < 2 else compiled.rank
        return part(whole, name, replace(compiled, rank=rank), mesh)

    monkeypatch.setattr(rehearsal, "part", swapped)
    step, = rehearsed().steps
    assert not step.ok and step.differences["loss"] > LOSS


def test_a_parameter_that_mindspore_cuts_in_another_way_is_caught(small, graph_folder):
    compiled = dry_compile.load(graph_folder, 1, "train")
    matrix, (axis, uncut), *rest = compiled.parameters[WEIGHT]
    rehearsal.check_cut(*small, {1: compiled})
    compiled.parameters[WEIGHT] = [matrix, [uncut, axis], *rest]
    with pytest.raises(LockstepError, match=f"rank 1 would be given other parts of parameters than MindSpore has: {WEIGHT}"):
        rehearsal.check_cut(*small, {1: compiled})


def test_a_fault_in_the_evaluation_is_caught(small, graph_folder, card, monkeypatch):
    load = dry_compile.load
    config, mesh = small
    assert rehearsal.evaluate(config, mesh, graph_folder, card[0]) <= LOSS
    monkeypatch.setattr(dry_compile, "load", lambda folder, rank, kind: faulty(load(folder, rank, kind)))

    def faulty(one):
        drop([n for g in graphs({0: one}) for n in g.nodes if is_sum_over_tp(n)])
        return one

    assert rehearsal.evaluate(config, mesh, graph_folder, card[0]) > LOSS


@pytest.mark.parametrize(("fault", "says"), [
    ("one rank does not take part", r"group .* rank \d|rank \d waits at .* not come: rank \d"),
    ("an operator is not known", "no kernel for the operator Mystery in .*/0-Block/mlp-MLP/gelu-Gelu/"),
])
def test_graphs_that_cannot_be_executed_are_one_error_without_a_traceback(fault, says, rehearsed, plan_yaml, monkeypatch, capsys):
    def change(compiled):
        if fault.startswith("one rank"):
            drop(select({2: compiled[2]}, is_sum_of_gradient))
        else:
            for node in select(compiled, lambda n: n.op == "GeLU" and "/0-Block/" in n.scope):
                node.op = "Mystery"

    monkeypatch.setattr(rehearsal, "rehearse", lambda *_: rehearsed(change))
    assert rehearse.main(["--config", str(plan_yaml), "--set", *ONE_LAYER_A_STAGE]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: the ranks cannot be executed together: ") and re.search(says, error)
    assert "Traceback" not in error


@pytest.mark.parametrize(("arguments", "says"), [
    (["--steps", "0"], "--steps 0"), (["--overflow-at", "-1"], "--overflow-at -1"),
    (["--set", "parallel.tp=3"], "parallel.tp=3 does not divide model.num_heads=4: allowed are 1, 2, 4"),
])
def test_what_cannot_be_is_refused_in_one_line(arguments, says, plan_yaml, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert rehearse.main(["--config", str(plan_yaml), "--report", str(tmp_path / "report.json"), *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and says in error and error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
