"""Prove a parallel plan without a device: compile it, audit what the compiler made, reckon memory, traffic and time.

    python -m train.preflight --config run_scripts/configs/gpt_13b.yaml
    python -m train.preflight --config run_scripts/configs/gpt_13b.yaml --world-size 64 --advise

Exit codes: 0 the plan holds, 1 the audit found a violation, 2 the plan is refused.
"""
import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from parallel import config_file
from parallel.audit import audit, compiled_communication
from parallel.config import TopologyConfig
from parallel.cost.advice import advise
from parallel.cost.communication import communication
from parallel.cost.estimate import estimate, fused, joined
from parallel.cost.memory import budget, stage_memory
from parallel.cost.parameters import parameter_count
from parallel.cost.sizes import Plan, Sizes
from parallel.errors import UserError
from parallel.files import check_file, replace_text
from parallel.mesh import Mesh
from train.config import RunConfig, load_config
from train.console import say
from train.plans import given, kinds, plan_of, planned, resolved, sizes_of

SHOWN = 5  # plans that --advise lists


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m train.preflight", description=__doc__.splitlines()[0])
    config_file.add_arguments(parser)
    parser.add_argument("--world-size", type=int, metavar="N", help="ranks of the job, where parallel.dp is auto")
    parser.add_argument("--ranks", default="stages", metavar="RANKS",
                        help="stages: one rank of each stage (default); kinds: one of each kind of stage (first, last, those "
                             "between by their number of layers); all; or numbers, 0,5,9")
    parser.add_argument("--advise", action="store_true", help="compile nothing; rank the plans for --world-size devices")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write everything as JSON")
    args = parser.parse_args(arguments)
    try:
        check_file("--report", args.report)
        config = load_config(args.config, args.overrides)
        return advice(config, args) if args.advise else preflight(config, args)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def preflight(config: RunConfig, args: argparse.Namespace) -> int:
    """Compile, audit, report."""
    config, mesh, count = planned(config, args.world_size)
    sizes, plan = plan_of(config, mesh, count)
    ranks = chosen(args.ranks, plan)
    header(sizes, plan, config)
    from train import dry_compile
    start, peak = time.time(), 0
    say(f"compiling rank {', '.join(map(str, ranks[:8]))}{' and so on' if len(ranks) > 8 else ''}: minutes each where the model "
        "is large, nothing where they are from last time")

    def compiled(outcome):
        nonlocal peak
        peak = max(peak, outcome.peak_rss_bytes)
        say(f"compiled rank {outcome.rank} (stage {outcome.rank // (mesh.dp * mesh.tp)}) in {outcome.seconds:.0f} s, "
            f"{outcome.peak_rss_bytes / 1e9:.1f} GB")

    try:
        folder = dry_compile.compile_plan(config, mesh.world_size, ranks, kinds(config), compiled)
    except dry_compile.CompileError as error:
        print(f"error: MindSpore refuses this plan: {error}", file=sys.stderr)
        return 2
    seconds, findings, stages = time.time() - start, [], {}
    for rank in ranks:
        one = dry_compile.load(folder, rank, "train")
        of_rank = Mesh(mesh.dp, mesh.tp, mesh.pp, rank, mesh.sequence_parallel)
        _, here = plan_of(config, of_rank, count)
        findings += audit(rank, one.program, one.strategies, sizes, here)
        stages[rank] = stage_report(sizes, here, one)
    for line in table(sizes, plan, config, stages, findings):
        say(line)
    if args.report:
        result = {"mesh": {"dp": mesh.dp, "tp": mesh.tp, "pp": mesh.pp}, "ok": not findings, "parameters": parameter_count(sizes),
                  "compile_seconds": seconds, "compile_peak_bytes": peak, "findings": [asdict(f) for f in findings],
                  "ranks": stages, "estimate": asdict(estimate(sizes, plan, config.parallel.topology))}
        replace_text(args.report, json.dumps(result, indent=1) + "\n")
    return 1 if findings else 0


