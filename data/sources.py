"""The files that the config names, as sources with an identity: what decides whether prepared data is still up to date."""
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from data.config import DataConfig, corpora
from data.text import TextFile, find_files, is_gzip
from parallel.errors import UserError


@dataclass(frozen=True)
class Source:
    """One text file of a corpus. `name` is relative to the corpus' path, so moving a corpus does not change it."""

    split: Literal["train", "valid"]
    corpus: str
    name: str
    path: Path
    size: int
    mtime_ns: int

    @property
    def identity(self) -> tuple[str, str, str, int]:
        """What can be compared without reading the file."""
        return self.split, self.corpus, self.name, self.size

    def text_size(self) -> int:
        """Bytes of its text, guessed where it is packed."""
        return 4 * self.size if is_gzip(self.path) else self.size

    def text_file(self, config: DataConfig) -> TextFile:
        return TextFile(self.path, config.document, config.on_bad_text)


def find_sources(config: DataConfig) -> list[Source]:
    """All files of all corpora, in the order in which they are prepared.

    Raises:
        UserError: a path does not exist, or holds no text file.
    """
    splits = {"train": ("data.path", config.path), "valid": ("data.valid_path", config.valid_path)}
    sources = []
    for split, (key, value) in splits.items():
        for corpus, root in sorted(corpora(value).items()) if value is not None else ():
            for path in find_files(root, key):
                name = path.name if path == root else path.relative_to(root).as_posix()
                try:
                    name.encode()
                    stat = path.stat()
                except (OSError, UnicodeEncodeError) as error:
                    raise UserError(f"{key}: {ascii(str(path))} cannot be read: {error}") from None
                sources.append(Source(split, corpus, name, path, stat.st_size, stat.st_mtime_ns))
    return sources
