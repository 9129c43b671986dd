"""Predict step time, MFU and weak scaling of a config on clusters of several sizes; nothing is compiled.

    python -m train.weak_scaling --config run_scripts/configs/gpt_1b3.yaml
    python -m train.weak_scaling --config run_scripts/configs/gpt_13b.yaml --cards 64,128,256 --best --report scaling.json

The cluster is `parallel.topology`. Each card has the same work everywhere, that of train.global_batch_size in the config.
Exit codes: 0 predicted, 2 there is no number of cards for which anything could be predicted.
"""
import argparse
import json
import sys
from dataclasses import asdict
from fractions import Fraction
from pathlib import Path

from parallel import config_file
from parallel.cost.estimate import joined
from parallel.cost.parameters import parameter_count
from parallel.cost.scaling import Scale, best_scaling, weak_scaling
from parallel.errors import UserError
from parallel.files import check_file, replace_text
from train.config import RunConfig, load_config
from train.console import say
from train.plans import given, plan_of, planned
from train.preflight import cluster, describe

CARDS = "8,64,256,1024"


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m train.weak_scaling", description=__doc__.splitlines()[0])
    config_file.add_arguments(parser)
    parser.add_argument("--cards", default=CARDS, metavar="N,...", help=f"sizes of the cluster (default {CARDS})")
    parser.add_argument("--world-size", type=int, metavar="N", help="cards of the config's batch, where parallel.dp is auto")
    parser.add_argument("--best", action="store_true",
                        help="on each number of cards the fastest plan that fits; else the config's, with another dp")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write everything as JSON")
    args = parser.parse_args(arguments)
    try:
        check_file("--report", args.report)
        return predict(load_config(args.config, args.overrides), args)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def predict(config: RunConfig, args: argparse.Namespace) -> int:
    """Reckon, print, report."""
    cards = numbers(args.cards)
    config, mesh, count = planned(config, args.world_size)
    sizes, plan = plan_of(config, mesh, count)
    topology, formats = config.parallel.topology, given(config)
    fusion_mb = config.parallel.fusion_mb
    if args.best:
        work = Fraction(config.train.global_batch_size, mesh.world_size)
        found, refused = best_scaling(sizes, work, topology, cards, fusion_mb, **formats)
    else:
        found, refused = weak_scaling(sizes, plan, topology, cards, fusion_mb)
    if not found:
        raise UserError("--cards " + "; ".join(f"{n}: {why}" for n, why in refused.items()))
    for line in [describe(sizes), *cluster(topology, formats["product_bytes"]), *table(found),
                 *(f"{n:6,d} {why}" for n, why in refused.items())]:
        say(line)
    if args.report:
        result = {"parameters": parameter_count(sizes), "activation_bytes": formats["activation_bytes"],
                  "topology": topology.model_dump(), "cards": [entry(s) for s in found], "refused": refused}
        replace_text(args.report, json.dumps(result, indent=1) + "\n")
    return 0


def numbers(text: str) -> list[int]:
    """The sizes that were asked for."""
    try:
        found = [int(n) for n in text.split(",")]
    except ValueError:
        found = [0]
    if min(found) < 1:
        raise UserError(f"--cards {text}: numbers of cards, such as {CARDS}")
    return found


def table(found: list[Scale]) -> list[str]:
    """One line for each number of cards; efficiency is the tokens/s of a card against the first line's."""
    lines = [f"{'cards':>6} {'dp x tp x pp':>13} {'micro':>7} {'batch':>7} {'step s':>8} {'tokens/s':>12} {'MFU':>5} "
             f"{'effic.':>6} {'comp:comm:wait':>14} {'parcel MB':>9} {'shown s':>8} {'GB':>6}"]
    for s in found:
        mesh, e = s.plan.mesh, s.estimate
        cut, micro = f"{mesh.dp} x {mesh.tp} x {mesh.pp}", f"{s.plan.num_micro_batches} x {s.plan.micro_batch_size}"
        parcel = "all" if joined(s.plan) else e.fusion_mb
        shares = ":".join(f"{x:.1f}" for x in e.shares)
        lines.append(f"{s.cards:6,d} {cut:>13} {micro:>7} {s.global_batch_size:7,d} {e.step_seconds:8.3g} "
                     f"{e.tokens_per_second:12,.0f} {e.mfu:5.1%} {s.efficiency:6.1%} {shares:>14} {parcel:>9} "
                     f"{e.overlap.shown:8.3g} {s.memory_bytes / 1e9:6.1f}{'' if s.fits else ' DOES NOT FIT'}")
    return lines


def entry(s: Scale) -> dict:
    """One number of cards, for the report."""
    mesh = s.plan.mesh
    return {"cards": s.cards, "plan": str(s.plan), "dp": mesh.dp, "tp": mesh.tp, "pp": mesh.pp,
            "micro_batch_size": s.plan.micro_batch_size, "num_micro_batches": s.plan.num_micro_batches,
            "global_batch_size": s.global_batch_size, "memory_bytes": s.memory_bytes, "fits": s.fits,
            "efficiency": s.efficiency, "estimate": asdict(s.estimate)}


if __name__ == "__main__":
    sys.exit(main())
