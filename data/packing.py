"""Documents to one row of tokens for each corpus, and that row to samples."""
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from data.text import Piece, TextFile
from data.tokenizer import EOS_ID, PAD_ID, Tokenizer
from parallel.errors import UserError

# Text given to a thread at once.
BATCH_CHARS = 1 << 20
# A long text is cut at line ends into chunks of about this size: the tokenizer reads them some 30 % faster than chunks of 16 Ki.
CHUNK_CHARS = 512
# Samples cut at once.
BLOCK_SAMPLES = 1024


def encode_files(files: list[TextFile], tokenizer: Tokenizer, out: BinaryIO, num_threads: int,
                 advance: Callable[[float], None]) -> int:
    """Write all documents of a corpus as int32 tokens, each document followed by eos.

    Batches go to the threads in turn, and are written in that order, while the text that follows is being read.

    Args:
        advance: told the bytes of text that were encoded.

    Returns:
        the number of tokens.
    """
    num_tokens = 0
    waiting: deque[Future[tuple[np.ndarray, int]]] = deque()

    def write_oldest() -> int:
        row, size = waiting.popleft().result()
        _write(out, row)
        advance(size)
        return len(row)

    with ThreadPoolExecutor(num_threads, "encode") as pool:
        for batch in _batches(files):
            waiting.append(pool.submit(_encode, tokenizer, batch))
            if len(waiting) > num_threads:
                num_tokens += write_oldest()
        while waiting:
            num_tokens += write_oldest()
    return num_tokens


def _write(out: BinaryIO, content) -> None:
    """To the system, whose refusal is told by the file's name. Raises UserError."""
    try:
        out.write(content)
        out.flush()
    except OSError as error:
        raise UserError(f"{out.name} cannot be written ({error.strerror}): free some space, or choose another "
                        "data.prepared_dir") from None


def _batches(files: list[TextFile]) -> Iterator[list[Piece]]:
    """All text in its order, in lists of about BATCH_CHARS."""
    batch, chars = [], 0
    for file in files:
        for piece in file.pieces():
            batch.append(piece)
            chars += len(piece.text)
            if chars >= BATCH_CHARS:
                yield batch
                batch, chars = [], 0
    if batch:
        yield batch


def _encode(tokenizer: Tokenizer, batch: list[Piece]) -> tuple[np.ndarray, int]:
    """The tokens of some pieces, int32 [tokens], and their bytes of text."""
    chunks, last = [], []  # last: the number of chunks up to each document's end
    for piece in batch:
        chunks += _chunks(piece.text)
        last += [len(chunks)] * piece.ends_document
    ids = tokenizer.encode_arrays(chunks)
    ends = np.cumsum([0, *map(len, ids)])[last]
    return np.insert(np.concatenate(ids), ends, EOS_ID), sum(len(piece.text.encode()) for piece in batch)


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
                for i in range(low, high, BLOCK_SAMPLES):
                    yield self._cut(span.path, span.first + i, span.first + min(i + BLOCK_SAMPLES, high))
            offset += span.count

    def _cut(self, path: Path, first: int, stop: int) -> np.ndarray:
        length = self.seq_length
        wanted = (stop - first) * length + 1
        # Read, not mapped: the pages of a mapped file would be counted as memory of each process that writes.
        tokens = np.fromfile(path, np.int32, wanted, offset=first * length * np.dtype(np.int32).itemsize)
        missing = wanted - len(tokens)
        if missing:
            tokens = np.concatenate([tokens, np.full(missing, PAD_ID, np.int32)])
        return np.lib.stride_tricks.sliding_window_view(tokens, length + 1)[::length]
