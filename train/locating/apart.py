"""A training step as another process looks into it: what it needs is left in a folder, and what it finds is left there too."""
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ckpt.tensors import Tensors, pieces_of, write_pieces
from parallel import config_file, context
from parallel.files import replace_text
from train.config import RunConfig, load_config
from train.locating.locate import Batch, locate
from train.metrics_log import finite

CONFIG, STEP, RESULT = "config.yaml", "step.safetensors", "result.json"
WEIGHT = "weight."
SECONDS, POLL = 600.0, 0.5  # what another process may take, and how often it is looked for
# What makes a process one of several; another process that reruns a step is one of its own.
OF_A_JOB = ("RANK_", "DEVICE_ID", "MS_ROLE", "MS_WORKER_NUM", "MS_SCHED_", "MS_NODE_ID")


def dump(folder: Path, config: RunConfig, weights: dict[str, np.ndarray], batch: Batch) -> None:
    """Leave a step for `rerun_dump`."""
    folder.mkdir(parents=True, exist_ok=True)
    replace_text(folder / CONFIG, config_file.dump(config))
    arrays = {WEIGHT + name: value for name, value in weights.items()}
    numbers = {"loss_scale": np.float64([batch.loss_scale]), "num_micro_batches": np.int64([batch.num_micro_batches])}
    write_pieces(folder / STEP, pieces_of({**arrays, "tokens": batch.tokens, "positions": batch.positions, **numbers}))


def rerun_apart(folder: Path, step: int, pulse: Callable[[], bool]) -> dict:
    """Have another process look into the step that `dump` left in a folder: PyNative, hooks and all, must not touch this one.

    Args:
        step: its number, to say how to do the same by hand where this fails.
        pulse: is called often meanwhile; True: give up.
    """
    alone = {name: value for name, value in os.environ.items() if not name.startswith(OF_A_JOB)}
    why = "interrupted"
    with open(folder / "log.txt", "w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen([sys.executable, "-m", "train.locate_nan", "--dump", str(folder)], env=alone,
                                   stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        end = time.monotonic() + SECONDS
        while process.poll() is None and not pulse():
            if time.monotonic() > end:
                why = f"not done within {SECONDS:g} s"
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(POLL)
        if process.poll() is None:
            process.kill()
            process.wait()
        else:
            log.seek(0)
            why = (log.read().strip().splitlines() or [f"exit code {process.returncode}"])[-1]
    try:
        return json.loads((folder / RESULT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {"verdict": "failed", "message": f"it could not be run again ({why}). To look into it: {by_hand(step)}"}


def by_hand(step: int) -> str:
    """The command for a person."""
    return f"python -m train.locate_nan --checkpoint <the run's folder> --step {step}"


def rerun_dump(folder: Path) -> None:
    """Look into the step that a training left in a folder; what is found is written there. Raises UserError."""
    config = load_config(folder / CONFIG)
    context.start()
    arrays = Tensors([folder / STEP])
    batch = Batch(arrays["tokens"], arrays["positions"], arrays["loss_scale"].item(), arrays["num_micro_batches"].item())
    found = locate(config, {name.removeprefix(WEIGHT): arrays[name] for name in arrays if name.startswith(WEIGHT)}, batch)
    replace_text(folder / RESULT, json.dumps(finite(found), allow_nan=False))
