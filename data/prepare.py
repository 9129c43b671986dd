"""`prepare`: corpora to a tokenizer, MindRecord files and a manifest, all or nothing.

All work is done in a temporary folder beside `prepared_dir`, which takes its name only when all is written; a lock lets a second
process wait for the first. What was prepared from the same text with the same settings is left as it is.
"""
import fcntl
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import numpy as np

from data import tokenizer as tokenizers
from data.config import DataConfig, corpora
from data.manifest import (
    FILE_NAME,
    FileEntry,
    InputEntry,
    Manifest,
    SetEntry,
    TokenizerEntry,
    is_current,
    load_manifest,
    read_manifest,
    settings_of,
)
from data.packing import SampleSet, Span, encode_files, num_samples
from data.records import describe, plan, run_jobs
from data.sources import Source, find_sources
from data.text import TextFile
from data.tokenizer import Tokenizer
from parallel.errors import UserError
from parallel.files import fsync_file, fsync_folder, sha256
from parallel.progress import Progress

TOKENIZER_FILE = "tokenizer.model"
TOKEN_COUNTS_FILE = "token_counts.npy"


def prepare(config: DataConfig) -> Manifest:
    """Make `config.prepared_dir` hold what the config describes; does nothing where it does already.

    Raises:
        UserError: text, vocabulary or folder cannot be used; nothing is left behind.
    """
    if (manifest := _without_text(config)) is not None:
        return manifest
    sources = find_sources(config)
    folder = config.prepared_dir.resolve()  # a link to another disk stays one
    with _lock(folder):
        _check_folder(folder)
        manifest = read_manifest(folder)
        if manifest is not None and is_current(manifest, config, sources):
            print(f"data: {folder} is up to date ({manifest.sets['train'].samples:,} samples)", flush=True)
            return manifest
        for left_over in folder.parent.glob(f".{folder.name}.tmp-*"):
            shutil.rmtree(left_over)  # of a killed run; a living one would hold the lock
        work = Path(tempfile.mkdtemp(prefix=f".{folder.name}.tmp-", dir=folder.parent))
        try:
            new = work / "new"
            new.mkdir()
            manifest = _Preparation(config, sources, new, work).run()
            if folder.exists():
                folder.rename(work / "old")
            for file in new.rglob("*"):
                fsync_folder(file) if file.is_dir() else fsync_file(file)
            fsync_folder(new)
            new.rename(folder)
            fsync_folder(folder.parent)
        finally:
            shutil.rmtree(work)
    return manifest


def _without_text(config: DataConfig) -> Manifest | None:
    """What is prepared, where none of the text is on this machine: a cluster needs only the result."""
    roots = [root for paths in (config.path, config.valid_path) if paths is not None for root in corpora(paths).values()]
    if any(root.exists() for root in roots) or read_manifest(config.prepared_dir) is None:
        return None
    manifest = load_manifest(config)
    print(f"data: the text is not here; {config.prepared_dir} is used as it was prepared", flush=True)
    return manifest


def load_tokenizer(config: DataConfig) -> Tokenizer:
    """The tokenizer of the prepared data."""
    return Tokenizer.load(config.prepared_dir / TOKENIZER_FILE)


