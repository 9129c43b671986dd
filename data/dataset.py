"""Batches for a rank: MindRecord rows in the order of data/order.py, cut for this dp rank, from any position at once.

A MindDataset reads the rows that a SubsetSampler lists, in that order. A list of all rows of a long run would take minutes and
gigabytes, so the run is read in windows of some 10^5 rows: while one is read, the next is being opened.
"""
from collections.abc import Iterator, Sequence

import mindspore.dataset as ds
import numpy as np

from data.config import DataConfig
from data.manifest import Manifest
from data.order import Places, SampleOrder
from data.tokenizer import PAD_ID
from parallel.errors import UserError

# Rows that are listed at once: the list costs 40 bytes a row, opening a set about 0.1 s for 10^6 samples in it.
MIN_WINDOW, MAX_WINDOW = 1 << 16, 1 << 22


def train_dataset(manifest: Manifest, config: DataConfig, order: SampleOrder, start_sample: int, num_steps: int,
                  global_batch_size: int, dp_rank: int, dp_size: int, with_sample_id: bool = False,
                  passed_over: Sequence[tuple[int, int]] = ()) -> ds.Dataset:
    """The batches of one dp rank for `num_steps` steps from the position `start_sample` (consumed samples) on.

    Step s reads the positions start_sample + s * G, ..., + G - 1 of the order (G: global_batch_size), rank r the r-th of dp_size
    equal contiguous parts of them. Batches run on across the end of an epoch, so nothing is dropped.

    Args:
        passed_over: ranges [first, stop) of positions that are left out; what follows them moves up.
        with_sample_id: also give the column `sample_id`, int64 [G / dp_size].

    Returns:
        a dataset of `num_steps` elements with the columns `tokens`: int32 [G / dp_size, seq_length + 1], and `positions`: int32
        [G / dp_size], each sample's position modulo 2^32, as int32 wraps around.

    Raises:
        UserError: the training set has fewer samples than one global batch.
    """
    samples = manifest.sets["train"].samples
    if global_batch_size % dp_size or not 0 <= dp_rank < dp_size or order.num_samples != samples:
        raise ValueError(f"global_batch_size {global_batch_size}, rank {dp_rank} of {dp_size}, order of {order.num_samples}, "
                         f"{samples} samples prepared: they do not fit together")
    if samples < global_batch_size:
        raise UserError(
            f"data: the training set has {samples} samples of seq_length={config.seq_length}, one global batch needs "
            f"{global_batch_size} ({dp_size} ranks with {global_batch_size // dp_size} each); give more text, or lower "
            "train.global_batch_size or data.seq_length")
    rows = global_batch_size // dp_size
    places = Places(start_sample, passed_over)

    def positions(first_step: int, stop_step: int) -> np.ndarray:
        steps = np.arange(first_step, stop_step, dtype=np.int64)
        return places.at(steps[:, None] * global_batch_size + dp_rank * rows + np.arange(rows))

    def sample_numbers(first_step: int, stop_step: int) -> np.ndarray:
        return order.at(positions(first_step, stop_step))

    return _dataset(manifest, config, "train", sample_numbers, num_steps, with_sample_id, positions)


