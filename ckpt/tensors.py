"""Tensors in safetensors files: written in a stream, read lazily, whole or in part; one may lie in parts in several files.

The format is a length, a header in JSON, and the data; safetensors' own reader reads what is written here. Its own writer wants a
second copy of every tensor as bytes, and cannot tell the SHA-256 of what it wrote without reading it again.
"""
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

TYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "I64": np.int64, "I32": np.int32, "U8": np.uint8,
         "BOOL": np.bool_}
NAMES = {np.dtype(kind): name for name, kind in TYPES.items()}
PARTS = "parts"  # in a file's metadata: name -> {"shape" of the whole tensor, "start" of this part in it}
CHUNK = 1 << 24  # bytes that are written and hashed at once


class BrokenCheckpoint(Exception):
    """A file or folder that is no whole checkpoint; the text says what is wrong with it."""


@dataclass(frozen=True)
class Place:
    """Where a part lies: the whole tensor's shape, and the index of the part's first element in it."""

    shape: tuple[int, ...]
    start: tuple[int, ...]


def write_tensors(path: Path, arrays: Mapping[str, np.ndarray], places: Mapping[str, Place] | None = None) -> tuple[int, str]:
    """Write a file, and wait until the disk has it. Hashing and writing go on side by side.

    Args:
        places: of those that are parts.

    Returns (bytes, SHA-256 in hex) of what was to be written.
    """
    header, end = {}, 0
    if places:
        header["__metadata__"] = {PARTS: json.dumps({n: {"shape": p.shape, "start": p.start} for n, p in places.items()})}
    for name, array in arrays.items():
        header[name] = {"dtype": NAMES[array.dtype], "shape": array.shape, "data_offsets": [end, end := end + array.nbytes]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest, size = hashlib.sha256(), 0
    with open(path, "wb", buffering=0) as file, ThreadPoolExecutor(1) as hasher:
        for chunk in _chunks([len(text).to_bytes(8, "little") + text, *arrays.values()]):
            hashed = hasher.submit(digest.update, chunk)
            left = chunk
            while left:
                left = left[file.write(left):]
            hashed.result()
            size += len(chunk)
        os.fsync(file.fileno())
    return size, digest.hexdigest()


def _chunks(pieces: Sequence[bytes | np.ndarray]) -> Iterator[memoryview]:
    for piece in pieces:
        flat = memoryview(piece if isinstance(piece, bytes) else piece.reshape(-1).view(np.uint8))
        for at in range(0, len(flat), CHUNK):
            yield flat[at:at + CHUNK]


@dataclass
class _Stored:
    shape: tuple[int, ...]
    parts: list[tuple[tuple[int, ...], np.ndarray]] = field(default_factory=list)  # start, values


class Tensors(Mapping[str, np.ndarray]):
    """The tensors of some files, name -> array. Nothing is read before it is used; a tensor in one piece is not copied.

    Raises BrokenCheckpoint where a file cannot be read, or parts do not make up a whole.
    """

    def __init__(self, paths: Sequence[Path]):
        self._stored: dict[str, _Stored] = {}
        for path in paths:
            try:
                self._add(path)
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise BrokenCheckpoint(f"{path} cannot be read ({error})") from None

    def _add(self, path: Path) -> None:
        with open(path, "rb") as file:
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
            stored.parts.append((tuple(place["start"]), array))

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
        for start, values in stored.parts:
            low = [max(a, s) for a, s in zip(begin, start, strict=True)]
            high = [min(b, s + n) for b, s, n in zip(end, start, values.shape, strict=True)]
            if any(a >= b for a, b in zip(low, high, strict=True)):
                continue
            here = values[(*(slice(a - s, b - s) for a, b, s in zip(low, high, start, strict=True)), ...)]
            if low == begin and high == end:
                return here
            if found is None:
                found = np.empty([b - a for a, b in zip(begin, end, strict=True)], values.dtype)
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
