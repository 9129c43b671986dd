"""Text generation: prompts in, continuations out."""
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from model.decode import Decoder
from model.gpt import GPT
from model.sampling import Sampling, choose


@dataclass(frozen=True)
class Text:
    """What was written.

    Args:
        tokens: the new ones, eos not among them.
        ended: with eos, rather than at a limit.
        broken: it breaks off, since its logits were not finite.
    """

    tokens: list[int]
    ended: bool
    broken: bool = False


def context_start(start: int, length: int, window: int) -> int:
    """From which of its tokens on the model sees a text of `length` tokens; `start`: from which it did so far, at first 0.

    When the context outgrows the window it becomes the last half window, so that there is room for as many tokens again.
    """
    return start if length - start <= window else length - max(1, window // 2)


@dataclass
class Row:
    """A text that is being written, in one row of the batch."""

    index: int  # its prompt's in the list
    tokens: list[int]
    left: int  # tokens that may follow
    rng: np.random.RandomState
    start: int = 0
    cached: bool = False  # whether the context but for its last token is in the cache

    def push(self, token: int, window: int) -> None:
        """One more token."""
        self.tokens.append(token)
        self.left -= 1
        start = context_start(self.start, len(self.tokens), window)
        self.start, self.cached = start, start == self.start


class Writer:
    """Continues texts by incremental decoding, several at a time.

    It computes with the GPT's own Parameters, with the values that they have at the time. The GPT's training mode plays no part
    and is left alone. A Writer has one cache, so it writes one list of prompts at a time.

    Args:
        batch_size: texts that are decoded together. Of more prompts, each takes the place of a text that has ended.
        window: longest context in tokens, at most the model's seq_length; see `context_start`.
        eos_id: the token that ends a text; an empty prompt stands for this token.
    """

    def __init__(self, gpt: GPT, batch_size: int, window: int, eos_id: int):
        longest = gpt.seq_length
        if not 1 <= window <= longest:
            raise ValueError(f"window={window} is not possible; allowed: 1 to the model's seq_length, {longest}")
        self.decoder, self.batch_size, self.window, self.eos_id = Decoder(gpt, batch_size, window), batch_size, window, eos_id
        self._call: object = None  # the call that the cache belongs to

    def write(self, prompts: list[list[int]], max_new_tokens: int, sampling: Sampling, seed: int, first: int = 0) -> list[Text]:
        """Continue each prompt (token ids) until eos or max_new_tokens, or until its logits are not finite.

        Random numbers come from the seed and the prompt's place and nothing else: `first` + its place in the list.
        """
        tokens: list[list[int]] = [[] for _ in prompts]
        ended, broken = [False] * len(prompts), [False] * len(prompts)
        for index, token in self._tokens(prompts, max_new_tokens, sampling, seed, first):
            if token is None:
                broken[index - first] = True
            elif token == self.eos_id:
                ended[index - first] = True
            else:
                tokens[index - first].append(token)
        return [Text(*text) for text in zip(tokens, ended, broken, strict=True)]

    def stream(self, prompt: list[int], max_new_tokens: int, sampling: Sampling, seed: int) -> Iterator[int]:
        """The tokens that `write` gives for this prompt alone, each as soon as it is known.

        Raises FloatingPointError where the logits are not finite.
        """
        for _, token in self._tokens([prompt], max_new_tokens, sampling, seed):
            if token is None:
                raise FloatingPointError("the logits are not finite")
            if token != self.eos_id:
                yield token

    def _tokens(self, prompts: list[list[int]], max_new_tokens: int, sampling: Sampling, seed: int,
                first: int = 0) -> Iterator[tuple[int, int | None]]:
        """(place of a prompt, its next token; eos too; None: its logits are not finite) as they come."""
        self._call = call = object()
        waiting = deque(enumerate(prompts if max_new_tokens > 0 else (), first))
        rows: dict[int, Row] = {}
        seen = np.zeros((self.batch_size, self.decoder.vocab_size), bool)
        while rows or waiting:
            for i in range(self.batch_size):
                if i not in rows and waiting:
                    index, prompt = waiting.popleft()
                    rows[i] = self._row(index, prompt, max_new_tokens, seed)
                    seen[i] = False
                    seen[i, rows[i].tokens] = True
            logits = self._next_logits(rows)
            for i in [i for i in rows if not np.isfinite(logits[i]).all()]:
                self.decoder.clear(i)
                yield rows.pop(i).index, None
            live = list(rows)
            draws = np.array([rows[i].rng.random_sample() for i in live])
            for i, token in zip(live, choose(logits[live], seen[live], sampling, draws).tolist(), strict=True):
                row = rows[i]
                row.push(token, self.window)
                seen[i, token] = True
                if token == self.eos_id or row.left == 0:
                    del rows[i]
                yield row.index, token
                if self._call is not call:
                    raise RuntimeError("this text can not go on: its Writer has begun another")

    def _row(self, index: int, prompt: list[int], max_new_tokens: int, seed: int) -> Row:
        tokens = list(prompt) or [self.eos_id]
        rng = np.random.RandomState([seed, index])
        return Row(index, tokens, max_new_tokens, rng, context_start(0, len(tokens), self.window))

    def _next_logits(self, rows: dict[int, Row]) -> np.ndarray:
        """Float32 [batch, vocab]; rows without a text have none that mean anything."""
        logits = np.zeros((self.batch_size, self.decoder.vocab_size), np.float32)
        if cached := {i: row for i, row in rows.items() if row.cached}:
            ids, positions = [0] * self.batch_size, [0] * self.batch_size
            for i, row in cached.items():
                ids[i], positions[i] = row.tokens[-1], len(row.tokens) - row.start - 1
            logits[:] = self.decoder.step(ids, positions)
        # After the step, which has put a token into every row.
        for i in rows.keys() - cached.keys():
            logits[i] = self.decoder.prefill(i, rows[i].tokens[rows[i].start:])
        return logits