def valid_dataset(manifest: Manifest, config: DataConfig, name: str, num_samples: int | None, batch_size: int,
                  dp_rank: int, dp_size: int, with_sample_id: bool = False) -> ds.Dataset | None:
    """This rank's batches of the first samples of a validation set, each sample once on one rank.

    All ranks get the same number of batches (they meet in collectives); rows that are missing for that hold only pad, which
    counts no token, and have the sample_id -1.

    Args:
        name: of a set, e.g. "valid_en".
        num_samples: how many samples; None or more than there are: all.
        batch_size: rows of a batch on one rank.

    Returns:
        a dataset with the column `tokens`: int32 [batch_size, seq_length + 1]; None if there are no samples, in which case the
        caller has nothing to compute and is to say so.
    """
    if name not in manifest.valid_sets:
        raise UserError(f"data: there is no validation set {name}; there are {', '.join(manifest.valid_sets)}")
    total = min(manifest.sets[name].samples, num_samples if num_samples is not None else manifest.sets[name].samples)
    if total < 1:
        return None
    steps = -(-total // (batch_size * dp_size))

    def sample_numbers(first_step: int, stop_step: int) -> np.ndarray:
        batches = dp_rank * steps + np.arange(first_step, stop_step, dtype=np.int64)
        numbers = batches[:, None] * batch_size + np.arange(batch_size)
        return np.where(numbers < total, numbers, -1)

    return _dataset(manifest, config, name, sample_numbers, steps, with_sample_id)


def read_samples(manifest: Manifest, config: DataConfig, numbers: np.ndarray) -> np.ndarray:
    """Training samples by their numbers, int64 [n], straight from the files: int32 [n, seq_length + 1]."""
    source = _RecordSource(manifest, config, "train", lambda first, stop: numbers[None], 1, False, None)
    return next(iter(source))[0]


def _dataset(manifest: Manifest, config: DataConfig, name: str, sample_numbers, num_steps: int,
             with_sample_id: bool, positions=None) -> ds.Dataset:
    source_type = _MemorySource if config.cache == "memory" else _RecordSource
    source = source_type(manifest, config, name, sample_numbers, num_steps, with_sample_id, positions)
    ds.config.set_prefetch_size(config.prefetch)  # MindSpore has no such setting for a single dataset
    columns = ["tokens", *["positions"] * (positions is not None), *["sample_id"] * with_sample_id]
    return ds.GeneratorDataset(source, columns, shuffle=False, num_parallel_workers=1, python_multiprocessing=False)


class _Source:
    """Iterates over batches; each iteration starts anew at the first step.

    `sample_numbers(first_step, stop_step)` gives int64 [steps, rows]: which sample each row of those steps holds, -1 for padding.
    `positions`, of the same form, gives their places in the run, for a column of its own; None: no such column.
    """

    def __init__(self, manifest: Manifest, config: DataConfig, name: str, sample_numbers, num_steps: int, with_sample_id: bool,
                 positions):
        self._entry = manifest.sets[name]
        self._files = self._entry.record_files(config.prepared_dir)
        self._row_length = config.seq_length + 1
        self._workers = config.workers()
        self._sample_numbers = sample_numbers
        self._num_steps = num_steps
        self._with_sample_id, self._positions = with_sample_id, positions
        rows = sample_numbers(0, 1).size
        window = min(max(self._entry.samples // 16, MIN_WINDOW), MAX_WINDOW, self._entry.samples)  # MindRecord lists no more
        self._window_steps = max(1, min(window // rows, num_steps))

    def __len__(self) -> int:
        return self._num_steps

    def __iter__(self) -> Iterator[tuple[np.ndarray, ...]]:
        for step, (numbers, tokens) in enumerate(self._batches()):
            # int64 to int32 wraps around.
            positions = () if self._positions is None else (self._positions(step, step + 1)[0].astype(np.int32),)
            yield (tokens, *positions, *[numbers] * self._with_sample_id)

    def _windows(self) -> Iterator[np.ndarray]:
        for step in range(0, self._num_steps, self._window_steps):
            yield self._sample_numbers(step, min(step + self._window_steps, self._num_steps))

    def _batches(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        raise NotImplementedError

    def _open(self, numbers: np.ndarray, batch_size: int) -> Iterator[list[np.ndarray]]:
        """Start to read the given rows, in batches."""
        reader = ds.MindDataset(self._files, columns_list=["sample_id", "tokens"], sampler=ds.SubsetSampler(numbers.tolist()),
                                num_parallel_workers=self._workers)
        return reader.batch(batch_size).create_tuple_iterator(num_epochs=1, output_numpy=True)

    def _check(self, expected: np.ndarray, found: np.ndarray) -> None:
        if not np.array_equal(expected, found):
            raise RuntimeError(f"{self._files[0]}: asked for the samples {expected[:4]}..., read {found[:4]}...; prepare again")


class _RecordSource(_Source):
    """Reads each window's rows from the MindRecord files while the window before it is being consumed."""

    def _batches(self):
        windows = map(self._open_window, self._windows())
        upcoming = next(windows, None)
        while upcoming is not None:
            (numbers, batches), upcoming = upcoming, None
            for i, expected in enumerate(numbers):
                yield expected, self._next_batch(expected, batches)
                if i == 0:  # not sooner: the first batch of a run should not wait for the second window
                    upcoming = next(windows, None)

    def _next_batch(self, expected: np.ndarray, batches) -> np.ndarray:
        tokens = np.full((len(expected), self._row_length), PAD_ID, np.int32)
        real = expected >= 0
        if real.any():
            found, rows = next(batches)
            self._check(expected[real], found)
            tokens[real] = rows
        return tokens

    def _open_window(self, numbers: np.ndarray):
        # Padding comes last, so the reader's batches are ours, and its last one may be short.
        real = numbers[numbers >= 0]
        return numbers, self._open(real, numbers.shape[1]) if real.size else iter(())


class _MemorySource(_Source):
    """Reads all rows once, when the first batch is asked for, and serves every iteration from memory."""

    _rows: np.ndarray | None = None

    def _batches(self):
        if self._rows is None:
            self._rows = self._read_all()
        for numbers in self._windows():
            for expected in numbers:
                yield expected, np.where(expected[:, None] >= 0, self._rows[expected], np.int32(PAD_ID))

    def _read_all(self) -> np.ndarray:
        rows = np.empty((self._entry.samples, self._row_length), np.int32)
        done = 0
        for found, tokens in self._open(np.arange(len(rows)), 256):
            self._check(np.arange(done, done + len(found)), found)
            rows[done:done + len(found)] = tokens
            done += len(found)
        return rows
