"""Hold what MindSpore compiled for a rank against the plan: strategies, parameters, communication.

A wrong parallel setting raises no error: the network computes the right numbers, some of it on every rank again, or with
redistributions that cost more than the split saves. The compiled graph shows it.
"""
from collections import Counter, defaultdict
from dataclasses import dataclass

from parallel.cost.communication import communication, members
from parallel.cost.parameters import moments, stage_parameters
from parallel.cost.sizes import Plan, Sizes
from parallel.lockstep.mindir import Graph, Node, Program, TensorType

COLLECTIVES = ("AllReduce", "AllGather", "ReduceScatter", "AlltoAll", "AllToAll", "Broadcast", "Send", "Receive")


@dataclass(frozen=True)
class Finding:
    """One violation. rule: strategy, parameter, communication or redistribution."""

    rule: str
    rank: int
    cell: str
    operator: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.rule}: rank {self.rank}, {self.cell}, {self.operator}: expected {self.expected}; found {self.found}"


def cell_of(scope: str) -> str:
    """The cell that a node stands in, by the model's attributes: ".../blocks-CellList/0-Block/mlp-MLP/..." -> blocks.0.mlp.

    Of the cells around the model nothing is said; a node outside of the model is in the "step".
    """
    parts = [part.rpartition("-")[0] for part in scope.split("/")[:-1]
             if not part.startswith(("Grad_", "Default", "Gradients"))]
    inner = parts[parts.index("gpt") + 1:] if "gpt" in parts \
        else [p for p in parts if p in ("head_loss", "loss", "labels", "head")]
    return ".".join(inner) or ("step" if "gpt" not in parts else "gpt")


def audit(rank: int, program: Program, strategies: dict[str, list], sizes: Sizes, plan: Plan) -> list[Finding]:
    """All violations in the training graph of a rank."""
    return [*audit_strategies(rank, program, strategies, plan), *audit_parameters(rank, program, sizes, plan),
            *audit_communication(rank, program, sizes, plan)]


# --- strategies

def activations(program: Program) -> dict[str, set[str]]:
    """For each graph the values that depend on the data."""
    graphs = {program.main.name: program.main, **program.functions}
    found = {name: set() for name in graphs}
    found[program.main.name] = set(program.main.inputs)
    changed = True
    while changed:
        changed = False
        for name, graph in graphs.items():
            closures: dict[str, tuple[str, int]] = {}  # value -> function and how many of its inputs it has
            for node in graph.nodes:
                marked = [value in found[name] for value in node.inputs]
                if any(marked) and node.output not in found[name]:
                    found[name].add(node.output)
                    changed = True
                if node.op in ("Partial", "call"):
                    callee, first = closures.get(node.inputs[0], (node.inputs[0], 0))
                    if callee in graphs:
                        inputs = list(graphs[callee].inputs)[first:]
                        new = {i for i, m in zip(inputs, marked[1:], strict=False) if m} - found[callee]
                        found[callee] |= new
                        changed |= bool(new)
                        if node.op == "Partial":
                            closures[node.output] = callee, first + len(node.inputs) - 1
    return found


def audit_strategies(rank: int, program: Program, strategies: dict[str, list], plan: Plan) -> list[Finding]:
    """Each operator of the forward pass that takes activations cuts their first axis over dp (with sequence parallelism dp * tp).

    What is cut less is computed by several ranks alike.
    """
    mesh, findings = plan.mesh, []
    if mesh.dp == 1 and not mesh.sequence_parallel:
        return []
    depends = activations(program)
    for graph in (program.main, *program.functions.values()):
        types = _types(graph)
        for node in graph.nodes:
            strategy = strategies.get(node.scope)
            if strategy is None or node.scope.startswith("Gradients") or "_MicroBatch" in node.scope:
                continue
            for i, value in enumerate(node.inputs[:len(strategy)]):
                cut = strategy[i]
                if value not in depends[graph.name] or not cut or _elements(types.get(value)) <= 2:
                    continue
                if cut[0] not in (mesh.dp, mesh.rows):
                    findings.append(Finding("strategy", rank, cell_of(node.scope), node.op,
                                            f"input {i} cut over dp={mesh.dp} on its first axis", f"{strategy}"))
                    break
    return findings


