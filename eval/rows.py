"""Rows of tokens through the forward pass, all ranks together: what every figure of likelihood is made of."""
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from mindspore import Tensor, nn

from data.tokenizer import PAD_ID
from eval.step import EvalStep, mode_kept
from parallel import collectives
from parallel.mesh import Mesh


class RowScorer:
    """Gives each row's sums to every rank, so that scores are computed from all rows, in one order, by every rank alike.

    Args:
        step: the forward pass.
        network: how it is called: itself, or under MindSpore's parallelism.
        batch_size: rows that one data-parallel rank computes at once.

    `pulse`, if somebody sets it, is called before each batch, on all ranks alike; what it raises ends the work.
    """

    def __init__(self, step: EvalStep, network: nn.Cell, mesh: Mesh, batch_size: int):
        self.gpt, self.network, self.mesh, self.batch_size = step.gpt, network, mesh, batch_size
        self.pulse: Callable[[], None] = lambda: None
        self.counting = [r for r in range(mesh.world_size) if EvalStep.counts(Mesh(mesh.dp, mesh.tp, mesh.pp, r))]

    def score(self, batches: Iterable[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        """This data-parallel rank's batches, as many on each -> the sums of all ranks' rows, one rank after the other.

        Args:
            batches: tokens int32 [batch_size, width], first int32 [batch_size] (see EvalStep).

        Returns:
            float64 [rows, 3]: loss sum (nats), number of tokens, right guesses.
        """
        with mode_kept(self.gpt):
            self.network.set_train(False)
            found = []
            for tokens, first in batches:
                self.pulse()
                found.append(np.stack([x.asnumpy() for x in self.network(Tensor(tokens), Tensor(first))], 1))
        everywhere = collectives.gather_arrays(np.concatenate(found))
        return np.concatenate(everywhere[self.counting]).astype(np.float64)

    def score_rows(self, tokens: np.ndarray, first: np.ndarray) -> np.ndarray:
        """The same rows on every rank, int32 [n, width] and [n] -> float64 [n, 3]."""
        return self.score(self._share(tokens, first))[:len(tokens)]

    def _share(self, tokens: np.ndarray, first: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """This rank's batches. Rows of pad fill up the last ones, or the ranks would not meet."""
        steps = self.steps(len(tokens))
        missing = steps * self.batch_size * self.mesh.dp - len(tokens)
        tokens = np.pad(tokens, ((0, missing), (0, 0)), constant_values=PAD_ID)
        first = np.pad(first, (0, missing))
        for i in range(steps):
            at = (self.mesh.dp_rank * steps + i) * self.batch_size
            yield tokens[at:at + self.batch_size], first[at:at + self.batch_size]

    def steps(self, rows: int) -> int:
        """Batches that each rank computes for so many rows."""
        return -(-rows // (self.batch_size * self.mesh.dp))
