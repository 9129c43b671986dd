"""From logits to the next token, for all rows of a batch at once."""
import math
from dataclasses import dataclass

import numpy as np

from parallel.errors import UserError


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen from the logits; what is named first is applied first.

    Args:
        repetition_penalty: of tokens that the text or its prompt has: positive logits are divided by it, others multiplied
            (CTRL, Keskar et al., arXiv:1909.05858); 1: none.
        temperature: divides the logits; 0: the likeliest token.
        top_k: keep that many of the likeliest tokens; 0: all.
        top_p: keep the fewest of the likeliest tokens whose probabilities sum to at least top_p (nucleus sampling, Holtzman et
            al., arXiv:1904.09751); 1: all.

    Raises:
        UserError: a value is outside its range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0

    def __post_init__(self):
        for name, allowed, fits in (("temperature", "0 or more", 0 <= self.temperature < math.inf),
                                    ("top_k", "0 (all) or more", self.top_k >= 0),
                                    ("top_p", "above 0, at most 1", 0 < self.top_p <= 1),
                                    ("repetition_penalty", "above 0", 0 < self.repetition_penalty < math.inf)):
            if not fits:
                raise UserError(f"sampling: {name}={getattr(self, name)} is not possible; allowed: {allowed}")


def distribution(logits: np.ndarray, seen: np.ndarray, sampling: Sampling) -> np.ndarray:
    """The probabilities that a token is drawn from: float64 [rows, vocab].

    At temperature 0 the likeliest token has them all, of several the one with the lowest id. Tokens as likely as the last one
    that top_k or top_p keeps are kept too.

    Args:
        logits: finite, [rows, vocab].
        seen: bool [rows, vocab], the tokens of each row's text so far.
    """
    x, penalty = logits.astype(np.float64), sampling.repetition_penalty
    if penalty != 1:
        x = np.where(seen, np.where(x > 0, x / penalty, x * penalty), x)
    if sampling.temperature == 0:
        return (np.arange(x.shape[1]) == x.argmax(axis=1, keepdims=True)).astype(np.float64)
    with np.errstate(over="ignore"):  # minus infinity is right where a low temperature leaves nothing
        x = (x - x.max(axis=1, keepdims=True)) / sampling.temperature
    if 0 < sampling.top_k < x.shape[1]:
        lowest = -np.partition(-x, sampling.top_k - 1, axis=1)[:, sampling.top_k - 1, None]
        x = np.where(x >= lowest, x, -np.inf)
    p = _normalized(np.exp(x))
    if sampling.top_p < 1:
        # What has less than (1 - top_p) / vocab has together less than 1 - top_p, so it goes; and equal numbers sort quickly.
        ordered = -np.sort(np.where(p * p.shape[1] < 1 - sampling.top_p, 0, -p), axis=1)
        count = (np.cumsum(ordered, axis=1) - ordered < sampling.top_p).sum(axis=1, keepdims=True)
        p = _normalized(np.where(p >= np.take_along_axis(ordered, count - 1, axis=1), p, 0))
    return p


def _normalized(p: np.ndarray) -> np.ndarray:
    return p / p.sum(axis=1, keepdims=True)


def choose(logits: np.ndarray, seen: np.ndarray, sampling: Sampling, draws: np.ndarray) -> np.ndarray:
    """One token for each row: int64 [rows].

    Args:
        logits, seen: as for `distribution`.
        draws: float64 [rows], uniform in [0, 1).
    """
    cumulative = np.cumsum(distribution(logits, seen, sampling), axis=1)
    return (cumulative <= draws[:, None] * cumulative[:, -1:]).sum(axis=1)
