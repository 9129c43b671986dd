"""Gradients, weights and updates of each layer over one training step, from copies of what it changes.

Nothing is added to the training step: a copy of the weights and of Adam's first moment m before the step and another look after
it give the update w1 - w0 and the gradient that the optimizer was given, (m1 - beta1 m0) / (1 - beta1), both exact up to float32
rounding, on any mesh and on any device, for the time of two copies.
"""
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from mindspore import Parameter

from eval.health.histogram import Histogram, sample
from parallel import collectives

EMBEDDING, NORM = "embedding", "norm"


def layer_names(num_layers: int) -> list[str]:
    """In the order of the forward pass: embedding, block_00, ..., norm."""
    width = len(str(num_layers - 1))
    return [EMBEDDING, *(f"block_{i:0{max(2, width)}d}" for i in range(num_layers)), NORM]


def layer_of(parameter: str, num_layers: int) -> int:
    """The place of a parameter's layer in `layer_names`: "blocks.3.mlp.up.weight" -> 4. A head's own table is of the norm's."""
    if found := re.match(r"blocks\.(\d+)\.", parameter):
        return 1 + int(found[1])
    return 0 if parameter.startswith("embedding.") else num_layers + 1


@dataclass(frozen=True)
class Watched:
    """A parameter that this rank holds, or holds a part of."""

    weight: Parameter
    moment1: Parameter | None  # None: the optimizer keeps none, and gradients are not seen
    share: float  # 1 / the number of ranks that hold the same values


class LayerWatch:
    """Call `before` and `after` around a training step, on every rank.

    Args:
        watched: what this rank holds.
        beta1: Adam's decay of the first moment.
        everywhere: whether each rank has only a part, whose sums are to be added up over all.
    """

    def __init__(self, watched: Sequence[Watched], num_layers: int, beta1: float, everywhere: bool):
        self.watched, self.beta1, self.everywhere = watched, beta1, everywhere
        self.names = layer_names(num_layers)
        self.layers = [layer_of(w.weight.name, num_layers) for w in watched]
        self.sees_gradients = all(w.moment1 is not None for w in watched)
        # Kept from look to look: fresh memory costs several times the copying.
        self.copies = [[np.empty(p.shape, np.float32) for p in (w.weight, w.moment1) if p is not None] for w in watched]

    def before(self) -> None:
        """Keep what the step will change: MindSpore's arrays may share their memory with the parameters."""
        for w, copies in zip(self.watched, self.copies, strict=True):
            for p, copy in zip((w.weight, w.moment1), copies, strict=False):
                np.copyto(copy, p.asnumpy())

    def after(self, scale: float | None, histograms: bool) -> tuple[dict[str, dict], dict[str, Histogram]]:
        """Each layer's norms over the step, and histograms of a sample of its gradients.

        grad_norm: of its gradients; weight_norm: after the step; update_ratio: |update| / |weights before|, None where the
        weights were all zero.

        Args:
            scale: what the optimizer's gradients are multiplied by, to undo clipping; None: the step was skipped, and the
                moments say nothing of its gradients.
        """
        scale = scale if self.sees_gradients else None
        squares = np.zeros((len(self.names), 4))
        pictures = [Histogram.of(np.zeros(0)) for _ in self.names]
        for w, layer, (weight, *moments) in zip(self.watched, self.layers, self.copies, strict=True):
            now = w.weight.asnumpy()
            squares[layer, 1:3] += w.share * _squares(now), w.share * _squares(weight)
            squares[layer, 3] += w.share * _squares(np.subtract(now, weight, out=weight))
            if scale:
                gradient, = moments
                gradient *= -self.beta1
                gradient += w.moment1.asnumpy()
                gradient *= scale / (1.0 - self.beta1)
                squares[layer, 0] += w.share * _squares(gradient)
                if histograms and w.share > 0:
                    pictures[layer] += Histogram.of(sample(gradient))
        if self.everywhere:
            squares = collectives.gather(squares.reshape(-1)).sum(0).reshape(squares.shape)
        gradient, now, before, update = np.sqrt(squares).T
        figures = {name: {"grad_norm": float(gradient[i]) if scale else None, "weight_norm": float(now[i]),
                          "update_ratio": float(update[i] / before[i]) if before[i] else None}
                   for i, name in enumerate(self.names)}
        return figures, dict(zip(self.names, pictures, strict=True)) if histograms and scale else {}


def _squares(x: np.ndarray) -> float:
    flat = x.reshape(-1)
    return float(np.dot(flat, flat))