def _types(graph: Graph) -> dict[str, object]:
    return {**graph.inputs, **{node.output: node.type for node in graph.nodes}}


def _elements(kind: object) -> int:
    return kind.nbytes // kind.dtype.itemsize if isinstance(kind, TensorType) else 3


# --- parameters

def audit_parameters(rank: int, program: Program, sizes: Sizes, plan: Plan) -> list[Finding]:
    """A rank holds of each parameter, and of its moments, the part that the plan gives it, and of each one that it should."""
    findings, held = [], program.main.parameters
    for p in stage_parameters(sizes, plan, plan.mesh.stage):
        for name, wanted in {p.name: p.local_shape(plan), **moments(p, plan)}.items():
            found = held.get(name)
            if found is None or tuple(found.shape) != wanted:
                findings.append(Finding("parameter", rank, name, "Parameter", f"{list(wanted)} of {list(p.shape)}",
                                        "nothing" if found is None else f"{list(found.shape)}"))
    return findings


# --- communication

@dataclass(frozen=True)
class Used:
    """A communication of the compiled step: as Traffic, with the cells that cause it."""

    kind: str
    group: str
    bytes: int


def compiled_communication(program: Program, plan: Plan) -> tuple[Counter[Used], dict[Used, Counter[str]]]:
    """How often each communication runs in a step, and in which cells."""
    counts: Counter[Used] = Counter()
    cells: dict[Used, Counter[str]] = defaultdict(Counter)
    graphs = {program.main.name: program.main, **program.functions}
    for name, times in _calls(program).items():
        for node in graphs[name].nodes:
            if node.op in COLLECTIVES and len(node.attributes.get("group_rank_ids", (0, 1))) > 1:
                used = Used(node.op, _group(node, plan), _bytes(node))
                counts[used] += times
                cells[used][cell_of(node.scope)] += times
    return counts, cells


def audit_communication(rank: int, program: Program, sizes: Sizes, plan: Plan) -> list[Finding]:
    """Every collective of a step is one that the closed form knows, and the other way round: kind, group, bytes and count."""
    expected: Counter[Used] = Counter()
    what: dict[Used, str] = {}
    for t in communication(sizes, plan, plan.mesh.stage):
        used = Used(t.kind, t.group, t.bytes)
        expected[used] += t.count
        what.setdefault(used, t.what)
    found, cells = compiled_communication(program, plan)
    findings = []
    for used in sorted(expected.keys() | found.keys(), key=str):
        if expected[used] != found[used]:
            planned = f"{expected[used]} a step" + (f" ({what[used]})" if used in what else "")
            findings.append(Finding("redistribution" if not expected[used] else "communication", rank,
                                    ", ".join(f"{cell} x {n}" for cell, n in cells[used].most_common(4)) or "nowhere",
                                    f"{used.kind} over {used.group} of {used.bytes:,} bytes", planned, f"{found[used]} a step"))
    return findings


def _calls(program: Program) -> Counter[str]:
    """How often each graph runs in a step, by its name.

    A graph runs where it is called, or bound to arguments: a backward graph by its forward graph, a branch by its condition. Both
    branches count: what communicates in one of them does so on every rank.
    """
    graphs = {program.main.name: program.main, **program.functions}
    times: Counter[str] = Counter()

    def visit(name: str) -> None:
        times[name] += 1
        for node in graphs[name].nodes:
            if node.op in ("call", "Partial") and node.inputs[0] in graphs:
                visit(node.inputs[0])

    visit(program.main.name)
    return times


def _group(node: Node, plan: Plan) -> str:
    ranks = tuple(node.attributes["group_rank_ids"])
    if node.op in ("Send", "Receive"):
        return "pp"
    names = [name for name in ("tp", "dp", "dp x tp", "all") if members(plan.mesh, name) == ranks]
    return names[0] if names else f"ranks {list(ranks)}"


def _bytes(node: Node) -> int:
    size = node.type.nbytes
    return size * len(node.attributes["group_rank_ids"]) if node.op == "ReduceScatter" else size
