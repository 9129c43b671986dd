"""Figures that tests do not hold to a limit, measured as ratios in one run.

    python tests/bench/figures.py seek     # time to the first batch at consumed_samples 0 and at 10,000,000, in turn
    python tests/bench/figures.py read     # `python -m data tune` at seq 1024 and 128, on a text of 20 MB
    python tests/bench/figures.py prepare [MB] [SEQ] [CORES] # time and memory of each stage (text of 60 MB, seq 1024, all cores)
    python tests/bench/figures.py smoke    # both scripts' smoke run: duration, shares of time, memory, perplexity
    python tests/bench/figures.py monitors # what watches a smoke run, of the time of its steps: with and without, in turn
    python tests/bench/figures.py save     # a checkpoint of 200 million parameters with moments, against the bare disk, in turn

`seek` prepares a synthetic text of 8 million words: some 600,000 samples, so that 10,000,000 lies in a later epoch. `read` and
`prepare` take lines of the shipped text, English and Chinese, in a random order.
"""
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]


def save(folder: Path, rounds: int = 6) -> None:
    from mindspore import Parameter, Tensor

    from ckpt import store, writing
    from parallel.files import sha256
    from train.state import HostCopies

    # 24 blocks' worth of matrices: 200 million values, and twice as many moments.
    weights = {f"w{i}": np.full((2048, 4096), i, np.float32) for i in range(24)}
    moments = {f"moment{k}.{name}": a for k in (1, 2) for name, a in weights.items()}
    checkpoint = store.Checkpoint({"model": weights, "optimizer": moments}, {"step": 1, "run_id": "bench"}, "{}\n")
    arrays = [*weights.values(), *moments.values()]
    copies = [np.zeros_like(a) for a in arrays]
    parameters, host = [Parameter(Tensor(a), name=f"p{i}") for i, a in enumerate(arrays)], HostCopies()
    times: dict[str, list[float]] = {}

    def timed(name: str, work) -> None:
        began = time.perf_counter()
        work()
        times.setdefault(name, []).append(time.perf_counter() - began)

    def bare_write() -> None:
        with open(folder / "bare", "wb", buffering=0) as file:
            for a in arrays:
                file.write(a)
            os.fsync(file.fileno())

    def bare_read_and_hash() -> None:
        read = [np.fromfile(folder / "bare", np.float32, a.size, offset=i * a.nbytes) for i, a in enumerate(arrays)]
        sha256(folder / "bare")
        del read

    def copy() -> None:
        for a, b in zip(arrays, copies, strict=True):
            np.copyto(b, a)

    writes = ("bare write and fsync", bare_write), ("save", lambda: writing.save(folder / "ckpt", checkpoint, 1))
    reads = (("bare read, then hash", bare_read_and_hash),
             ("load", lambda: [[*p.values()] for p in store.load(folder / "ckpt" / "step_00000001").tensors.values()]))
    pauses = ("copy", copy), ("pause", lambda: [host.take(p) for p in parameters])
    pauses[1][1]()
    for turn in range(rounds):  # in turn first: who touches memory first pays for it
        for pair in (pauses, writes, reads):
            for name, work in pair[::-1] if turn % 2 else pair:
                timed(name, work)
    nbytes = sum(a.nbytes for a in arrays)
    for name, spent in times.items():
        print(f"{name:22} {nbytes / statistics.median(spent) / 1e6:8,.0f} MB/s   {[round(s, 2) for s in spent]} s")
    median = {name: statistics.median(spent) for name, spent in times.items()}
    print(f"save at {median['bare write and fsync'] / median['save']:.0%} of the disk's speed, "
          f"load at {median['bare read, then hash'] / median['load']:.0%} of reading and hashing; "
          f"training pauses for {median['pause'] / median['copy']:.2f} of a copy")


