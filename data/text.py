"""Text files to clean text: which files a path means, where documents end, and what happens to bad bytes.

Everything streams in blocks of about 1 MiB, so a file of 10 GB costs no memory (a document that is a line is held whole). What is
always done, and counted: a byte order mark and carriage returns go (CRLF and lone CR become LF), blank documents are left out.
What `on_bad_text` decides: invalid UTF-8 and NUL.
"""
import gzip
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

from parallel.errors import UserError

BLOCK_BYTES = 1 << 20
BOM = b"\xef\xbb\xbf"

OnBadText = Literal["error", "replace", "skip"]


class Piece(NamedTuple):
    """A stretch of clean text; a document is a run of pieces, the last with `ends_document`."""

    text: str
    ends_document: bool


@dataclass
class Counts:
    """What was read from one file, and what was changed or left out on the way."""

    documents: int = 0
    text_bytes: int = 0
    blank_documents: int = 0
    bad_documents_skipped: int = 0
    invalid_characters_replaced: int = 0
    nul_removed: int = 0
    carriage_returns_removed: int = 0
    byte_order_marks_removed: int = 0

    def changes(self) -> dict[str, int]:
        """The counts that are not zero and tell of a change to the text."""
        return {name: n for name, n in vars(self).items() if n and name not in ("documents", "text_bytes")}


@dataclass
class TextFile:
    """One file of a corpus, with the rules to read it by and the counts of the last reading."""

    path: Path
    document: Literal["file", "line"]
    on_bad_text: OnBadText
    counts: Counts = field(default_factory=Counts)

    def pieces(self) -> Iterator[Piece]:
        """Read the file once, as clean text.

        Raises:
            UserError: the file cannot be read, or holds bad text and `on_bad_text` is "error".
        """
        self.counts = Counts()
        reader = {"jsonl": self._json_lines, "line": self._lines, "file": self._whole}[
            "jsonl" if kind_of(self.path) == "jsonl" else self.document]
        try:
            for piece in reader():
                self.counts.documents += piece.ends_document
                self.counts.text_bytes += len(piece.text.encode())
                yield piece
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(f"{self.path}: cannot be read ({error})") from error

    def _whole(self) -> Iterator[Piece]:
        """The whole file as one document; it is read twice, as its end decides whether any of it may be used."""
        clean = (self._clean(data, offset) for offset, data in blocks(self.path))
        blank = True
        for text in clean:
            if text is None:
                self.counts = Counts(bad_documents_skipped=1)
                return
            blank = blank and not text.strip()
        if blank:
            self.counts.blank_documents = 1
            return
        self.counts = Counts()
        waiting = None
        for offset, data in blocks(self.path):
            if waiting is not None:
                yield Piece(waiting, ends_document=False)
            waiting = self._clean(data, offset)
        yield Piece(waiting, ends_document=True)

    def _lines(self) -> Iterator[Piece]:
        """Each line as a document, without its line break."""
        for offset, _, line in lines(self.path):
            text = self._clean(line, offset)
            if text is None:
                self.counts.bad_documents_skipped += 1
                continue
            for part in text.removesuffix("\n").split("\n"):  # a CR became a line break: CRLF leaves one, a lone CR cuts
                if part.strip():
                    yield Piece(part, ends_document=True)
                else:
                    self.counts.blank_documents += 1

    def _json_lines(self) -> Iterator[Piece]:
        """The value of "text" in each line's object as a document."""
        for offset, number, line in lines(self.path):
            raw = self._clean(line, offset)
            if raw is not None and not raw.strip():
                self.counts.blank_documents += 1
                continue
            text = None if raw is None else self._json_text(raw, number)
            if text is None:
                self.counts.bad_documents_skipped += 1
            elif not text.strip():
                self.counts.blank_documents += 1
            else:
                yield Piece(text, ends_document=True)

    def _json_text(self, raw: str, number: int) -> str | None:
        """The clean text of one line's object; None: leave it out."""
        where = f"{self.path}:{number}"
        try:
            record = json.loads(raw)
            text = record["text"] if isinstance(record, dict) else None
            problem = None if isinstance(text, str) else 'the line is not an object with a string under "text"'
        except (ValueError, RecursionError) as error:
            problem = f"not valid JSON ({error})"
        except KeyError:
            problem = 'the object has no key "text"'
        if problem is None:
            # JSON can spell half a surrogate pair, which is no text; its bytes go through the same cleaning as a file's.
            return self._clean(text.encode("utf-8", "surrogatepass"), 0, where=f'{where}: the value of "text"')
        if self.on_bad_text == "skip":
            return None
        raise UserError(f"{where}: {problem}; mend the line, or set data.on_bad_text=skip to leave such lines out")

    def _clean(self, data: bytes, offset: int, where: str | None = None) -> str | None:
        """Bytes that start at `offset` of the unpacked file as clean text; None: bad, and to be left out."""
        where = where or str(self.path)
        if offset == 0 and data.startswith(BOM):
            self.counts.byte_order_marks_removed += 1
            data, offset = data[len(BOM):], offset + len(BOM)
        try:
            text = data.decode()
            problem_at = text.find("\0")
            problem = None if problem_at < 0 else ("NUL", len(text[:problem_at].encode()))
        except UnicodeDecodeError as error:
            problem = (f"invalid UTF-8 (byte 0x{data[error.start]:02x})", error.start)
        if problem:
            if self.on_bad_text == "skip":
                return None
            if self.on_bad_text == "error":
                raise UserError(
                    f"{where}: {problem[0]} at byte {offset + problem[1]}{_utf16_hint(data) if offset == 0 else ''}; "
                    "mend the text, or set data.on_bad_text=replace or =skip")
            text = self._repair(data)
        if "\r" in text:
            self.counts.carriage_returns_removed += text.count("\r")
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        return text

    def _repair(self, data: bytes) -> str:
        text = data.decode(errors="replace")
        self.counts.invalid_characters_replaced += text.count("\ufffd") - data.count("\ufffd".encode())
        self.counts.nul_removed += text.count("\0")
        return text.replace("\0", "")


