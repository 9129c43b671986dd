"""Samples to MindRecord files, several at once; each file holds one run of consecutive samples.

A MindDataset over such files, listed in this order, has the sample's number as the row's number (over files into which MindRecord
itself split the rows it has not). Each row carries its number as well, and the reader compares.
"""
import hashlib
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data.manifest import FileEntry, SetEntry
from data.packing import SampleSet
from data.tokenizer import EOS_ID, PAD_ID
from parallel.files import sha256

# MindRecord reserves 16 MiB for a header, also for a file of one sample. Files of less text than this get a header of 256 KiB.
SMALL_FILE = 64 << 20
# A process costs seconds to start, as it imports MindSpore; each further one has to have this much to write.
BYTES_PER_PROCESS = 64 << 20


@dataclass(frozen=True)
class Job:
    """One MindRecord file to write."""

    root: Path
    name: str
    samples: SampleSet
    start: int
    stop: int

    @property
    def size(self) -> int:
        """About the bytes of the file."""
        return (self.stop - self.start) * (4 * (self.samples.seq_length + 1) + 64)

    def run(self, advance: Callable[[int], None]) -> list[FileEntry]:
        """Write the file.

        Args:
            advance: told the number of samples written.
        """
        from data.row_writer import RowWriter  # seconds of import, paid by the process that writes

        path = self.root / self.name
        writer = RowWriter(str(path), shard_num=1)
        length = self.samples.seq_length + 1
        if self.size < SMALL_FILE:
            writer.set_header_size(256 << 10)
        # A page of 1 MiB, of at least four samples, and of so much that the header has room for a list of all. While the index is
        # made some 60 bytes of memory are taken for each byte of a page: 2 GB for MindRecord's own 32 MiB.
        writer.set_page_size(1 << max(20, (16 * length).bit_length(), (self.size >> 14).bit_length()))
        writer.add_schema({"tokens": {"type": "int32", "shape": [length]}, "sample_id": {"type": "int64"}}, "samples")
        number = self.start
        for block in self.samples.blocks(self.start, self.stop):
            writer.write_raw_data([{"tokens": tokens, "sample_id": number + i} for i, tokens in
                                   enumerate(np.ascontiguousarray(block))])
            number += len(block)
            advance(len(block))
        writer.commit()
        return [_finish(self.root, name) for name in (self.name, f"{self.name}.db")]


def _finish(root: Path, name: str) -> FileEntry:
    """Make a written file durable, readable to whom the umask lets (MindRecord makes it private), and hash it."""
    path = root / name
    umask = os.umask(0)
    os.umask(umask)
    path.chmod(0o666 & ~umask)
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return FileEntry(name=name, size=path.stat().st_size, sha256=sha256(path))


def plan(root: Path, set_name: str, samples: SampleSet, num_shards: int) -> list[Job]:
    """The files of a set: `num_shards` of nearly equal size, fewer where there are fewer samples."""
    shards = min(num_shards, len(samples))
    (root / set_name).mkdir()
    borders = [len(samples) * i // shards for i in range(shards + 1)] if shards else []
    return [Job(root, f"{set_name}/{i:05d}-of-{shards:05d}.mindrecord", samples, start, stop)
            for i, (start, stop) in enumerate(zip(borders, borders[1:], strict=False))]


def run_jobs(jobs: list[Job], num_workers: int, advance: Callable[[int], None]) -> dict[str, tuple[FileEntry, ...]]:
    """Write all files, in at most `num_workers` processes at a time; in this one if there is little to write.

    Returns:
        the files of each set, in the order of their samples.
    """
    size = sum(job.size for job in jobs)
    processes = min(num_workers, len(jobs), 1 + size // BYTES_PER_PROCESS)
    written = [job.run(advance) for job in jobs] if processes <= 1 else _run_in_processes(jobs, processes, advance)
    files: dict[str, tuple[FileEntry, ...]] = {}
    for job, entries in zip(jobs, written, strict=True):
        set_name = job.name.split("/")[0]
        files[set_name] = files.get(set_name, ()) + tuple(entries)
    return files


def _run_in_processes(jobs: list[Job], num_workers: int, advance: Callable[[int], None]) -> list[list[FileEntry]]:
    context = multiprocessing.get_context("spawn")  # a fork would copy the threads of libraries in an unknown state
    counter = context.Value("q", 0)
    with ProcessPoolExecutor(num_workers, context, _init_worker, (counter,)) as pool:
        futures = [pool.submit(_run_in_worker, job) for job in jobs]
        shown, waiting = 0, set(futures)
        while waiting:
            _, waiting = wait(waiting, timeout=0.2)
            shown, before = counter.value, shown
            advance(shown - before)
        return [future.result() for future in futures]


def _init_worker(counter) -> None:
    global _counter
    _counter = counter


def _run_in_worker(job: Job) -> list[FileEntry]:
    def advance(amount: int) -> None:
        with _counter.get_lock():
            _counter.value += amount

    return job.run(advance)


def describe(samples: SampleSet, files: tuple[FileEntry, ...], byte_lengths: np.ndarray) -> tuple[SetEntry, np.ndarray]:
    """The manifest's entry of a set, and how often each id is predicted in it: int64 [vocab_size].

    Args:
        byte_lengths: bytes of text that each id stands for: int64 [vocab_size].
    """
    digest = hashlib.sha256()
    counts = np.zeros(len(byte_lengths), np.int64)
    for block in samples.blocks(0, len(samples)):
        digest.update(np.ascontiguousarray(block, "<i4").tobytes())
        counts += np.bincount(block[:, 1:].ravel(), minlength=len(counts))
    counts[PAD_ID] = 0
    entry = SetEntry(samples=len(samples), tokens=int(counts.sum()), documents=int(counts[EOS_ID]),
                     text_bytes=int(counts @ byte_lengths), sha256=digest.hexdigest(), files=files)
    return entry, counts
