"""Compile small plans and write down what the closed forms are held against: compiled.json. Takes minutes; no test runs it.

    python -m tests.parallel.make_compiled [CASE ...]

For each case and rank: "traffic": [kind, ranks of the group (none for Send and Receive), bytes, times in a step] as Traffic
counts them; "parcels": [kind, ranks, bytes of each tensor] of those that MindSpore's fusion joins, written for cases with large
tensors; "kept": bytes of activations that the forward graph of one micro-batch hands to its backward graph, or null where
the two are one graph.
"""
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

import yaml

from parallel.lockstep.collectives import COMMUNICATION
from parallel.lockstep.mindir import Graph, Node, Program, TensorType
from train.config import load_config
from train.dry_compile import compile_plan, load

OUT = Path(__file__).with_name("compiled.json")
BASE = {
    "run": {"name": "compiled", "dir": "runs"},
    "model": {"vocab_size": 72, "vocab_multiple": 8, "hidden_size": 32, "num_layers": 4, "num_heads": 4, "seq_length": 24},
    "data": {"path": {"en": "en.txt"}, "valid_path": {"en": "en.txt"}, "prepared_dir": "prepared", "seq_length": 16,
             "tokenizer": {"vocab_size": 300}},
    "train": {"global_batch_size": 16},
}
SP, SHARD = "parallel.sequence_parallel=true", "parallel.optimizer_sharding=true"
ALL, FULL = "parallel.optimizer_sharding_threshold_kb=0", "parallel.recompute=full"


def mesh(dp: int, tp: int, pp: int = 1, micro: int = 1) -> list[str]:
    return [f"parallel.dp={dp}", f"parallel.tp={tp}", f"parallel.pp={pp}", f"parallel.num_micro_batches={micro}"]


# Matrices of 0.14 and 0.56 MB, a table of 1.1 MB: what parcels of 1 MB hold differs from what those of 32 MB do.
LARGE = ["parallel.fusion_mb=1", "model.hidden_size=192", "model.vocab_size=1500"]

LLAMA, OWN_HEAD = ["model.architecture=llama", "model.num_kv_heads=2", "model.ffn_hidden_size=96"], "model.tie_embeddings=false"
# Heads of 16 elements, which the fused kernel takes.
FLASH = ["precision.level=O2", "model.hidden_size=64"]