def chosen(which: str, plan: Plan) -> list[int]:
    """The ranks to compile."""
    mesh, per_stage = plan.mesh, plan.mesh.dp * plan.mesh.tp
    if which == "all":
        return list(range(mesh.world_size))
    if which == "stages":
        return [stage * per_stage for stage in range(mesh.pp)]
    if which == "kinds":
        return sorted(stages[0] * per_stage for stages in plan.kinds().values())
    try:
        ranks = [int(n) for n in which.split(",")]
    except ValueError:
        raise UserError(f"--ranks {which}: stages, kinds, all, or numbers such as 0,5,9") from None
    if wrong := [r for r in ranks if not 0 <= r < mesh.world_size]:
        raise UserError(f"--ranks {which}: there is no rank {wrong[0]}, the ranks are 0 to {mesh.world_size - 1}")
    return sorted(set(ranks))


def stage_report(sizes: Sizes, plan: Plan, compiled) -> dict:
    """What one rank holds and sends."""
    held = {"weights": 0, "moments": 0, "accumulators": 0, "other": 0}
    optimized = {name.partition(".")[2] for name in compiled.program.main.parameters if name.startswith("moment")}
    for name, kind in compiled.program.main.parameters.items():
        part = "moments" if name.startswith("moment") else "accumulators" if name.startswith("accu_grads") \
            else "weights" if name in optimized else "other"
        held[part] += kind.nbytes
    closed = stage_memory(sizes, plan, plan.mesh.stage)
    counts, cells = compiled_communication(compiled.program, plan)
    traffic = [{"kind": u.kind, "group": u.group, "count": n, "bytes": u.bytes, "cells": dict(cells[u])}
               for u, n in sorted(counts.items(), key=lambda item: -item[1] * item[0].bytes)]
    return {"stage": plan.mesh.stage, "layers": plan.num_blocks(plan.mesh.stage), "compiled_memory": held,
            "memory": {**asdict(closed), "total": closed.total}, "communication": traffic,
            "after_fusion": sum(t.count for t in fused(communication(sizes, plan, plan.mesh.stage), plan))}


def header(sizes: Sizes, plan: Plan, config: RunConfig) -> None:
    """What is being proved."""
    say(f"plan   {plan}; {plan.mesh.world_size} ranks")
    say(describe(sizes))
    say(f"stages of {', '.join(map(str, plan.stage_layers))} layers")
    for line in short_samples(config):
        say(line)


def short_samples(config: RunConfig) -> list[str]:
    """A note where the model could read further than its samples go: there are two keys."""
    length, longest = config.data.seq_length, config.model.seq_length
    return [f"note   samples have data.seq_length={length} tokens, the model could read model.seq_length={longest}: set both for "
            "longer ones"] if length < longest else []


def describe(sizes: Sizes) -> str:
    """The model in one line."""
    return (f"model  {parameter_count(sizes) / 1e6:,.1f} million parameters: {sizes.layers} layers, hidden {sizes.hidden}, "
            f"{sizes.heads} heads, vocab {sizes.vocab}, {sizes.seq} tokens a sample; attention by "
            f"{'the fused kernel' if sizes.flash else 'plain kernels'}")


def cluster(topology: TopologyConfig, product_bytes: int) -> list[str]:
    """What is assumed of the machines; product_bytes: of an element that a product computes with."""
    share = topology.compute_efficiency
    return [f"cluster (parallel.topology): nodes of {topology.ranks_per_node} cards of {topology.device_memory_gb:g} GB and "
            f"{topology.device_tflops:g} TFLOP/s; {topology.node_bandwidth_gbs:g} GB/s and {topology.node_latency_us:g} us in a "
            f"node, {topology.network_bandwidth_gbs:g} GB/s and {topology.network_latency_us:g} us between nodes",
            f"assumed: matrix products reach {share:.0%} of the 16-bit peak (compute_efficiency)"
            + ("" if product_bytes < 4 else ", and in float32, as here, a quarter of that")]


