"""python -m train.profile_report RUN [--rank N|all] [--step N]: where a run's time went, and what to try.

Reads runs/<name>/profile/step_<first>/ and metrics.jsonl; writes verdict.json, verdict.md and verdict.html beside the profile,
and TensorBoard's scalars and text into runs/<name>/tensorboard/profile/.
"""
import argparse
import json
import sys
from pathlib import Path

from parallel.config import TopologyConfig
from parallel.errors import UserError
from parallel.files import replace_text
from parallel.mesh import make_mesh, micro_batches
from train.config import RunConfig, load_config
from train.console import shown
from train.metrics_log import finite
from train.plans import sizes_of
from train.profiling import pages
from train.profiling.advice import advice
from train.profiling.reading import read_window, windows
from train.profiling.verdict import Context, verdict
from train.tensorboard import TensorBoard


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns the exit code."""
    about = __doc__.partition(": ")[2].partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m train.profile_report", description=about)
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's folder, runs/<name>")
    parser.add_argument("--rank", default="all", metavar="N|all", help="whose profile; default: all that were profiled")
    parser.add_argument("--step", type=int, metavar="N", help="the window that begins at step N; default: the newest")
    options = parser.parse_args(arguments)
    try:
        if options.rank != "all" and not options.rank.isdecimal():
            raise UserError(f"--rank {options.rank}: give a rank's number, or all")
        window, found = report(options.run, None if options.rank == "all" else int(options.rank), options.step)
        write(options.run, window, found)
        print(pages.markdown(found))
        print(f"written to {shown(window)}: verdict.json, verdict.md, verdict.html")
        for problem in found["problems"]:
            print(f"not used: {problem}", file=sys.stderr)
        return 0
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def report(run: Path, rank: int | None, step: int | None) -> tuple[Path, dict]:
    """(folder of the window, verdict with advice). Raises UserError."""
    if not (run / "config.yaml").is_file():
        raise UserError(f"{run}: no run here, config.yaml is missing: give the folder of a run, such as runs/smoke")
    found = windows(run)
    if step is not None and step not in found:
        raise UserError(f"--step {step}: no window begins there; there are those of step {', '.join(map(str, found))}")
    window = found[step] if step is not None else list(found.values())[-1]
    ranks, world_size, device = read_window(window, rank)
    rows, problems = metrics(run)
    context = context_of(run, load_config(run / "config.yaml"), world_size, device)
    told = verdict(ranks, world_size, device, rows, context, window)
    told["problems"] += problems
    if told["mfu"] is None:
        told["mfu_why"] = "parallel.topology.device_tflops is a card's: set this machine's" if told["model_flops_per_second"] \
            else "no steps"
    return window, told | {"advice": advice(told, context)}


def metrics(run: Path) -> tuple[list[dict], list[str]]:
    """(rows of metrics.jsonl, what of it was not used)."""
    path, rows, bad = run / "metrics.jsonl", [], []
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        return [], [f"{path}: cannot be read ({error.strerror})"]
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict):
            rows.append(row)
        else:
            bad.append(number)
    return rows, [f"{path}:{bad[0]}: half-written or no JSON ({len(bad)} line(s))"] if bad else []


def context_of(run: Path, config: RunConfig, world_size: int, device: str) -> Context:
    """What the verdict and the advice need of the config. On CPU the default peak, a card's, says nothing."""
    unit = config.parallel.tp * config.parallel.pp  # without marks the ranks that there are may be those that were profiled
    mesh = make_mesh(config.parallel, -(-world_size // unit) * unit, 0)
    p, t, topology = config.parallel, config.train, config.parallel.topology
    known = device == "Ascend" or topology.device_tflops != TopologyConfig().device_tflops
    count = micro_batches(p, t.global_batch_size, t.micro_batch_size, mesh.dp)
    settings = {
        "prefetch": config.data.prefetch, "num_workers": config.data.num_workers, "cache": config.data.cache,
        "log_samples": config.data.log_samples, "log_every_steps": t.log_every_steps, "health_every": config.health.every_steps,
        "micro_batch": t.global_batch_size // mesh.dp // count, "micro_batches": count, "level": config.precision.level,
        "recompute": p.recompute, "dropout": config.model.dropout, "tp": p.tp, "pp": p.pp, "fusion_mb": p.fusion_mb,
        "optimizer_sharding": p.optimizer_sharding}
    return Context(run.resolve().name, sizes_of(config, p.tp), t.global_batch_size * config.data.seq_length, topology,
                   topology.device_tflops if known else None, settings)


def write(run: Path, window: Path, found: dict) -> None:
    """The files, and TensorBoard in a folder of its own: opened anew in the run's, it would drop the later steps' curves."""
    try:
        replace_text(window / "verdict.json", json.dumps(finite(found), indent=1, ensure_ascii=False, allow_nan=False) + "\n")
        replace_text(window / "verdict.md", pages.markdown(found))
        replace_text(window / "verdict.html", pages.html(found))
        board = TensorBoard(run / "tensorboard" / "profile", max(found["steps"], default=1) - 1)
        pages.to_tensorboard(found, board)
        board.close()
    except OSError as error:
        raise UserError(f"{window}: the verdict cannot be written ({error.strerror})") from None


if __name__ == "__main__":
    sys.exit(main())
