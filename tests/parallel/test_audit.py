"""The audit's parts on graphs built by hand; tests/train/test_preflight.py has it find faults in compiled ones."""
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from parallel import audit
from parallel.audit import Used, activations, cell_of
from parallel.cost.parameters import stage_parameters
from parallel.cost.sizes import Plan, Sizes
from parallel.lockstep.mindir import Graph, Node, Program, TensorType
from parallel.mesh import Mesh

ROWS = TensorType((8, 4), np.dtype("float32"))
SIZES = Sizes(hidden=8, layers=1, heads=2, ffn=32, vocab=10, seq=4, positions=4)
PLAN = Plan(Mesh(2, 2), micro_batch_size=2, num_micro_batches=1, stage_layers=(1,))


def node(op: str, inputs: str, output: str, kind=ROWS, scope: str | None = None, **attributes) -> Node:
    return Node(op, tuple(inputs.split()), output, attributes, {}, scope or f"Default/network-GPTLoss/gpt-GPT/{op}-op0", kind)


def program(nodes, *functions: Graph, parameters=None) -> Program:
    return Program(Graph("main", {"%x": ROWS}, nodes[-1].output, nodes, {}, parameters or {}), {f.name: f for f in functions})


@pytest.mark.parametrize(("scope", "cell"), [
    ("Default/network-TrainStep/gradients-ShardedGradients/network-GPTLoss/gpt-GPT/blocks-CellList/0-Block/mlp-MLP/up-Linear/"
     "affine-Affine/MatMul-op0", "blocks.0.mlp.up.affine"),
    ("Gradients/Default/network-TrainStep/gradients-ShardedGradients/network-GPTLoss/gpt-GPT/blocks-CellList/11-Block/"
     "attention-CausalSelfAttention/core-AttentionCore/Grad_BatchMatMul/AllReduce-op2", "blocks.11.attention.core"),
    ("Gradients/Default/network-GPTLoss/gpt-GPT/Grad__MirrorOperator/AllReduce-op0", "gpt"),
    ("Default/network-TrainStep/gradients-ShardedGradients/network-GPTLoss/head_loss-HeadLoss/loss-TokenLoss/AllReduce-op1",
     "head_loss.loss"),
    ("Default/network-GPTLoss/labels-Labels/StridedSlice-op0", "labels"),
    ("Default/network-TrainStep/gradients-ShardedGradients/AllReduce-op0", "step"),
    ("Default/AllGather-op0", "step"),
])
def test_cell_of_a_scope(scope, cell):
    assert cell_of(scope) == cell


def test_what_depends_on_the_data():
    nodes = [node("MatMul", "%x %w", "%a"), node("Neg", "%w", "%b"), node("Add", "%a %b", "%c")]
    assert activations(program(nodes))["main"] == {"%x", "%a", "%c"}


def test_data_goes_into_functions_by_calls_and_by_closures():
    def function(name: str, *inputs: str) -> Graph:
        return Graph(name, dict.fromkeys(inputs, ROWS), "%y", [node("Add", " ".join(inputs), "%y")])

    called, bound, bound_late = function("called", "%p", "%q"), function("bound", "%p", "%q"), function("late", "%p", "%q", "%r")
    idle = function("idle", "%p", "%q")
    nodes = [node("call", "called %w %x", "%a"),
             node("Partial", "bound %x", "%f"), node("call", "%f %w", "%b"),
             node("Partial", "late %w", "%g"), node("Partial", "%g %w", "%h"), node("call", "%h %x", "%c"),
             node("call", "idle %w %w", "%d")]
    found = activations(program(nodes, called, bound, bound_late, idle))
    assert found["called"] == {"%q", "%y"} and found["bound"] == {"%p", "%y"} and found["late"] == {"%r", "%y"}
    assert found["idle"] == set() and {"%a", "%b", "%c"} <= found["main"] and "%d" not in found["main"]


def test_a_graph_runs_as_often_as_it_is_called_or_bound():
    inner = Graph("inner", {"%p": ROWS}, "%y", [node("Neg", "%p", "%y")])
    outer = Graph("outer", {"%p": ROWS}, "%y", [node("call", "inner %p", "%z"), node("Partial", "inner %z", "%y")])
    nodes = [node("call", "outer %x", "%a"), node("call", "outer %a", "%b"), node("call", "inner %b", "%c")]
    assert audit._calls(program(nodes, inner, outer)) == {"main": 1, "outer": 2, "inner": 5}