class _Preparation:
    """One run of `prepare`: the steps in their order, and what they hand on."""

    def __init__(self, config: DataConfig, sources: list[Source], new: Path, work: Path):
        self.config, self.sources, self.new, self.work = config, sources, new, work
        self.files: dict[Source, TextFile] = {source: source.text_file(config) for source in sources}
        self.total_bytes = sum(source.text_size() for source in sources)
        self.num_workers = config.workers(auto_percent=100)

    def run(self) -> Manifest:
        settings = settings_of(self.config)
        tokenizer, entry = self._tokenizer()
        sets = self._sample_sets(self._encode(tokenizer))
        self._check_space(sets)
        jobs = [job for name, samples in sets.items()
                for job in plan(self.new, name, samples, self.config.num_shards if name == "train" else 1)]
        with Progress("write", sum(map(len, sets.values())), "samples") as progress:
            files = run_jobs(jobs, self.num_workers, progress.advance)
        entries = self._describe(sets, files, tokenizer)
        manifest = Manifest(
            format=1, settings=settings, inputs=self._inputs(), tokenizer=entry, sets=entries,
            other_files=tuple(_file_entry(self.new, name) for name in (TOKENIZER_FILE, TOKEN_COUNTS_FILE)),
            versions={"python": platform.python_version(),
                      **{name: version(name) for name in ("mindspore", "sentencepiece", "numpy")}})
        manifest.write(self.new)
        self._report(manifest)
        return manifest

    def _tokenizer(self) -> tuple[Tokenizer, TokenizerEntry]:
        given = self.config.tokenizer.model
        training = [source for source in self.sources if source.split == "train"]
        if given is None:
            size = sum(source.text_size() for source in training)
            texts = (piece.text for source in training for piece in self.files[source].pieces())
            model = tokenizers.train(_not_empty(texts), size, self.config.tokenizer)
        else:
            model = given.read_bytes()
            Tokenizer.load(given).check_given(given)
        (self.new / TOKENIZER_FILE).write_bytes(model)
        tokenizer = Tokenizer(model)
        lines = [line for source in training for line in _first_lines(self.files[source])]
        lossy = tokenizer.lossy_share(lines)
        print(f"data: tokenizer of {tokenizer.vocab_size:,} pieces, {1 - lossy:.1%} of {len(lines)} lines unchanged by a "
              "round trip", flush=True)
        if lossy:
            print(f"data: WARNING: {lossy:.1%} of the lines come back changed: {given} normalises text or adds blanks; what the "
                  "model writes will differ from the corpus in the same way", flush=True)
        return tokenizer, TokenizerEntry(sha256=tokenizer.sha256, vocab_size=tokenizer.vocab_size, lossy_share=lossy)

    def _encode(self, tokenizer: Tokenizer) -> dict[tuple[str, str], tuple[Path, int]]:
        """(split, corpus) -> the file of its tokens, and how many samples they make."""
        rows = {}
        with Progress("encode", self.total_bytes, "MB", scale=1e6) as progress:
            for split, corpus in dict.fromkeys((source.split, source.corpus) for source in self.sources):
                files = [self.files[source] for source in self.sources if (source.split, source.corpus) == (split, corpus)]
                path = self.work / f"{split}_{corpus}.tokens"
                with path.open("wb") as out:
                    num_tokens = encode_files(files, tokenizer, out, self.num_workers, progress.advance)
                rows[split, corpus] = path, num_samples(num_tokens, self.config.seq_length)
                if not rows[split, corpus][1]:
                    self._refuse_empty(split, corpus, files)
        return rows

    def _refuse_empty(self, split: str, corpus: str, files: list[TextFile]) -> None:
        blank = sum(file.counts.blank_documents for file in files)
        bad = sum(file.counts.bad_documents_skipped for file in files)
        key = "data.path" if split == "train" else "data.valid_path"
        raise UserError(f"{key}: the corpus {corpus} holds no text ({len(files)} files, {blank} blank documents, {bad} "
                        "left out as bad text); give it text, or take it out")

    def _sample_sets(self, rows: dict[tuple[str, str], tuple[Path, int]]) -> dict[str, SampleSet]:
        """`train` over all corpora and `valid_<corpus>` for each."""
        train, valid = [], {}
        for corpus in sorted(corpora(self.config.path)):
            path, count = rows["train", corpus]
            if self.config.valid_path is None:
                held_out = max(1, round(count * self.config.valid_fraction)) if count > 1 else 0
                valid[corpus] = Span(path, count - held_out, held_out)
                count -= held_out
            else:
                valid[corpus] = Span(rows["valid", corpus][0], 0, rows["valid", corpus][1])
            train.append(Span(path, 0, count))
        return {"train": SampleSet(tuple(train), self.config.seq_length),
                **{f"valid_{corpus}": SampleSet((span,), self.config.seq_length) for corpus, span in valid.items()}}

    def _check_space(self, sets: dict[str, SampleSet]) -> None:
        needed = sum(map(len, sets.values())) * (4 * self.config.seq_length + 200) + (200 << 10)
        free = shutil.disk_usage(self.work).free
        if needed > free:
            raise UserError(f"data.prepared_dir: the MindRecord files need about {needed / 1e9:.2f} GB, {self.work.parent} has "
                            f"{free / 1e9:.2f} GB free; make room or name another folder")

    def _describe(self, sets: dict[str, SampleSet], files: dict[str, tuple[FileEntry, ...]],
                  tokenizer: Tokenizer) -> dict[str, SetEntry]:
        lengths = tokenizer.byte_lengths()
        described = {name: describe(samples, files.get(name, ()), lengths) for name, samples in sets.items()}
        np.save(self.new / TOKEN_COUNTS_FILE, described["train"][1])
        return {name: entry for name, (entry, _) in described.items()}

    def _inputs(self) -> tuple[InputEntry, ...]:
        return tuple(InputEntry(
            split=source.split, corpus=source.corpus, name=source.name, size=source.size, mtime_ns=source.mtime_ns,
            sha256=sha256(source.path), documents=file.counts.documents, text_bytes=file.counts.text_bytes,
            changes=file.counts.changes()) for source, file in self.files.items())

    def _report(self, manifest: Manifest) -> None:
        for entry in manifest.inputs:
            if entry.changes:
                changes = ", ".join(f"{name.replace('_', ' ')}: {n:,}" for name, n in entry.changes.items())
                print(f"data: {entry.corpus}/{entry.name}: {changes}")
        trained_on = {entry.sha256 for entry in manifest.inputs if entry.split == "train"}
        for entry in manifest.inputs:
            if entry.split == "valid" and entry.sha256 in trained_on:
                print(f"data: WARNING: {entry.name} of valid_path is training text too; its perplexity will mean nothing")
        for name, entry in manifest.sets.items():
            print(f"data: {name}: {entry.samples:,} samples, {entry.tokens:,} tokens, {entry.documents:,} documents, "
                  f"{entry.text_bytes / 1e3:,.0f} kB", flush=True)