def _utf16_hint(data: bytes) -> str:
    nul_share = data.count(0) / len(data)
    if data.startswith((b"\xff\xfe", b"\xfe\xff")) or 0.2 < nul_share < 0.8:
        return " (the file looks like UTF-16: convert it, e.g. iconv -f UTF-16 -t UTF-8)"
    return ""


def kind_of(path: Path) -> Literal["text", "jsonl"] | None:
    """What a file's name says it holds; None: not a text file. A last `.gz` says nothing."""
    name = path.name.lower().removesuffix(".gz")
    if name.endswith(".jsonl"):
        return "jsonl"
    return "text" if name.endswith(".txt") else None


def find_files(path: Path, key: str) -> list[Path]:
    """The text files that a path of the config means: itself, or those of a folder and its sub-folders, sorted by name.

    Hidden files, and in a folder all that is neither .txt nor .jsonl (with or without .gz), are left alone.

    Args:
        key: the config key that names the path, for messages.
    """
    if path.is_dir():
        found = [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
        found = [file for file in found if kind_of(file) and not any(
            part.startswith(".") for part in file.relative_to(path).parts)]
        if not found:
            raise UserError(f"{key}: the folder {path} holds no .txt or .jsonl file (.gz allowed); name another one")
        return sorted(found, key=lambda file: file.relative_to(path).as_posix())
    if not path.exists():
        raise UserError(f"{key}: {path} does not exist; give a .txt or .jsonl file (.gz allowed) or a folder of them")
    if kind_of(path) is None:
        raise UserError(f"{key}: {path} is neither .txt nor .jsonl (.gz allowed); rename or convert it")
    return [path]


def open_file(path: Path) -> BinaryIO:
    """A file's bytes, unpacked if they are gzip, whatever the name says."""
    return gzip.open(path) if is_gzip(path) else path.open("rb")


def is_gzip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes) of blocks cut behind a line break, or behind a character where a block has none."""
    with open_file(path) as file:
        offset, rest = 0, b""
        while data := file.read(BLOCK_BYTES):
            data = rest + data
            cut = _cut(data)
            if cut:
                yield offset, data[:cut]
            offset, rest = offset + cut, data[cut:]
        if rest:
            yield offset, rest


def lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """(offset, number from 1, bytes without the LF) of each line."""
    with open_file(path) as file:
        offset = 0
        for number, line in enumerate(file, 1):
            yield offset, number, line.removesuffix(b"\n")
            offset += len(line)


def _cut(data: bytes) -> int:
    """Where to end a block: behind the last line break, else before the last space, else between characters."""
    if cut := data.rfind(b"\n") + 1:
        return cut
    if (cut := data.rfind(b" ")) > 0:
        return cut
    cut = len(data) - 1  # not the last byte: it may be a CR whose LF is still to come
    while cut > len(data) - 5 and cut > 0 and data[cut] & 0xC0 == 0x80:
        cut -= 1
    return cut
