"""Our model as EleutherAI's lm-evaluation-harness calls one; needs the extra `harness`.

Log-likelihoods come from the same forward pass as the tier `stage`, texts from the same Writer as the tier `deep`.
"""
import numpy as np
from lm_eval import utils
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM

from data.tokenizer import EOS_ID, PAD_ID, Tokenizer
from eval.rows import RowScorer
from eval.tasks.questions import encode_pair
from model.sampling import Sampling
from model.writer import Writer
from parallel.errors import UserError

MAX_NEW_TOKENS = 256  # the harness's own default
# What a task may ask of generation.
GENERATION = {"until", "max_gen_toks", "max_new_tokens", "temperature", "top_k", "top_p", "do_sample"}


class Adapter(LM):
    """The model as the harness calls it, on one process.

    Args:
        scorer: gives the likelihoods of rows.
        writer: writes texts, greedily unless a task wants a temperature.
        seq_length: the longest context; what is longer loses tokens on its left.
        seed: of the random numbers of texts.
    """

    tokenizer_name = "mindgpt"

    def __init__(self, scorer: RowScorer, writer: Writer, tokenizer: Tokenizer, seq_length: int, seed: int):
        super().__init__()
        self.scorer, self.writer, self.tokenizer, self.seq_length, self.seed = scorer, writer, tokenizer, seq_length, seed

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """(sum of log-probabilities in nats, whether each token is the likeliest) of each (context, continuation)."""
        rows = []
        for request in requests:
            try:
                tokens, border = encode_pair(self.tokenizer, *request.args)
            except ValueError as error:
                raise UserError(f"{request.task_name}: {error}") from None
            if len(tokens) - border > self.seq_length:
                raise UserError(f"{request.task_name}: a continuation has {len(tokens) - border} tokens, the model's context "
                                f"{self.seq_length}: this task is not for this model")
            rows.append((tokens, border))
        return self._score(rows)

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        """Of each whole text, after eos, in windows that overlap so that each token has as much context as there is room for."""
        rows, texts = [], []
        for i, request in enumerate(requests):
            windows = utils.get_rolling_token_windows(self.tokenizer.encode(request.args[0]), EOS_ID, self.seq_length, 1)
            for context, predicted in map(utils.make_disjoint_window, windows):
                rows.append((context + predicted, len(context)))
                texts.append(i)
        totals = np.zeros(len(requests))
        np.add.at(totals, texts, [score for score, _ in self._score(rows)])
        return totals.tolist()

    def _score(self, rows: list[tuple[list[int], int]]) -> list[tuple[float, bool]]:
        """Of rows of tokens of which the first `border` are context."""
        if not rows:
            return []
        tokens = np.full((len(rows), self.seq_length + 1), PAD_ID, np.int32)
        first = np.zeros(len(rows), np.int32)
        for i, (row, border) in enumerate(rows):
            kept = row[-(self.seq_length + 1):]
            tokens[i, :len(kept)], first[i] = kept, max(0, border - (len(row) - len(kept)) - 1)
        return [(-float(loss), bool(hits == count)) for loss, count, hits in self.scorer.score_rows(tokens, first)]

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """The text that follows each context, up to the first of the strings in `until`."""
        texts = [""] * len(requests)
        alike: dict[str, list[int]] = {}
        for i, request in enumerate(requests):
            alike.setdefault(repr(sorted(request.args[1].items())), []).append(i)
        for places in alike.values():  # those that are to be written in the same way, several at once
            wishes = requests[places[0]].args[1]
            if unknown := set(wishes) - GENERATION:
                raise UserError(f"{requests[places[0]].task_name}: a text cannot be written with {', '.join(sorted(unknown))}; "
                                f"allowed are {', '.join(sorted(GENERATION))}")
            prompts = self.tokenizer.encode_batch([requests[i].args[0] for i in places])
            count = wishes.get("max_gen_toks", wishes.get("max_new_tokens", MAX_NEW_TOKENS))
            written = self.writer.write(prompts, count, sampling_of(wishes), self.seed)
            for i, text in zip(places, written, strict=True):
                texts[i] = cut(self.tokenizer.decode(text.tokens), wishes.get("until") or [])
        return texts


def sampling_of(wishes: dict) -> Sampling:
    """Greedy, unless a task asks for something else."""
    if not wishes.get("do_sample", wishes.get("temperature", 0.0) > 0):
        return Sampling(0.0)
    return Sampling(wishes.get("temperature", 1.0), wishes.get("top_k", 0), wishes.get("top_p", 1.0))


def cut(text: str, until: str | list[str]) -> str:
    """The text before the first of these strings."""
    for stop in [until] if isinstance(until, str) else until:
        if stop:
            text = text.partition(stop)[0]
    return text