def _not_empty(texts: Iterator[str]) -> Iterator[str]:
    """The texts, or an error if there is none, which sentencepiece would word less clearly."""
    empty = True
    for text in texts:
        empty = False
        yield text
    if empty:
        raise UserError("data.path: all training text is empty, blank or left out as bad text; give it text")


def _first_lines(file: TextFile) -> list[str]:
    """Up to 200 lines from the start of a file, for the round trip."""
    for piece in file.pieces():
        return [line for line in piece.text.split("\n") if line][:200]
    return []


def _file_entry(folder: Path, name: str) -> FileEntry:
    return FileEntry(name=name, size=(folder / name).stat().st_size, sha256=sha256(folder / name))


def _check_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise UserError(f"data.prepared_dir: {folder} is a file; name a folder")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / FILE_NAME).is_file():
        raise UserError(f"data.prepared_dir: {folder} holds other files and no {FILE_NAME}; name a new or empty folder")


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Hold the right to prepare a folder; it ends with the process, however that ends."""
    path = folder.parent / f".{folder.name}.lock"
    while True:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("w")
        except OSError as error:
            raise UserError(f"data.prepared_dir: {folder.parent} cannot be written ({error}); name another folder") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"data: waiting for another process that prepares {folder}", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        # The one that held it may have deleted the file: then this lock is on a file that nobody else will find.
        if path.exists() and os.fstat(file.fileno()).st_ino == path.stat().st_ino:
            break
        file.close()
    try:
        yield
    finally:
        path.unlink()
        file.close()
