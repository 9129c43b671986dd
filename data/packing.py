"""Documents to one row of tokens for each corpus, and that row to samples."""
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import numpy as np

from data.text import TextFile
from data.tokenizer import EOS_ID, PAD_ID, Tokenizer

# Text given to the tokenizer at once; small enough to keep the ids, which are Python integers, within some 100 MB.
BATCH_CHARS = 1 << 20
# A long text is cut at line ends into chunks of about this size, so that the tokenizer's threads have something to share.
CHUNK_CHARS = 16 << 10
# Samples cut at once.
BLOCK_SAMPLES = 1024


def encode_files(files: list[TextFile], tokenizer: Tokenizer, out: BinaryIO, num_threads: int,
                 advance: Callable[[float], None]) -> int:
    """Write all documents of a corpus as int32 tokens, each document followed by eos.

    Args:
        advance: told the bytes of text that were encoded.

    Returns:
        the number of tokens.
    """
    num_tokens, texts, ends, chars = 0, [], [], 0

    def flush() -> int:
        ids = tokenizer.encode_batch(texts, num_threads)
        row = np.fromiter(chain.from_iterable(chain(part, (EOS_ID,)) if end else part
                                              for part, end in zip(ids, ends, strict=True)), np.int32)
        out.write(row.tobytes())
        advance(sum(len(text.encode()) for text in texts))
        texts.clear()
        ends.clear()
        return len(row)

    for file in files:
        for piece in file.pieces():
            chunks = list(_chunks(piece.text))
            texts += chunks
            ends += [False] * (len(chunks) - 1) + [piece.ends_document]
            chars += len(piece.text)
            if chars >= BATCH_CHARS:
                num_tokens, chars = num_tokens + flush(), 0
    return num_tokens + flush()


def _chunks(text: str) -> Iterator[str]:
    """A text cut behind line breaks (always at least one chunk, as a document's end hangs on its last one)."""
    start = 0
    while (end := text.find("\n", start + CHUNK_CHARS) + 1) > 0 and end < len(text):
        yield text[start:end]
        start = end
    yield text[start:]


def num_samples(num_tokens: int, seq_length: int) -> int:
    """How many samples a row of tokens makes: each token but the first is predicted once; the last sample may be padded."""
    return -(-max(num_tokens - 1, 0) // seq_length)


@dataclass(frozen=True)
class Span:
    """A run of samples of one corpus: sample i holds the tokens [i * seq_length, (i + 1) * seq_length] of the row in `path`."""

    path: Path
    first: int
    count: int


@dataclass(frozen=True)
class SampleSet:
    """The samples of several spans, numbered through from 0."""

    spans: tuple[Span, ...]
    seq_length: int

    def __len__(self) -> int:
        return sum(span.count for span in self.spans)

    def blocks(self, start: int, stop: int) -> Iterator[np.ndarray]:
        """The samples start, ..., stop - 1 in blocks of int32 [at most BLOCK_SAMPLES, seq_length + 1]."""
        offset = 0
        for span in self.spans:
            low, high = max(start - offset, 0), min(stop - offset, span.count)
            if low < high:
                row = np.memmap(span.path, np.int32, mode="r")
                for i in range(low, high, BLOCK_SAMPLES):
                    yield self._cut(row, span.first + i, span.first + min(i + BLOCK_SAMPLES, high))
            offset += span.count

    def _cut(self, row: np.ndarray, first: int, stop: int) -> np.ndarray:
        length = self.seq_length
        tokens = row[first * length:stop * length + 1]
        missing = (stop - first) * length + 1 - len(tokens)
        if missing:
            tokens = np.concatenate([tokens, np.full(missing, PAD_ID, np.int32)])
        return np.lib.stride_tricks.sliding_window_view(tokens, length + 1)[::length]
