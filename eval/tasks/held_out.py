"""Tasks made of held-out text: the last word of a passage, and the true continuation among four.

The text comes from the samples of a prepared validation set, decoded: they are there where the text files are not (a cluster has
only the prepared data) and where validation text is the held-out end of a corpus rather than a file; and they are the cleaned
text that the validation loss is measured on. A passage is drawn by its last word, uniformly; it lies in one document, and begins
and ends with whole words. A "word" is a run of letters, or one character of a script without blanks (Han, Kana).
"""
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from zlib import crc32

import numpy as np

from data.config import DataConfig
from data.manifest import Manifest
from data.tokenizer import EOS_ID, PAD_ID, Tokenizer
from eval.tasks.questions import Item, Task, build_task

# Passages have half of this to this many tokens, or than seq_length where that is less.
MAX_PASSAGE = 60
# Of a long validation set so many tokens from its beginning are used.
MAX_TOKENS = 1 << 18
# How many places are tried for each question that is wanted.
TRIES = 20
# The three false continuations are those nearest in length of so many.
CANDIDATES = 16
# More words than this for each token are not looked for.
WORDS_PER_TOKEN = 3

DOCUMENT_END = "\0"  # which is in no cleaned text
CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
WORD = re.compile(rf"[{CJK}]|[^\W{CJK}]+(?:['\u2019-][^\W{CJK}]+)*")
NO_LETTER = re.compile(r"[\d_]")


@dataclass(frozen=True)
class HeldOut:
    """Text of one corpus, its documents ended by DOCUMENT_END, and where its words start and end: int64 [words]."""

    corpus: str
    text: str
    starts: np.ndarray
    ends: np.ndarray


def held_out(corpus: str, documents: Iterable[str]) -> HeldOut:
    """Find the words of some documents."""
    text = DOCUMENT_END.join(documents)
    spans = np.array([match.span() for match in WORD.finditer(text)], np.int64).reshape(-1, 2)
    return HeldOut(corpus, text, spans[:, 0], spans[:, 1])