# name: (ranks of the job, ranks that are compiled, overrides)
CASES = {
    "dp": (2, [1], mesh(2, 1)),
    "tp": (2, [1], mesh(1, 2)),
    "tp, samples do not divide": (4, [0], [*mesh(1, 4), "train.global_batch_size=6"]),
    "dp x tp": (4, [3], mesh(2, 2)),
    "dp x tp, sequence parallel": (4, [0], [*mesh(2, 2), SP]),
    "dp x tp, all sharded": (4, [0], [*mesh(2, 2), SHARD, ALL]),
    "dp x tp, sharded from 9 KB": (4, [0], [*mesh(2, 2), SHARD, "parallel.optimizer_sharding_threshold_kb=9"]),
    "dp x tp, sharded from 10 KB": (4, [0], [*mesh(2, 2), SHARD, "parallel.optimizer_sharding_threshold_kb=10"]),
    "dp x tp, sharded where it divides": (8, [0], [*mesh(2, 4), SHARD, ALL, "model.hidden_size=36", "model.seq_length=20",
                                                   "model.ffn_hidden_size=140"]),
    "dp x tp, full": (4, [0], [*mesh(2, 2), FULL]),
    "dp x tp, micro-batches": (4, [0], mesh(2, 2, 1, 4)),
    "dp x tp, micro-batches, all sharded, dropout": (4, [0], [*mesh(2, 2, 1, 4), SHARD, ALL, "model.dropout=0.1"]),
    "dp x pp": (8, [0, 2, 6], mesh(2, 1, 4, 4)),
    "dp x pp, selective": (4, [0, 2], [*mesh(2, 1, 2, 4), "parallel.recompute=selective"]),
    "dp x pp, full": (4, [0, 2], [*mesh(2, 1, 2, 4), FULL, "parallel.recompute_layers=[0, 3]"]),
    "tp x pp": (4, [1, 3], mesh(1, 2, 2, 2)),
    "tp x pp, interleaved": (4, [0, 2], [*mesh(1, 2, 2, 4), "parallel.virtual_stages=2"]),
    "3D": (8, [3, 7], mesh(2, 2, 2, 4)),
    "3D, dropout": (8, [0, 4], [*mesh(2, 2, 2, 4), "model.dropout=0.1"]),
    "3D, O2": (8, [0, 4], [*mesh(2, 2, 2, 4), "precision.level=O2"]),
    "3D, O2, full": (8, [0, 4], [*mesh(2, 2, 2, 4), FULL, "precision.level=O2"]),
    "3D, O2, dropout, sequence parallel": (8, [0, 4], [*mesh(2, 2, 2, 4), SP, "precision.level=O2", "model.dropout=0.1"]),
    "3D, sequence parallel": (8, [0, 4], [*mesh(2, 2, 2, 4), SP]),
    "3D, full": (8, [0, 4], [*mesh(2, 2, 2, 4), FULL]),
    "3D, full, sequence parallel, all sharded": (8, [0, 4], [*mesh(2, 2, 2, 4), FULL, SP, SHARD, ALL]),
    "3D, interleaved, uneven, selective, sequence parallel, sharded from 5 KB": (8, [1, 5], [
        *mesh(2, 2, 2, 4), SP, SHARD, "parallel.virtual_stages=2", "parallel.recompute=selective", "model.num_layers=5",
        "parallel.stage_layers=[2, 1, 1, 1]", "parallel.optimizer_sharding_threshold_kb=5"]),
    "tp x pp, Llama": (4, [1, 3], [*mesh(1, 2, 2, 2), *LLAMA]),
    "dp x pp, Llama, full": (4, [0, 2], [*mesh(2, 1, 2, 4), *LLAMA, FULL]),
    # Whose model.seq_length is that of the data: else the angles' tables are cut to it, and count as tensors of this small batch.
    "3D, Llama, head of its own, sequence parallel, all sharded": (8, [0, 4], [*mesh(2, 2, 2, 4), *LLAMA, OWN_HEAD, SP, SHARD,
                                                                               ALL, "model.seq_length=16"]),
    "3D, Llama, head of its own, O2, full": (8, [3, 7], [*mesh(2, 2, 2, 4), *LLAMA, OWN_HEAD, FULL, "precision.level=O2"]),
    "3D, O2, flash": (8, [0, 4], [*mesh(2, 2, 2, 4), *FLASH]),
    "3D, O2, flash, full, sequence parallel": (8, [0, 4], [*mesh(2, 2, 2, 4), *FLASH, FULL, SP]),
    "dp x pp, O2, flash, selective": (4, [0, 2], [*mesh(2, 1, 2, 4), *FLASH, "parallel.recompute=selective"]),
    "tp x pp, Llama, O2, flash": (4, [1, 3], [*mesh(1, 2, 2, 2), *LLAMA, *FLASH]),
    "dp, parcels": (2, [0], [*mesh(2, 1), *LARGE]),
    "dp, micro-batches, parcels": (2, [0], [*mesh(2, 1, 1, 2), *LARGE]),
    "dp, sharded, parcels": (2, [0], [*mesh(2, 1), *LARGE, SHARD]),
    "dp x pp, parcels": (4, [0, 2], [*mesh(2, 1, 2, 4), *LARGE]),
    "dp x pp, sharded, parcels": (4, [0, 2], [*mesh(2, 1, 2, 4), *LARGE, SHARD]),
}