def seek(folder: Path, rounds: int = 5) -> None:
    from data.config import DataConfig
    from data.dataset import train_dataset
    from data.order import SampleOrder
    from data.prepare import prepare

    rng = np.random.RandomState(0)
    words = np.array([f"word{i}" for i in range(500)])
    with open(folder / "text.txt", "w", encoding="utf-8") as f:
        for _ in range(800):
            f.write(" ".join(words[rng.randint(0, 500, 10_000)]) + "\n")
    config = DataConfig(path=folder / "text.txt", prepared_dir=folder / "prepared", seq_length=16, tokenizer={"vocab_size": 280})
    manifest = prepare(config)
    samples = manifest.sets["train"].samples
    order, times = SampleOrder(samples, 1), {0: [], 10_000_000: []}
    for _ in range(rounds):
        for start, spent in times.items():
            began = time.perf_counter()
            dataset = train_dataset(manifest, config, order, start, 100_000, 64, 0, 1)
            next(iter(dataset.create_tuple_iterator(num_epochs=1, output_numpy=True)))
            spent.append(time.perf_counter() - began)
    at_0, at_10m = (statistics.median(spent) for spent in times.values())
    print(f"{samples:,} samples; first batch after {at_0 * 1e3:.0f} ms at 0, {at_10m * 1e3:.0f} ms at 10,000,000: "
          f"ratio {at_10m / at_0:.2f} (medians of {rounds}, in turn)")


def mixed_text(path: Path, megabytes: float) -> None:
    names = ("train_en.txt", "train_zh.txt", "long_lines_en.txt")
    lines = [line for name in names for line in (ROOT / "data" / "corpus" / name).read_text().splitlines() if line.strip()]
    rng = random.Random(0)
    with open(path, "w", encoding="utf-8") as f:
        while f.tell() < megabytes * 1e6:
            f.write("\n".join(rng.choices(lines, k=10_000)) + "\n")


def read(folder: Path) -> None:
    from data.config import DataConfig
    from data.prepare import prepare
    from data.tune import tune

    mixed_text(folder / "text.txt", 20)
    for seq_length in (1024, 128):
        config = DataConfig(path=folder / "text.txt", prepared_dir=folder / f"prepared-{seq_length}", seq_length=seq_length)
        tune(prepare(config), config, batch_size=8, seconds=2.0)


def prepare(folder: Path, megabytes: int = 60, seq_length: int = 1024, cores: int | None = None) -> None:
    import psutil

    import data.prepare
    from data.config import DataConfig

    if cores:
        os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:cores])
    cores = len(os.sched_getaffinity(0))
    mixed_text(folder / "text.txt", megabytes)
    process, peaks, done = psutil.Process(), {"": 0}, threading.Event()
    stages = {"tokenizer": Part(data.prepare._Preparation, "_tokenizer"), "encode": Part(data.prepare._Preparation, "_encode"),
              "write": Part(data.prepare, "run_jobs"), "hash samples": Part(data.prepare._Preparation, "_describe"),
              "hash text": Part(data.prepare._Preparation, "_inputs")}

    def watch() -> None:
        while not done.wait(0.1):
            resident = 0
            for one in (process, *process.children(recursive=True)):
                try:
                    resident += one.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
            stage = next((name for name, part in stages.items() if part.running), "")
            peaks[stage] = max(peaks.get(stage, 0), resident)

    watcher = threading.Thread(target=watch)
    watcher.start()
    began, cpu = time.perf_counter(), cpu_seconds()
    try:
        data.prepare.prepare(DataConfig(path=folder / "text.txt", prepared_dir=folder / "prepared", seq_length=seq_length))
    finally:
        done.set()
        watcher.join()
    seconds, cpu, size = time.perf_counter() - began, cpu_seconds() - cpu, (folder / "text.txt").stat().st_size / 1e6
    for name, part in stages.items():
        print(f"  {name:15} {sum(part.seconds):6.1f} s, {part.cpu_seconds:6.1f} s of cores, "
              f"at most {peaks.get(name, 0) / 1e6:,.0f} MB resident in all processes")
    print(f"{size:,.0f} MB at seq {seq_length} in {seconds:.1f} s: {size / seconds:.2f} MB/s on {cores} cores; {cpu:.1f} s of "
          f"cores: {size / cpu:.2f} MB/s each; at most {max(peaks.values()) / 1e6:,.0f} MB resident")