def read_held_out(manifest: Manifest, config: DataConfig, set_name: str, tokenizer: Tokenizer) -> HeldOut:
    """The first MAX_TOKENS tokens of a prepared validation set ("valid_<corpus>") as text; all ranks read the same."""
    from data.dataset import valid_dataset  # slow to import

    num_samples = min(manifest.sets[set_name].samples, max(1, MAX_TOKENS // config.seq_length))
    dataset = valid_dataset(manifest, config, set_name, num_samples, min(num_samples, 64) or 1, dp_rank=0, dp_size=1)
    batches = [] if dataset is None else [tokens for (tokens,) in dataset.create_tuple_iterator(num_epochs=1, output_numpy=True)]
    return held_out(set_name.removeprefix("valid_"), documents_of(batches, tokenizer))


def documents_of(batches: Iterable[np.ndarray], tokenizer: Tokenizer) -> list[str]:
    """The text of consecutive samples, int32 [rows, T + 1] where neighbours share one token; cut at eos, without padding."""
    batches = list(batches)
    if not batches:
        return []
    samples = np.concatenate(batches)
    row = np.concatenate((samples[0, :1], samples[:, 1:].ravel()))
    row = row[row != PAD_ID]
    parts = np.split(row, np.flatnonzero(row == EOS_ID) + 1)
    return [text for text in map(tokenizer.decode, parts) if text.strip()]


def cloze(source: HeldOut, tokenizer: Tokenizer, seq_length: int, count: int = 100, seed: int = 0) -> Task:
    """`count` passages whose last word is to be found; the same for the same text, tokenizer, lengths and seed.

    The target is a run of whole tokens in the running text too, so a model that was trained on such text can give it.
    """
    draw = _Draw(source, tokenizer, seq_length, f"cloze {seed}")
    items = islice(draw.cloze_items(count), count)
    return build_task(f"cloze_{source.corpus}", "cloze", items, tokenizer, seq_length, rejected=draw.rejected)


def continuation(source: HeldOut, tokenizer: Tokenizer, seq_length: int, count: int = 100, seed: int = 0) -> Task:
    """`count` passages whose second half stands among three others, taken from elsewhere in the same text.

    The others begin in the same script and have as many tokens, as near as possible; none overlaps the passage.
    """
    draw = _Draw(source, tokenizer, seq_length, f"continuation {seed}")
    items = islice(draw.choice_items(count), count)
    return build_task(f"continuation_{source.corpus}", "choice", items, tokenizer, seq_length, rejected=draw.rejected)


class _Draw:
    """Draws passages; words go by their number, and `rejected` counts the places that were no good."""

    def __init__(self, source: HeldOut, tokenizer: Tokenizer, seq_length: int, key: str):
        self.text, self.starts, self.ends = source.text, source.starts, source.ends
        self.corpus, self.tokenizer = source.corpus, tokenizer
        self.longest = min(MAX_PASSAGE, seq_length)
        self.shortest = max(1, self.longest // 2)
        self.rng = np.random.RandomState(crc32(f"{key} {source.corpus}".encode()))
        self.rejected = Counter()

    def passages(self, count: int) -> Iterator[tuple[int, int]]:
        """(first word, last word) of passages in random order."""
        for last in self.rng.permutation(len(self.ends))[:count * TRIES].tolist():
            length = self.rng.randint(self.shortest, self.longest + 1)
            end = int(self.ends[last])
            document = self.text.rfind(DOCUMENT_END, 0, end) + 1
            lowest = max(int(np.searchsorted(self.starts, document)), last - WORDS_PER_TOKEN * length)
            first = bisect_left(range(last + 1), -length, lowest, last, key=lambda i: -self.tokens(self.starts[i], end))
            if end == len(self.text):
                self.rejected["the text ends there, perhaps within a word"] += 1
            elif not self.shortest <= self.tokens(self.starts[first], end) <= self.longest:
                self.rejected[f"no passage of {self.shortest} to {self.longest} tokens ends there"] += 1
            else:
                yield first, last

    def cloze_items(self, count: int) -> Iterator[Item]:
        for first, last in self.passages(count):
            start, end = int(self.starts[last]), int(self.ends[last])
            passage, context = self.text[self.starts[first]:end], self.text[self.starts[first]:start].rstrip(" ")
            following = self.text[end:end + 16].split(DOCUMENT_END)[0]
            if NO_LETTER.search(self.text, start, end):
                self.rejected["the last word is not all letters"] += 1
            elif not (context and self.whole(context, passage[len(context):]) and self.whole(passage, following)):
                self.rejected["the last word shares a token with its neighbours"] += 1
            else:
                yield Item(f"{self.corpus}:{start}", context, (passage[len(context):],), None)

    def choice_items(self, count: int) -> Iterator[Item]:
        for first, last in self.passages(count):
            middle = self.middle(first, last)
            context = self.text[self.starts[first]:self.ends[middle]]
            true = self.text[self.ends[middle]:self.ends[last]]
            if middle == last or not self.whole(context, true):
                self.rejected["a token lies across the middle"] += 1
                continue
            false = self.false_continuations(first, middle, last, context, true)
            if len(false) < 3:
                self.rejected["too little other text for three false continuations"] += 1
                continue
            answer = int(self.rng.randint(4))
            yield Item(f"{self.corpus}:{self.ends[middle]}", context, (*false[:answer], true, *false[answer:]), answer)

    def middle(self, first: int, last: int) -> int:
        """The word after which the passage has at most half of its tokens."""
        end = self.ends[last]
        half = self.tokens(self.starts[first], end) // 2
        return bisect_left(range(last + 1), -half, first, last, key=lambda i: -self.tokens(self.ends[i], end))

    def false_continuations(self, first: int, middle: int, last: int, context: str, true: str) -> list[str]:
        """The three of some candidates that are nearest to the true one in number of tokens; fewer where there are none."""
        wanted, found = len(self.tokenizer.encode(true)), {}
        for start in self.rng.randint(len(self.ends), size=CANDIDATES).tolist():
            stop = self.stretch(start, wanted)
            text = self.text[self.ends[start]:self.ends[stop]]
            overlaps = start < last and stop >= first
            if (stop > start and not overlaps and DOCUMENT_END not in text and text != true
                    and self.is_cjk(start + 1) == self.is_cjk(middle + 1)):
                found[text] = abs(self.tokens(self.ends[start], self.ends[stop]) - wanted)
        nearest = sorted(found, key=found.get)
        return list(islice((text for text in nearest if self.whole(context, text)), 3))

    def stretch(self, start: int, wanted: int) -> int:
        """The last word of the text of about `wanted` tokens behind the word `start`."""
        window = self.text[self.ends[start]:self.ends[min(start + WORDS_PER_TOKEN * wanted, len(self.ends) - 1)]]
        size = len(self.tokenizer.decode(self.tokenizer.encode(window)[:wanted]))
        return int(np.searchsorted(self.ends, self.ends[start] + size, "right")) - 1

    def tokens(self, start: int, end: int) -> int:
        return len(self.tokenizer.encode(self.text[start:end]))

    def whole(self, left: str, right: str) -> bool:
        """Whether no token lies across the border of two texts."""
        tokens = self.tokenizer.encode(left)
        return self.tokenizer.encode(left + right)[:len(tokens)] == tokens

    def is_cjk(self, word: int) -> bool:
        return re.match(f"[{CJK}]", self.text[self.starts[word]]) is not None
