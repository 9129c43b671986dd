"""Faults in the memory of a run that trains; and, as a worker of test_locate_run.py, a run of two ranks with them.

A step computes with an infinite weight, which is as it was afterwards; from a step on a weight is NaN.
"""
import os
import sys
from collections.abc import Callable

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor

from train.clock import Clock

TRANSIENT, STAYING = "blocks.0.mlp.up.weight", "norm.bias"
SICK = ("eval.stage.enabled=false", "eval.deep.enabled=false", "ckpt.every_steps=5", "ckpt.keep_last=9",
        "precision.loss_scale.initial=1024", "precision.loss_scale.min=256", "precision.loss_scale.growth_interval=6",
        "health.rules.overflow_streak.threshold=3")
begin, end = Clock.on_train_step_begin, Clock.on_train_step_end


def planted(transient: tuple[int, ...] = (), staying: int | None = None) -> tuple[Callable, Callable]:
    """Clock's callbacks around a step, with faults at these steps."""
    kept = {}

    def spoil(p: Parameter, value: float) -> None:
        kept[p.name] = p.asnumpy().copy()
        p.set_data(Tensor(np.where(np.arange(p.size).reshape(p.shape) == 5, value, kept[p.name]), ms.float32))

    def before(clock, run_context):
        begin(clock, run_context)
        step, weights = run_context.original_args().cur_step_num, run_context.original_args().train_network.weights
        if step in transient:
            spoil(next(w for w in weights if w.name == TRANSIENT), np.inf)
        if step == staying:
            spoil(next(w for w in weights if w.name == STAYING), np.nan)

    def after(clock, run_context):
        step, weights = run_context.original_args().cur_step_num, run_context.original_args().train_network.weights
        if step in transient:
            next(w for w in weights if w.name == TRANSIENT).set_data(Tensor(kept[TRANSIENT]))
        end(clock, run_context)
    return before, after


if __name__ == "__main__":
    from train.__main__ import main

    rank = int(os.environ["RANK_ID"])
    Clock.on_train_step_begin, Clock.on_train_step_end = planted(staying=8) if rank == 0 else planted(transient=(3,))
    sys.exit(main(["--config", sys.argv[1], "--set", f"run.dir={sys.argv[2]}", *SICK]))