def table(sizes: Sizes, plan: Plan, config: RunConfig, stages: dict[int, dict], findings: list) -> list[str]:
    """The report as lines of text."""
    topology = config.parallel.topology
    lines = ["memory of a rank (GB): as compiled, activations and the rest of the total by the closed form",
             f"{'rank':>6} {'stage':>5} {'layers':>6} {'weights':>8} {'moments':>8} {'accum.':>8} {'activ.':>8} {'total':>8}"]
    for rank, s in stages.items():
        held, closed = s["compiled_memory"], s["memory"]
        figures = [held["weights"], held["moments"], held["accumulators"], closed["activations"], closed["total"]]
        lines.append(f"{rank:6d} {s['stage']:5d} {s['layers']:6d} " + " ".join(f"{x / 1e9:8.3f}" for x in figures))
    lines.append("communication of a rank in a step, before fusion")
    for rank, s in stages.items():
        totals: dict[str, list] = {}
        for t in s["communication"]:
            entry = totals.setdefault(f"{t['kind']} over {t['group']}", [0, 0])
            entry[0] += t["count"]
            entry[1] += t["count"] * t["bytes"]
        lines += [f"{rank:6d} {n:6d} x {name}, " + (f"{size / 1e6:,.3f} MB" if size < 1e9 else f"{size / 1e9:,.1f} GB")
                  for name, (n, size) in totals.items()]
    fullest, limit = max(s["memory"]["total"] for s in stages.values()), budget(topology)
    lines.append(f"memory {fullest / 1e9:.1f} GB on the fullest of these ranks, of {limit / 1e9:.1f} GB "
                 f"({topology.device_memory_gb:g} GB less a reserve){'' if fullest <= limit else ': DOES NOT FIT'}")
    expected = estimate(sizes, plan, topology)
    lines.append(str(expected))
    if expected.overlap.parcels:
        parcel = "one parcel for all of a kind" if joined(plan) else f"parcels of {plan.fusion_mb} MB"
        lines.append(f"gradients and gathered weights, {parcel}: {expected.overlap}")
    lines += [f"VIOLATION {f}" for f in findings]
    lines.append(f"{len(findings)} violation(s)" if findings else
                 "audit: all operators are cut as planned, and every collective is one of the plan's")
    return lines


def advice(config: RunConfig, args: argparse.Namespace) -> int:
    """Rank the plans for a number of devices."""
    if args.world_size is None:
        raise UserError("--advise: say for how many devices, --world-size N")
    sizes = sizes_of(resolved(config), 1)
    found = advise(sizes, args.world_size, config.train.global_batch_size, config.parallel.topology,
                   config.parallel.fusion_mb, **given(config))
    for line in [describe(sizes), *cluster(config.parallel.topology, given(config)["product_bytes"]),
                 *short_samples(config)]:
        say(line)
    say(f"{len(found)} plans fit; the best {min(SHOWN, len(found))}, by estimate:")
    for i, c in enumerate(found[:SHOWN], 1):
        say(f"{i}. {c.plan}; {c.memory_bytes / 1e9:.1f} GB; {c.estimate.tokens_per_second:,.0f} tokens/s, "
            f"MFU {c.estimate.mfu:.0%}")
    for line in found[0].why:
        say(f"   {line}")
    say(f"to prove the first, without --advise: --set {' '.join(settings(found[0].plan, config))}")
    if args.report:
        plans = [{"plan": str(c.plan), "memory_bytes": c.memory_bytes, "estimate": asdict(c.estimate), "why": c.why}
                 for c in found]
        replace_text(args.report, json.dumps(plans, indent=1) + "\n")
    return 0


def settings(plan: Plan, config: RunConfig) -> list[str]:
    """What to --set for a plan of the advice, besides what the config has already."""
    parallel = {"dp": plan.mesh.dp, "tp": plan.mesh.tp, "pp": plan.mesh.pp, "num_micro_batches": "auto", "virtual_stages": 1,
                "stage_layers": "auto", "sequence_parallel": plan.mesh.sequence_parallel, "recompute": plan.recompute,
                "recompute_layers": "all", "optimizer_sharding": plan.optimizer_sharding}
    wanted = [*(("parallel", *item) for item in parallel.items()), ("train", "micro_batch_size", plan.micro_batch_size)]
    return [f"{section}.{key}={str(value).lower()}" for section, key, value in wanted
            if getattr(getattr(config, section), key) != value]


if __name__ == "__main__":
    sys.exit(main())
