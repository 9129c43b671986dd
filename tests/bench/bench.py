"""What a run costs on this machine, as a table: the step against PyTorch, start and compilation, shares of a whole run.

    bash run_scripts/bench.sh [--quick] [--rounds N] [--out FOLDER]

Everything that is compared runs in turn, A B A B, by the commands that users run, all monitors on. --quick: one round, the
smaller model, short runs. FOLDER (runs/bench) gets bench.json and bench.md. The machine should do nothing else.
"""
import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[2]
# layers x hidden: heads, seq, samples a step
SIZES = {"4 x 256": (4, 256, 4, 256, 8), "6 x 512": (6, 512, 8, 512, 4)}
VOCAB, STEPS = 8192, 20
NO_COMPILER = {"CXX": "/nonexistent"}  # the pure form of the CPU's cells


def train(folder: Path, name: str, overrides: list[str], env: dict[str, str] | None = None) -> dict:
    """report.json of a run by the training command, with "wall_seconds", and "rows", what metrics.jsonl has."""
    command = [sys.executable, "-m", "train", "--config", str(ROOT / "run_scripts" / "configs" / "smoke.yaml"), "--set",
               f"run.dir={folder}", f"run.name={name}", "ckpt.resume=none", *overrides]
    began = time.perf_counter()
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "GLOG_v": "3", **(env or {})})
    wall = time.perf_counter() - began
    report = json.loads((folder / name / "report.json").read_text())
    rows = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
    return {**report, "wall_seconds": wall, "rows": rows}


def model(size: str, folder: Path) -> list[str]:
    """Overrides for a model, its data in a folder of its own."""
    layers, hidden, heads, seq, batch = SIZES[size]
    return [f"model.num_layers={layers}", f"model.hidden_size={hidden}", f"model.num_heads={heads}", f"model.seq_length={seq}",
            f"data.seq_length={seq}", f"data.tokenizer.vocab_size={VOCAB}", f"data.prepared_dir={folder / f'prepared-{seq}'}",
            f"train.global_batch_size={batch}"]


def our_step(size: str, folder: Path, steps: int, name: str, env: dict[str, str] | None = None) -> float:
    """Seconds of a step, the median over the log intervals."""
    report = train(folder, name, [*model(size, folder), f"train.stop_at_step={steps}", "train.log_every_steps=5",
                                  "eval.stage.enabled=false", "eval.deep.enabled=false", "ckpt.every_steps=1000000",
                                  "ckpt.every_minutes=null"], env)
    return statistics.median(row["step_seconds"] for row in report["rows"] if row["step"] > 10)


def peer_step(size: str, mode: str, steps: int) -> tuple[float, float]:
    """Seconds of the peer's step, the median after five; and what a matrix product reaches here, GFLOP/s."""
    layers, hidden, heads, seq, batch = SIZES[size]
    command = [sys.executable, str(Path(__file__).with_name("peer_torch.py")),
               mode, *map(str, (layers, hidden, heads, VOCAB, seq, batch, steps))]
    out = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return statistics.median(out["step_seconds"][5:]), out["matmul_gflops"]


def steps(folder: Path, quick: bool, count: int) -> list[dict]:
    """The step of both forms and of the peer, eager and compiled, in turn, `count` times."""
    found = []
    for size in list(SIZES)[:1 if quick else None]:
        layers, hidden, heads, seq, batch = SIZES[size]
        flops = batch * seq * (6 * (12 * layers * hidden**2 + VOCAB * hidden) + 12 * layers * seq * hidden)
        rounds: dict[str, list[float]] = {"compiled": [], "pure": [], "eager": [], "torch.compile": []}
        peaks = []
        for r in range(count):
            rounds["compiled"].append(our_step(size, folder, STEPS, f"compiled-{hidden}-{r}"))
            for peer, mode in (("eager", "eager"), ("torch.compile", "compiled")):
                seconds, peak = peer_step(size, mode, STEPS)
                rounds[peer].append(seconds)
                peaks.append(peak)
            rounds["pure"].append(our_step(size, folder, STEPS, f"pure-{hidden}-{r}", NO_COMPILER))
        for form in ("compiled", "pure"):
            seconds = statistics.median(rounds[form])
            ratios = {peer: [theirs / ours for theirs, ours in zip(rounds[peer], rounds[form], strict=True)]
                      for peer in ("eager", "torch.compile")}
            found.append({"model": f"{size}, seq {seq}", "form": form, "tokens_per_second": batch * seq / seconds,
                          "torch_tokens_per_second": {peer: batch * seq / statistics.median(rounds[peer]) for peer in ratios},
                          "gflops": flops / seconds / 1e9, "peak_gflops": max(peaks), "ratios": ratios})
    return found


