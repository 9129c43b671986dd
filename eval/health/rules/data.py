"""Rules over what a step was given to read."""
import zlib
from collections import Counter, deque

import numpy as np

from data.tokenizer import PAD_ID
from eval.health.rules.base import Facts, Rule
from eval.health.rules.config import RuleConfig


def all_valid(tokens: np.ndarray, vocab_size: int) -> bool:
    """Whether the vocabulary has each of int32 [...]."""
    return bool(tokens.view(np.uint32).max() < vocab_size)  # a negative one is larger than any


def batch_figures(tokens: np.ndarray, vocab_size: int) -> dict[str, float]:
    """Of int32 [samples, seq + 1]: batch_crc (CRC-32), top_token_share (of what is no padding), padding_share, invalid_tokens."""
    valid = tokens.reshape(-1)
    if not all_valid(valid, vocab_size):
        valid = valid[(valid >= 0) & (valid < vocab_size)]
    counts = np.bincount(valid, minlength=vocab_size)
    padding = int(counts[PAD_ID])
    counts[PAD_ID] = 0
    return {"batch_crc": zlib.crc32(tokens.tobytes()), "top_token_share": round(float(counts.max() / max(1, counts.sum())), 4),
            "padding_share": round(padding / tokens.size, 4), "invalid_tokens": tokens.size - valid.size}


class CorruptData(Rule):
    """Tokens that there are none of: what an embedding looks up for them differs from device to device."""

    def see(self, row: dict) -> str | None:
        count = row.get("invalid_tokens", 0)
        if count < self.limit:
            return None
        return (f"{count} tokens of this batch are not in the vocabulary: a file of the prepared data is damaged, or of another "
                "tokenizer. Compare its SHA-256 with manifest.json's, and prepare again (python -m data prepare)")


class DataRepeated(Rule):
    """Batches by their checksum, which a resume knows from the rows of the steps before it."""

    def __init__(self, setting: RuleConfig, facts: Facts | None):
        super().__init__(setting, facts)
        self.last: deque[int] = deque(maxlen=self.window)
        self.count: Counter[int] = Counter()

    def see(self, row: dict) -> str | None:
        if (batch := row.get("batch_crc")) is None:
            return None
        before = self.count[batch]
        if len(self.last) == self.window:
            self.count[self.last[0]] -= 1
        self.last.append(batch)
        self.count[batch] += 1
        if before < self.limit:
            return None
        return (f"this batch was read {before} times in the last {self.window} steps already. Look for duplicated text, or a "
                "resume that reads again (data.log_samples shows what each step read)")


class _BatchShare(Rule):
    """A share of the batch that is too large."""

    key, remedy = "", ""

    def see(self, row: dict) -> str | None:
        share = row.get(self.key)
        return None if share is None or share < self.limit else f"{share:.0%} of the batch is {self.remedy}"


class DominantToken(_BatchShare):
    """One token makes up most of a batch."""

    key = "top_token_share"
    remedy = ("one and the same token. Look at the samples (python -m data inspect): broken or empty text, or a tokenizer that "
              "does not know its script")


class MostlyPadding(_BatchShare):
    """Little of a batch is text."""

    key, remedy = "padding_share", "padding. Give more text, or lower data.seq_length"
