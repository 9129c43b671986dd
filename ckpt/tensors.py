"""Tensors in safetensors files: written in a stream, read lazily, whole or in part; one may lie in parts in several files.

The format is a length, a header in JSON, and the data; safetensors' own reader reads what is written here. Its own writer wants a
second copy of every tensor as bytes, and cannot tell the SHA-256 of what it wrote without reading it again.
"""
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path

import numpy as np

TYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "I64": np.int64, "I32": np.int32, "U8": np.uint8,
         "BOOL": np.bool_}
NAMES = {np.dtype(kind): name for name, kind in TYPES.items()}
PARTS = "parts"  # in a file's metadata: name -> {"shape" of the whole tensor, "start" of this part in it}
CHUNK = 1 << 24  # bytes that are written or hashed at once


class BrokenCheckpoint(Exception):
    """A file or folder that is no whole checkpoint; the text says what is wrong with it."""


@dataclass(frozen=True)
class Place:
    """Where a part lies: the whole tensor's shape, and the index of the part's first element in it."""

    shape: tuple[int, ...]
    start: tuple[int, ...]


Pieces = Sequence[bytes | np.ndarray]


def pieces_of(arrays: Mapping[str, np.ndarray], places: Mapping[str, Place] | None = None) -> Pieces:
    """What a file of these tensors consists of: its header, and the arrays.

    Args:
        places: of those that are parts.
    """
    header, end = {}, 0
    if places:
        header["__metadata__"] = {PARTS: json.dumps({n: {"shape": p.shape, "start": p.start} for n, p in places.items()})}
    for name, array in arrays.items():
        header[name] = {"dtype": NAMES[array.dtype], "shape": array.shape, "data_offsets": [end, end := end + array.nbytes]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little") + text, *arrays.values()]


def write_pieces(path: Path, pieces: Pieces) -> int:
    """Write a file, without waiting for the disk. Returns its size in bytes."""
    size = 0
    with open(path, "wb", buffering=0) as file:
        for chunk in _chunks(pieces):
            size += len(chunk)
            while chunk:
                chunk = chunk[file.write(chunk):]
    return size


def digest_of(pieces: Pieces) -> str:
    """SHA-256, in hex, of what is to be written."""
    digest = hashlib.sha256()
    for chunk in _chunks(pieces):
        digest.update(chunk)
    return digest.hexdigest()


def _chunks(pieces: Pieces) -> Iterator[memoryview]:
    for piece in pieces:
        flat = memoryview(piece if isinstance(piece, bytes) else piece.reshape(-1).view(np.uint8))
        for at in range(0, len(flat), CHUNK):
            yield flat[at:at + CHUNK]


@dataclass(frozen=True)
class _Piece:
    """Values in a file.

    Args:
        start: where they begin in the whole tensor.
        mapped: the same values in the file's memory map.
        file: open.
        offset: of the first of them, in bytes.
    """

    start: tuple[int, ...]
    mapped: np.ndarray
    file: FileIO
    offset: int

    def read(self, region: tuple[slice, ...]) -> np.ndarray:
        """A part of them; reading into fresh memory is twice as fast as copying from a map, page by page."""
        if any(s.stop - s.start != n for s, n in zip(region[1:], self.mapped.shape[1:], strict=True)):
            return self.mapped[region]
        found = np.empty([s.stop - s.start for s in region], self.mapped.dtype)
        row = math.prod(self.mapped.shape[1:]) * self.mapped.itemsize
        at, left = self.offset + (region[0].start * row if region else 0), memoryview(found.reshape(-1).view(np.uint8))
        while left:
            if not (count := os.preadv(self.file.fileno(), [left], at)):
                raise BrokenCheckpoint(f"{self.file.name} ends too soon")
            at, left = at + count, left[count:]
        return found


@dataclass
class _Stored:
    shape: tuple[int, ...]
    parts: list[_Piece] = field(default_factory=list)


class Tensors(Mapping[str, np.ndarray]):
    """The tensors of some files, name -> array. Nothing is read before it is used, and each time anew; the files stay open.

    Raises BrokenCheckpoint where a file cannot be read, or parts do not make up a whole.
    """

    def __init__(self, paths: Sequence[Path]):
        self._stored: dict[str, _Stored] = {}
        self._files: list[FileIO] = []
        for path in paths:
            try:
                self._add(path)
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise BrokenCheckpoint(f"{path} cannot be read ({error})") from None

    def _add(self, path: Path) -> None:
        self._files.append(file := open(path, "rb", buffering=0))  # noqa: SIM115  until nobody reads any more
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        places = json.loads(header.pop("__metadata__", {}).get(PARTS, "{}"))
        holds = any(t["data_offsets"][1] for t in header.values())  # an empty map is refused
        data = np.memmap(path, np.uint8, "r", 8 + length) if holds else np.zeros(0, np.uint8)
        for name, tensor in header.items():
            start, end = tensor["data_offsets"]
            array = data[start:end].view(TYPES[tensor["dtype"]]).reshape(tensor["shape"])
            place = places.get(name, {"shape": array.shape, "start": [0] * array.ndim})
            stored = self._stored.setdefault(name, _Stored(tuple(place["shape"])))
            if stored.shape != tuple(place["shape"]):
                raise ValueError(f"{name} is of another shape here than in another file")
            stored.parts.append(_Piece(tuple(place["start"]), array, file, 8 + length + start))

    def __del__(self):
        for file in self._files:
            file.close()

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)

    def shape(self, name: str) -> tuple[int, ...]:
        """Of the whole tensor."""
        return self._stored[name].shape

    def __getitem__(self, name: str) -> np.ndarray:
        return self.read(name, tuple(slice(0, n) for n in self._stored[name].shape))

    def read(self, name: str, region: tuple[slice, ...]) -> np.ndarray:
        """A part of a tensor: a slice with start and stop for each axis."""
        stored = self._stored[name]
        begin, end = ([getattr(s, key) for s in region] for key in ("start", "stop"))
        found, filled, size = None, 0, int(np.prod([b - a for a, b in zip(begin, end, strict=True)]))
        for piece in stored.parts:
            low = [max(a, s) for a, s in zip(begin, piece.start, strict=True)]
            high = [min(b, s + n) for b, s, n in zip(end, piece.start, piece.mapped.shape, strict=True)]
            if any(a >= b for a, b in zip(low, high, strict=True)):
                continue
            here = piece.read(tuple(slice(a - s, b - s) for a, b, s in zip(low, high, piece.start, strict=True)))
            if low == begin and high == end:
                return here
            if found is None:
                found = np.empty([b - a for a, b in zip(begin, end, strict=True)], here.dtype)
            found[tuple(slice(a - o, b - o) for a, b, o in zip(low, high, begin, strict=True))] = here
            filled += here.size
        if found is None or filled != size:
            raise BrokenCheckpoint(f"{name}: its files hold {filled} of the {size} values that are needed")
        return found


def shapes(tensors: Mapping[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    """Of whole tensors, without reading any."""
    return {name: tensors.shape(name) if isinstance(tensors, Tensors) else tensors[name].shape for name in tensors}


def read(tensors: Mapping[str, np.ndarray], name: str, region: tuple[slice, ...]) -> np.ndarray:
    """A part of a tensor, of arrays that are there or in files."""
    return tensors.read(name, region) if isinstance(tensors, Tensors) else tensors[name][(*region, ...)]
