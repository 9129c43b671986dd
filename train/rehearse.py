"""Prove a parallel plan on this machine: all ranks of a small model in lockstep, against one card.

    python -m train.rehearse --config run_scripts/configs/gpt_13b.yaml --set parallel.dp=2

Exit codes: 0 all steps agree, 1 they do not, or the ranks cannot be executed together, 2 the plan is refused.
"""
import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from parallel import config_file
from parallel.errors import UserError
from parallel.files import replace_text
from parallel.lockstep.errors import LockstepError
from parallel.mesh import Mesh
from train.config import RunConfig, load_config
from train.console import say
from train.plans import kinds, planned


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m train.rehearse", description=__doc__.splitlines()[0])
    config_file.add_arguments(parser)
    parser.add_argument("--world-size", type=int, metavar="N", help="ranks of the job, where parallel.dp is auto")
    parser.add_argument("--steps", type=int, default=3, metavar="N", help="optimizer steps (default 3)")
    parser.add_argument("--overflow-at", type=int, default=2, metavar="N",
                        help="the step in which a gradient of the last rank is made infinite (default 2; 0: none)")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write all figures as JSON")
    args = parser.parse_args(arguments)
    try:
        if args.steps < 1 or args.overflow_at < 0:
            raise UserError(f"--steps {args.steps} --overflow-at {args.overflow_at}: at least 1 step, and 0 for no overflow")
        config = load_config(args.config, args.overrides)
        config, mesh, count = planned(config, args.world_size)
        return rehearse(config, mesh, count, args)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def rehearse(config: RunConfig, mesh: Mesh, num_micro_batches: int, args: argparse.Namespace) -> int:
    """Scale down, compile, execute, report."""
    from train import dry_compile, rehearsal  # MindSpore: not before the plan is known to be good
    from train.scaled import scaled

    small = scaled(config, mesh, num_micro_batches, {o.partition("=")[0].strip() for o in args.overrides})
    m = small.model
    say(f"mesh {mesh}, {mesh.world_size} ranks; {num_micro_batches} micro-batch(es) of {small.train.micro_batch_size} x "
        f"{small.data.seq_length} tokens; {m.num_layers} layers, hidden {m.hidden_size}, {m.num_heads} heads, "
        f"vocab {m.vocab_size}")
    try:
        folder = dry_compile.compile_plan(small, mesh.world_size, range(mesh.world_size), kinds(small),
                                          lambda o: say(f"compiled rank {o.rank} in {o.seconds:.0f} s"))
    except dry_compile.CompileError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        result = rehearsal.rehearse(small, mesh, folder, args.steps, args.overflow_at or None)
    except LockstepError as error:  # a deadlock goes on with a line for each rank that waits
        print(f"error: the ranks cannot be executed together: {error}", file=sys.stderr)
        return 1
    for line in table(result):
        say(line)
    if args.report:
        replace_text(args.report, json.dumps(report(result), indent=1) + "\n")
    return 0 if result.ok else 1


def table(result) -> list[str]:
    """A line for each step, and the verdict."""
    lines = [f"{'step':>4} {'loss':>10} {'grad_norm':>10} {'scale':>8}  {'d loss':>8} {'d norm':>8} {'d params':>8}  "
             "worst parameter"]
    for number, s in enumerate(result.steps, 1):
        f, d = s.figures, s.differences
        lines.append(f"{number:4d} {f['loss']:10.6f} {f['grad_norm']:10.6f} {f['loss_scale']:8.0f}  {d['loss']:8.1e} "
                     f"{d['grad_norm']:8.1e} {s.parameter_difference:8.1e}  {s.parameter}"
                     f"{'  skipped: overflow' if s.skipped else ''}{'' if s.ok else '  DIFFERS'}")
    lines.append(f"evaluation: loss sums of samples differ by {result.evaluation_difference:.1e} at most")
    lines.append("every rank agrees with one card" if result.ok else "the ranks do NOT compute what one card computes")
    return lines


def report(result) -> dict:
    """All figures, for machines."""
    return {"mesh": {"dp": result.mesh.dp, "tp": result.mesh.tp, "pp": result.mesh.pp}, "ok": result.ok,
            "evaluation_difference": result.evaluation_difference,
            "steps": [{**asdict(s), "ok": s.ok} for s in result.steps]}


if __name__ == "__main__":
    sys.exit(main())
