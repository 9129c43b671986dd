"""What is said of a run at its end: report.json, and a summary on the console."""
import json
import os
import platform

import mindspore as ms
import numpy as np

from ckpt import store
from parallel import collectives
from parallel.files import replace_text
from parallel.mesh import Mesh
from train import console
from train.callbacks.evaluate import Evaluate
from train.callbacks.monitor import Monitor, peak_memory_bytes
from train.clock import Clock
from train.config import RunConfig
from train.metrics_log import finite
from train.report import write_page


def report(config: RunConfig, mesh: Mesh, num_parameters: int, clock: Clock, monitor: Monitor, evaluate: Evaluate) -> None:
    """Write and show the figures of a run; every rank has to call it."""
    folder, seconds, loss = config.run.folder, clock.total(), monitor.last_row.get("loss")
    if not monitor.last_row and mesh.rank == 0:
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        loss = json.loads(lines[-1])["loss"] if lines else None
    peak = int(collectives.gather(peak_memory_bytes()).max())
    if mesh.rank:
        return
    scores = evaluate.last.get("all", {})
    figures = {
        "name": config.run.name, "steps": monitor.step, "total_steps": config.train.total_steps, "world_size": mesh.world_size,
        "mesh": {"dp": mesh.dp, "tp": mesh.tp, "pp": mesh.pp},
        "device": ms.get_context("device_target"), "parameters": num_parameters,
        "consumed_samples": monitor.reading.consumed, "loss": loss,
        "val_step": evaluate.last.get("step"), "val_loss": scores.get("loss"), "val_perplexity": scores.get("perplexity"),
        "val_accuracy": scores.get("accuracy"), "val_bits_per_byte": scores.get("bits_per_byte"),
        "unigram_perplexity": scores.get("unigram_perplexity"), "validation": evaluate.last.get("corpora"),
        "best_validation": evaluate.best,
        "tokens_per_second": monitor.tokens / clock.training() if monitor.tokens else None, "train_seconds": seconds,
        "compile_seconds": clock.seconds["compile"], "eval_time_fraction": clock.seconds["eval"] / seconds,
        "health_time_fraction": clock.seconds["health"] / seconds,
        "data_wait_fraction": clock.seconds["data"] / seconds, "checkpoint_time_fraction": clock.seconds["ckpt"] / seconds,
        "peak_memory_bytes": peak, "checkpoints": [str(f) for f in store.steps(folder / "checkpoints")],
        "versions": {"mindspore": ms.__version__, "numpy": np.__version__, "python": platform.python_version()},
        "cores": len(os.sched_getaffinity(0))}
    replace_text(folder / "report.json", json.dumps(finite(figures), indent=1, allow_nan=False) + "\n")
    write_page(folder)
    console.summary(figures, folder)
