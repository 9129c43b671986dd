"""Scores from sums: what rows and ranks count is added up first and divided once."""
import math

import numpy as np


def token_scores(loss_sum: float, tokens: float, hits: float, text_bytes: float) -> dict:
    """The scores of summed token losses (nats), right guesses, and bytes of the text that the tokens spell.

    Perplexity is exp(loss), whatever the batches; bits per byte compares models whose tokenizers differ. None rather than a
    false number where nothing counted, or where the loss is not finite.
    """
    if not tokens:
        return {"loss": None, "perplexity": None, "bits_per_byte": None, "accuracy": None, "tokens": 0}
    loss = loss_sum / tokens
    if not math.isfinite(loss):  # nor do its guesses mean anything
        return {"loss": None, "perplexity": None, "bits_per_byte": None, "accuracy": None, "tokens": int(tokens)}
    return {"loss": loss, "perplexity": perplexity(loss),
            "bits_per_byte": loss_sum / math.log(2) / text_bytes if text_bytes else None,
            "accuracy": hits / tokens, "tokens": int(tokens)}


def perplexity(loss: float) -> float:
    """exp(loss in nats); infinite where that overflows."""
    return math.inf if loss >= 700 else math.exp(loss)


def unigram_losses(counts: np.ndarray) -> np.ndarray:
    """Loss in nats of each token under the training text's frequencies, int [vocab] (add-one smoothed): float64 [vocab]."""
    return math.log(counts.sum() + len(counts)) - np.log(counts + 1.0)