def traffic(program: Program) -> Counter:
    """(kind, group, bytes) -> times, over all calls. A backward graph is called as often as the forward graph that made it."""
    graphs = {g.name: g for g in (program.main, *program.functions.values())}

    def total(graph: Graph) -> Counter:
        found = Counter()
        for node in graph.nodes:
            if node.op in COMMUNICATION:
                found[key(node)] += 1
            elif node.op in ("call", "Partial") and node.inputs[0] in graphs:
                found += total(graphs[node.inputs[0]])
        return found

    return total(program.main)


def key(node: Node) -> tuple:
    if node.op in ("Send", "Receive"):
        return node.op, None, node.type.nbytes
    members = node.attributes["group_rank_ids"]
    return node.op, members, node.type.nbytes * (len(members) if node.op == "ReduceScatter" else 1)


def parcels(program: Program) -> list:
    """[kind, group, bytes of each tensor] of what has a fusion number above 0, which says what travels together."""
    found: dict[tuple, list[int]] = {}
    for graph in (program.main, *program.functions.values()):
        for node in graph.nodes:
            if node.op in COMMUNICATION and node.attributes.get("fusion", 0) > 0:
                kind, members, size = key(node)
                found.setdefault((kind, members, node.attributes["fusion"]), []).append(size)
    return [[kind, members, sizes] for (kind, members, _), sizes in sorted(found.items())]


def kept(program: Program, rows: int) -> int | None:
    """Bytes of what the forward graphs of a micro-batch compute or are sent and their backward graphs read; weights do not count,
    nor what has only one number a row. None where forward and backward are one graph.
    """
    sizes = []
    for graph in program.functions.values():  # one, or one for each part of an interleaved stage
        for node in graph.nodes:
            if node.op == "Partial" and "◂" in node.inputs[0]:  # so MindSpore marks the gradient of a function
                made = {n.output: n.type for n in graph.nodes if n.op not in ("Load", "TensorMove")}
                made |= {name: graph.inputs[name] for name in received(program.main, graph)}
                read = set(node.inputs[1:]) & set(made)
                views = {n.output for n in graph.nodes if n.op == "Reshape" and n.inputs[0] in read}  # of what is kept anyway
                values = [made[name] for name in read - views]
                values = [t for t in values if isinstance(t, TensorType) and t.dtype in ("float32", "float16")]
                sizes += [t.nbytes for t in values if t.nbytes > 4 * rows]
    return sum(sizes) if sizes else None


def received(main: Graph, graph: Graph) -> list[str]:
    """The inputs of a graph that another stage has sent."""
    made = {node.output: node for node in main.nodes}

    def source(name: str) -> str:
        while name in made and made[name].op == "Depend":
            name = made[name].inputs[0]
        return made[name].op if name in made else ""

    call = next(node for node in main.nodes if node.op == "call" and node.inputs[0] == graph.name)
    return [name for name, value in zip(graph.inputs, call.inputs[1:], strict=True) if source(value) == "Receive"]


def main() -> None:
    chosen = sys.argv[1:] or CASES
    cases = json.loads(OUT.read_text(encoding="utf-8")) if sys.argv[1:] and OUT.exists() else {}
    for name in chosen:
        world, ranks, overrides = CASES[name]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "config.yaml"
            path.write_text(yaml.safe_dump(BASE), encoding="utf-8")
            config = load_config(path, overrides)
        plan, p = compile_plan(config, world, ranks, ["train"]), config.parallel
        rows = config.train.global_batch_size // p.dp // p.num_micro_batches * config.data.seq_length
        found = {}
        for rank in ranks:
            program = load(plan, rank, "train").program
            found[rank] = {"traffic": sorted(([*k, n] for k, n in traffic(program).items()), key=str),
                           "kept": kept(program, rows)}
            if name.endswith("parcels"):
                found[rank]["parcels"] = parcels(program)
        cases[name] = {"world_size": world, "overrides": overrides, "ranks": found}
        print(name, {rank: (sum(t[-1] for t in f["traffic"]), f["kept"]) for rank, f in found.items()}, flush=True)
        lines = [f"{json.dumps(n)}: {json.dumps(cases[n])}" for n in CASES if n in cases]
        OUT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