def reduce(group: tuple[int, ...], op: str = "AllReduce", kind=ROWS, cell: str = "norm-LayerNorm") -> Node:
    return node(op, "%x", "%y", kind, f"Default/network-GPTLoss/gpt-GPT/{cell}/{op}-op0", group_rank_ids=group)


def test_communication_is_named_by_its_group_and_counted_as_often_as_it_runs():
    inside = [reduce((2, 3)), reduce((0, 2)), reduce((0, 1, 2, 3), "ReduceScatter"), reduce((2,))]
    function = Graph("f", {"%x": ROWS}, "%y", inside)
    nodes = [node("call", "f %x", "%a"), node("call", "f %a", "%b"), reduce((2, 3), cell="embedding-Embedding"), reduce((1, 2))]
    plan = replace(PLAN, mesh=Mesh(2, 2, rank=2))
    counts, cells = audit.compiled_communication(program(nodes, function), plan)
    assert counts == {Used("AllReduce", "tp", 128): 3, Used("AllReduce", "dp", 128): 2,
                      Used("ReduceScatter", "dp x tp", 4 * 128): 2, Used("AllReduce", "ranks [1, 2]", 128): 1}
    assert cells[Used("AllReduce", "tp", 128)] == Counter({"norm": 2, "embedding": 1})


def test_communication_that_the_plan_does_not_know_and_that_is_missing():
    exchange = reduce((0, 1), "AlltoAll", cell="blocks-CellList/0-Block/mlp-MLP")
    findings = audit.audit_communication(0, program([exchange]), SIZES, PLAN)
    extra = [f for f in findings if f.rule == "redistribution"]
    assert [(f.cell, f.operator, f.expected, f.found) for f in extra] \
        == [("blocks.0.mlp x 1", "AlltoAll over tp of 128 bytes", "0 a step", "1 a step")]
    missing = [f for f in findings if f.rule == "communication"]
    assert all(f.cell == "nowhere" and f.found == "0 a step" for f in missing)
    assert any("outputs of attention and MLP" in f.expected for f in missing)


@pytest.mark.parametrize(("mesh", "strategy", "wrong"), [
    (Mesh(2, 2), [[2, 1], [2, 1]], False), (Mesh(2, 2), [[1, 1], [2, 1]], True), (Mesh(2, 2), [[4, 1], [1, 1]], True),
    (Mesh(2, 2, sequence_parallel=True), [[4, 1], [1, 1]], False), (Mesh(1, 4), [[1, 4], [1, 4]], False),
])
def test_an_operator_on_activations_is_cut_over_dp(mesh, strategy, wrong):
    product, of_weights = node("MatMul", "%x %w", "%y"), node("Neg", "%w", "%z", scope="Default/gpt-GPT/Neg-op0")
    strategies = {product.scope: strategy, of_weights.scope: [[1, 1]]}
    findings = audit.audit_strategies(0, program([of_weights, product]), strategies, replace(PLAN, mesh=mesh))
    assert [(f.rule, f.cell, f.operator, f.found) for f in findings] == [("strategy", "gpt", "MatMul", str(strategy))] * wrong


def test_parameters_and_moments_have_the_plan_s_shapes():
    held = {name: TensorType(p.local_shape(PLAN), np.dtype("float32")) for p in stage_parameters(SIZES, PLAN, 0)
            for name in (p.name, f"moment1.{p.name}", f"moment2.{p.name}")}
    nodes = [node("Neg", "%x", "%y")]
    assert audit.audit_parameters(0, program(nodes, parameters=held), SIZES, PLAN) == []
    held["blocks.0.mlp.up.weight"] = TensorType((32, 8), np.dtype("float32"))
    del held["moment2.norm.bias"]
    findings = audit.audit_parameters(0, program(nodes, parameters=held), SIZES, PLAN)
    assert sorted((f.cell, f.expected, f.found) for f in findings) \
        == [("blocks.0.mlp.up.weight", "[16, 8] of [32, 8]", "[32, 8]"), ("moment2.norm.bias", "[8] of [8]", "nothing")]
