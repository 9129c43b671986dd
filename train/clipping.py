"""Clipping of gradients: by the norm of all, by the norm of each, by value, or not.

Everything stays on the device: norms of parameters travel in one vector.
"""
from mindspore import nn, ops

from train.config import TrainConfig


def clipped(gradient, factor, limit):
    """A gradient times its factor, and no value of it beyond `limit` (0: no limit). For graphs."""
    gradient = gradient * factor
    if limit > 0.0:
        gradient = ops.minimum(ops.maximum(gradient, -limit), limit)
    return gradient


class Clip(nn.Cell):
    """construct: the gradients' global norm (scalar), their squared norms (a vector, where `config.clips_each`), and the scalar
    by which they are still to be multiplied -> what to multiply each of them by: a tuple of scalars, all float32.

    A norm above the threshold becomes the threshold, by threshold / (norm + 1e-6) as in torch.nn.utils.clip_grad_norm_
    (Pascanu et al., arXiv:1211.5063). `limit` is the threshold for values, 0 where there is none; see `clipped`.
    """

    def __init__(self, config: TrainConfig, count: int):
        super().__init__(auto_prefix=False)
        by = config.clip_by if config.clip_norm is not None else None
        self.by_norm, self.by_each, self.threshold, self.count = by == "global_norm", config.clips_each, config.clip_norm, count
        self.limit = config.clip_norm if by == "value" else 0.0
        self.doublings = tuple(range((count - 1).bit_length()))
        self.sqrt, self.minimum, self.unstack = ops.Sqrt(), ops.Minimum(), ops.Unstack()

    def construct(self, norm, squares, unscale):
        if self.by_each:
            norms = self.sqrt(squares) * unscale
            return self.unstack(self.minimum(self.threshold / (norms + 1e-6), 1.0) * unscale)
        factor = unscale
        if self.by_norm:
            factor = unscale * self.minimum(self.threshold / (norm + 1e-6), 1.0)
        factors = (factor,)
        for _ in self.doublings:  # tuple * number is a call in a call for each place, and MindSpore refuses 1,000 of them
            factors = factors + factors
        return factors[:self.count]
