"""Rules over what a step was given to read."""
from collections import Counter, deque

from eval.health.rules.base import Facts, Rule
from eval.health.rules.config import RuleConfig


class DataRepeated(Rule):
    """Batches by their checksum, which a resume knows from the rows of the steps before it."""

    def __init__(self, setting: RuleConfig, facts: Facts):
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
