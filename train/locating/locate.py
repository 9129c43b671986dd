"""Where a step's NaN comes from: the same weights and the same batch once more, with probes on every cell."""
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

import mindspore as ms
import numpy as np
from mindspore import Tensor

from eval.health.layers import EMBEDDING, NORM, layer_names
from parallel.mesh import Mesh
from train.build import build_gpt, build_train_step
from train.config import RunConfig
from train.locating.findings import LARGEST_SQUARE, verdict_of
from train.locating.probes import Passage, Probes, figures
from train.step import TrainStep


@dataclass(frozen=True)
class Batch:
    """What is computed in one step: tokens int32 [samples, seq + 1], positions int32 [samples], cut into micro-batches."""

    tokens: np.ndarray
    positions: np.ndarray
    loss_scale: float
    num_micro_batches: int

    def micro_batches(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """(tokens, positions) of each, as LocalGradients cuts them."""
        return zip(np.split(self.tokens, self.num_micro_batches), np.split(self.positions, self.num_micro_batches), strict=True)


def locate(config: RunConfig, weights: Mapping[str, np.ndarray], batch: Batch) -> dict:
    """Run a step's forward and backward pass again, on one card.

    Returns what can be written as JSON: verdict and message (see `verdict_of`); weights: figures of those that are not finite;
    nonfinite_micro_batches; of the first of them (or of the first of all) forward and backward: the first passage of a cell that
    is not finite, or None, gradients: parameter -> figures, in the order in which they came, and cells: every passage; layers:
    layer -> abs_max and nonfinite of its output, over all micro-batches; norm: what the gradients' can be at most, times the loss
    scale; rerun_loss: the mean of these samples' token losses; compiled: the parameters whose gradients were not finite where the
    step was run as a compiled graph, if it was.

    Args:
        config: the run's, with model.vocab_size resolved.
        weights: by name.
    """
    probes, sens = Probes(build(config, weights, batch).gradients.network), sens_of(config, batch)
    shown, bad, layers, norm, totals = None, [], {}, 0.0, np.zeros(2)
    for i, (tokens, positions) in enumerate(batch.micro_batches()):
        sums, grads = probes.run(tokens, positions, sens)
        totals += sums
        sizes = {p.name: float(np.linalg.norm(g.astype(np.float64).reshape(-1)))
                 for p, g in zip(probes.weights, grads, strict=True)}
        norm += float(np.linalg.norm([*sizes.values()]))  # a sum's norm is at most the sum of the norms
        if not (np.isfinite(sums).all() and np.isfinite(norm)):
            bad.append(i)
        if i == 0 or bad == [i]:
            shown = {"forward": first(probes.passages, "forward"), "backward": first(probes.passages, "backward"),
                     "gradients": probes.gradients, "largest_gradient": max(sizes, key=sizes.get),
                     "cells": [asdict(p) for p in probes.passages]}
        merge(layers, layers_of(probes.passages, config.model.num_layers))
    found = {"weights": {name: f for name, value in weights.items() if (f := figures(value))["nonfinite"]},
             "nonfinite_micro_batches": bad, "layers": layers, "norm": norm,
             "rerun_loss": float(totals[0] / max(totals[1], 1.0)), **shown,
             "compiled": None if bad or norm**2 > LARGEST_SQUARE else compiled(config, weights, batch)}
    verdict, message = verdict_of(found)
    return {"verdict": verdict, "message": message, **found}


def build(config: RunConfig, weights: Mapping[str, np.ndarray], batch: Batch) -> TrainStep:
    """The step as it is built for the run, on one card and with these weights; nothing is computed twice to save memory."""
    parallel = config.parallel.model_copy(update={"recompute": "none"})
    config, mesh = config.model_copy(update={"parallel": parallel}), Mesh(1)
    step = build_train_step(build_gpt(config, mesh), config, mesh, batch.num_micro_batches).set_train()
    for p in step.weights:
        p.set_data(Tensor(np.ascontiguousarray(weights[p.name]), p.dtype))
    return step


def sens_of(config: RunConfig, batch: Batch) -> np.ndarray:
    """What the step scales the network's outputs by: float32 [2]."""
    return np.float32([batch.loss_scale, 0.0]) / np.float32(config.train.global_batch_size * config.data.seq_length)


def compiled(config: RunConfig, weights: Mapping[str, np.ndarray], batch: Batch) -> list[str]:
    """The same as a compiled graph, as in the run: the parameters whose gradients are not finite."""
    step = build(config, weights, batch)
    ms.set_context(mode=ms.GRAPH_MODE)
    *_, grads = step.gradients(Tensor(batch.tokens), Tensor(batch.positions), Tensor(sens_of(config, batch)))
    return [p.name for p, g in zip(step.weights, grads, strict=True) if not np.isfinite(g.asnumpy()).all()]


def first(passages: list[Passage], direction: str) -> dict | None:
    """The first of which something that comes out is not finite; None: there is none.

    Where what goes in is not finite either, an operator between cells made it: one of the innermost cell around them into which
    nothing of the kind went ("made_by").
    """
    passages = [p for p in passages if p.direction == direction]
    at = next((i for i, p in enumerate(passages) if p.nonfinite), None)
    if at is None:
        return None
    made_by = passages[at]
    while any(f["nonfinite"] for f in made_by.inputs.values()) and made_by.cell:
        around = {made_by.cell.rsplit(".", n)[0] for n in range(1, made_by.cell.count(".") + 1)} | {""}
        outer = [p for p in passages[at:] if p.cell in around]  # a cell around others ends after them
        if not outer:
            break
        made_by = max(outer, key=lambda p: len(p.cell))
    return {**asdict(passages[at]), "made_by": made_by.cell}


def layers_of(passages: list[Passage], num_layers: int) -> dict[str, dict]:
    """layer -> figures of its output."""
    names = [EMBEDDING, *(f"blocks.{i}" for i in range(num_layers)), NORM]
    cells = dict(zip((f"gpt.{name}" for name in names), layer_names(num_layers), strict=True))
    return {cells[p.cell]: p.outputs["0"] for p in passages if p.direction == "forward" and p.cell in cells}


def merge(layers: dict[str, dict], more: dict[str, dict]) -> None:
    """Take the figures of another micro-batch in: the largest abs_max (None where nothing is finite) and share."""
    for name, f in more.items():
        both = [f, layers.get(name, f)]
        sizes = [one["abs_max"] for one in both]
        layers[name] = {"abs_max": None if None in sizes else max(sizes), "nonfinite": max(one["nonfinite"] for one in both)}