def starts(folder: Path, quick: bool) -> list[dict]:
    """From the command to the end of the first step by depth: cold, and from MindSpore's compile cache."""
    common = ["train.stop_at_step=1", "eval.stage.enabled=false", "eval.deep.enabled=false", "ckpt.every_steps=1000000",
              f"data.prepared_dir={folder / 'prepared'}"]
    env = {"XDG_CACHE_HOME": str(folder / "cache")}
    train(folder, "prepare", common, env)  # data and operators, which are made once
    found = []
    for layers in (4, 12) if quick else (4, 12, 24, 48):
        cold, cached = (train(folder, f"{name}-{layers}", [f"model.num_layers={layers}", "run.compile_cache=true", *common], env)
                        for name in ("cold", "cached"))
        found.append({"layers": layers, "wall_seconds": cold["wall_seconds"], "compile_seconds": cold["compile_seconds"],
                      "cached_wall_seconds": cached["wall_seconds"], "peak_memory_bytes": cold["peak_memory_bytes"]})
    return found


def whole(folder: Path, quick: bool) -> dict:
    """Where the time of the smoke run goes."""
    report = train(folder, "whole", [f"data.prepared_dir={folder / 'prepared'}", *["train.total_steps=100"] * quick])
    keys = ("steps", "tokens_per_second", "eval_time_fraction", "health_time_fraction", "checkpoint_time_fraction",
            "data_wait_fraction", "peak_memory_bytes", "wall_seconds")
    return {key: report[key] for key in keys}


def table(result: dict) -> str:
    """As Markdown."""
    lines = ["| model | CPU operators | tokens/s | of PyTorch eager | of torch.compile | GFLOP/s, of a matrix product's |",
             "|---|---|---|---|---|---|"]
    for one in result["steps"]:
        theirs = (f"{statistics.median(ratios):.2f} ({', '.join(f'{r:.2f}' for r in ratios)}) of "
                  f"{one['torch_tokens_per_second'][peer]:,.0f}" for peer, ratios in one["ratios"].items())
        cells = (one["model"], one["form"], f"{one['tokens_per_second']:,.0f}", *theirs,
                 f"{one['gflops']:.0f}, {one['gflops'] / one['peak_gflops']:.0%}")
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "The ratios are medians over rounds in turn (each round in brackets).", "",
              "| layers | command to end of step 1, s | of it compiling, s | with the compile cache, s | peak memory, GB |",
              "|---|---|---|---|---|"]
    for one in result["starts"]:
        lines.append(f"| {one['layers']} | {one['wall_seconds']:.1f} | {one['compile_seconds']:.1f} | "
                     f"{one['cached_wall_seconds']:.1f} | {one['peak_memory_bytes'] / 1e9:.2f} |")
    w = result["whole"]
    lines += ["", f"Smoke run, {w['steps']} steps in {w['wall_seconds']:.0f} s at {w['tokens_per_second']:,.0f} tokens/s: "
              f"evaluation {w['eval_time_fraction']:.1%} of the time, looking at layers {w['health_time_fraction']:.1%}, "
              f"checkpoints {w['checkpoint_time_fraction']:.1%}, waiting for data {w['data_wait_fraction']:.1%}; "
              f"{w['peak_memory_bytes'] / 1e9:.2f} GB at most.",
              "", f"{result['machine']}; {result['versions']}; `{result['command']}`."]
    return "\n".join(lines) + "\n"


def processor() -> str:
    """Its name and how many cores this process may use."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    return f"{name}, {len(os.sched_getaffinity(0))} cores"


def main() -> None:
    parser = argparse.ArgumentParser("bash run_scripts/bench.sh", description="What a run costs on this machine.")
    parser.add_argument("--quick", action="store_true", help="one round, the smaller model, short runs")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="how often each runs (default: 3; --quick: 1)")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "bench", help="folder for bench.json and bench.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        result = {"machine": processor(), "versions": ", ".join(f"{p} {version(p)}" for p in ("mindspore", "numpy", "torch")),
                  "command": " ".join(("bash run_scripts/bench.sh", *sys.argv[1:])),
                  "steps": steps(folder, options.quick, 1 if options.quick else options.rounds),
                  "starts": starts(folder, options.quick), "whole": whole(folder, options.quick)}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "bench.json").write_text(json.dumps(result, indent=1) + "\n")
    (options.out / "bench.md").write_text(table(result))
    print(table(result), end="")


if __name__ == "__main__":
    main()
