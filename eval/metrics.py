"""Metrics that are exact: sums and counts are added up over rows and ranks, and divided once."""
import math

import numpy as np
from mindspore.train import Metric

from parallel import collectives


class TokenMetric(Metric):
    """Loss, perplexity and next-token accuracy over all tokens that count.

    update: loss sum, number of tokens and number of right guesses of each sample, each float32 [batch] (see EvalStep).
    eval: {"loss", "perplexity", "accuracy", "tokens"} over all ranks; the first three are None where no token counted. Perplexity
    is exp(sum of losses / number of tokens), whatever the batches.

    Args:
        counts: whether this rank's sums are added; of ranks that compute the same only one's are.
    """

    def __init__(self, counts: bool = True):
        super().__init__()
        self.counts = counts
        self.clear()

    def clear(self):
        self.sums = np.zeros(3)

    def update(self, *inputs):
        if self.counts:
            self.sums += [np.asarray(x.asnumpy(), np.float64).sum() for x in inputs]

    def eval(self):
        self.sums, sums = np.zeros(3), collectives.gather(self.sums).sum(0)
        return token_scores(*sums)


def token_scores(loss_sum: float, tokens: float, hits: float) -> dict:
    """The scores of summed token losses (nats) and right guesses."""
    if not tokens:
        return {"loss": None, "perplexity": None, "accuracy": None, "tokens": 0}
    loss = loss_sum / tokens
    return {"loss": loss, "perplexity": perplexity(loss), "accuracy": hits / tokens, "tokens": int(tokens)}


def together(parts: list[dict]) -> dict:
    """The scores of several sets as if they were one."""
    parts = [p for p in parts if p["tokens"]]
    return token_scores(sum(p["loss"] * p["tokens"] for p in parts), sum(p["tokens"] for p in parts),
                        sum(p["accuracy"] * p["tokens"] for p in parts))


def perplexity(loss: float) -> float:
    """exp(loss in nats); infinite where that overflows."""
    return math.exp(loss) if loss < 700 else math.inf


def unigram_loss(counts: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Loss in nats of each label under the training text's token frequencies (add-one smoothed); counts int [vocab]."""
    log_p = np.log(counts + 1.0) - math.log(counts.sum() + len(counts))
    return -log_p[labels]
