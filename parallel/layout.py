"""Which part of a parameter a rank holds, by the entry that MindSpore's `cell.parameter_layout_dict` has for it after compiling.

An entry is (device matrix, tensor map, shape of a slice, field size, uniform split, group of the optimizer sharding, whole
shape, ...). It is about the ranks of one pipeline stage. The device matrix gives them coordinates, the last axis running
fastest; the map says of each axis of the tensor which axis of the matrix, counted from the last one, cuts it (-1: none).
Where the optimizer is sharded (`AutoParallel.hsdp`) the entry names a group, the ranks that would hold the same slice: they
share it out among themselves along its first axis, in the order of their numbers. The shape in the entry is the one before that.
"""
from collections.abc import Mapping, Sequence

import numpy as np

_MATRIX, _MAP, _GROUP, _WHOLE = 0, 1, 5, 6


def plain(layouts: Mapping[str, Sequence]) -> dict[str, list]:
    """A `parameter_layout_dict` as JSON has it."""
    return {name: list(map(_plain, layout)) for name, layout in layouts.items()}


def _plain(value):
    return list(map(_plain, value)) if isinstance(value, list | tuple) else value if isinstance(value, int) else str(value)


def slice_of(whole: np.ndarray, layout: Sequence, rank_in_stage: int) -> np.ndarray:
    """The part of a parameter that a rank holds: a view."""
    return whole[region(layout, whole.shape, rank_in_stage)]


def whole_of(parts: Mapping[int, np.ndarray], layout: Sequence) -> np.ndarray:
    """The parameter from its parts: rank in the stage -> part. Of several ranks that hold the same part, the lowest counts.

    Raises ValueError if an element is held by none of them.
    """
    shape = tuple(layout[_WHOLE])
    whole, held = np.zeros(shape, next(iter(parts.values())).dtype), np.zeros(shape, bool)
    for rank in sorted(parts, reverse=True):
        index = region(layout, shape, rank)
        whole[index], held[index] = parts[rank], True
    if not held.all():
        raise ValueError(f"ranks {sorted(parts)} together do not hold the whole of a parameter of shape {list(shape)}")
    return whole


def region(layout: Sequence, shape: tuple[int, ...], rank: int) -> tuple[slice, ...]:
    """The part of a parameter of this shape that a rank, by its number in the stage, holds."""
    matrix, tensor_map = list(layout[_MATRIX]), list(layout[_MAP])
    coordinates = np.unravel_index(rank, matrix)
    index = []
    for size, m in zip(shape, tensor_map, strict=True):
        axis = len(matrix) - 1 - m
        n, i = (1, 0) if m == -1 else (matrix[axis], int(coordinates[axis]))
        index.append(slice(i * size // n, (i + 1) * size // n))
    if layout[_GROUP]:
        uncut = [axis for axis in range(len(matrix)) if len(matrix) - 1 - axis not in tensor_map]
        n, i = 1, 0
        for axis in uncut:
            n, i = n * matrix[axis], i * matrix[axis] + int(coordinates[axis])
        _check_group(layout, n)
        first = index[0]
        size = (first.stop - first.start) // n
        index[0] = slice(first.start + i * size, first.start + (i + 1) * size)
    return tuple(index)


def _check_group(layout: Sequence, size: int) -> None:
    """MindSpore names a group <number of ranks>-<hash>; a smaller one than all holders is made by hsdp(shard_size=...)."""
    number = str(layout[_GROUP]).partition("-")[0]
    if number.isdigit() and int(number) != size:
        raise ValueError(f"the optimizer is sharded over {number} of the {size} ranks that hold the same slice: only sharding "
                         "over all of them is known here (hsdp without shard_size)")