def smoke(folder: Path) -> None:
    keys = ("world_size", "steps", "val_perplexity", "unigram_perplexity", "tokens_per_second", "eval_time_fraction",
            "health_time_fraction", "data_wait_fraction", "checkpoint_time_fraction", "compile_seconds", "peak_memory_bytes")
    for script in ("run_standalone.sh", "run_distributed.sh"):
        began = time.perf_counter()
        subprocess.run(["bash", str(ROOT / "run_scripts" / script), "--set", f"run.dir={folder}", f"run.name={script}",
                        f"data.prepared_dir={folder / 'prepared'}"], check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - began
        report = json.loads((folder / script / "report.json").read_text())
        print(f"{script}: {seconds:.0f} s in all, unigram / validation perplexity "
              f"{report['unigram_perplexity'] / report['val_perplexity']:.2f}")
        for key in keys:
            print(f"  {key:26} {report[key]:.4g}")


def cpu_seconds() -> float:
    """Of this process so far, and of those that it has seen end."""
    return sum(os.times()[:4])


class Part:
    """A method of what watches a run: timed, and left out of a step where `on` says no."""

    def __init__(self, owner: object, name: str, on=lambda: True, otherwise=None):
        self.name, method = f"{type(owner).__name__}.{name}", getattr(owner, name)
        self.seconds, self.cpu_seconds, self.running = [], 0.0, False

        def timed(*arguments):
            if not on():
                return otherwise
            began, cpu, self.running = time.perf_counter(), cpu_seconds(), True
            try:
                return method(*arguments)
            finally:
                self.seconds.append(time.perf_counter() - began)
                self.cpu_seconds += cpu_seconds() - cpu
                self.running = False
        setattr(owner, name, timed)


def monitors(folder: Path, steps: int = 1000) -> None:
    """What runs at each step is there at every second one: what those take more is its cost, cold caches and all. What runs
    every log_every_steps or every_steps is timed where it runs."""
    from data.prepare import prepare
    from train import run  # before mindspore, as in `python -m train`
    from train.callbacks import gate
    from train.config import load_config

    import mindspore.train  # isort: skip

    config = load_config(ROOT / "run_scripts" / "configs" / "smoke.yaml", [
        f"run.dir={folder}", f"data.prepared_dir={folder / 'prepared'}", "eval.stage.enabled=false", "eval.deep.enabled=false",
        "ckpt.every_steps=1000000", "ckpt.every_minutes=null", f"train.total_steps={steps}"])
    prepare(config.data)
    rare: list[Part] = []

    class Times(mindspore.train.Callback):
        """Stands first and last: seconds of each step, from end to end."""

        def __init__(self):
            super().__init__()
            self.on, self.ends = True, []

        def on_train_step_end(self, run_context):
            self.ends.append(time.perf_counter())
            self.on = len(self.ends) % 2 == 0

    times = Times()

    class Model(mindspore.train.Model):
        def train(self, epoch, dataset, callbacks, **options):
            by_name = {type(callback).__name__: callback for callback in callbacks}
            health, monitor, heartbeat = by_name["Health"], by_name["Monitor"], by_name["Heartbeat"]
            for owner, name, otherwise in ((gate, "all_valid", True), (heartbeat, "beat", None)):
                Part(owner, name, lambda: times.on, otherwise)
            rare.extend([Part(health.watch, "before"), Part(health, "look"), Part(health, "examine"),
                         *(Part(sink, "write") for sink in monitor.sinks)])
            # first, so that a step's own end is in its time, and what follows it too
            super().train(epoch, dataset, callbacks=[*callbacks, times], **options)

    run.Model = Model
    run.run(config)
    seconds = np.diff(times.ends)
    bare = [i for i in range(len(seconds)) if (i + 2) % config.train.log_every_steps and (i + 2) % config.health.every_steps]
    pairs = [seconds[i] - seconds[i + 1] for i in bare if i % 2 == 0 and i + 1 in bare and i > 20]
    usual, each = statistics.median(seconds), statistics.median(pairs)
    spread = 1.2533 * np.std([x for x in pairs if abs(x) < usual / 4]) / math.sqrt(len(pairs))
    often = sum(sum(part.seconds) for part in rare) / steps
    for part in rare:
        print(f"  {part.name:20} {len(part.seconds):4} times {statistics.mean(part.seconds) * 1e3:6.2f} ms")
    print(f"a step takes {usual * 1e3:.1f} ms; of it what watches at each step {each * 1e3:.2f} ms (+- {spread * 1e3:.2f}, "
          f"{len(pairs)} pairs), what looks now and then {often * 1e3:.2f} ms: {(each + often) / usual:.2%}")


if __name__ == "__main__":
    parts = {"seek": seek, "read": read, "prepare": prepare, "smoke": smoke, "save": save, "monitors": monitors}
    if len(sys.argv) < 2 or sys.argv[1] not in parts or len(sys.argv) > (5 if sys.argv[1] == "prepare" else 2):
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as name:
        parts[sys.argv[1]](Path(name), *map(int, sys.argv[2:]))
