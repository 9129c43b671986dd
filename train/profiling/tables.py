"""Reading what a profiler wrote, which may have been killed in the midst of it: a broken file is named in one line."""
import csv
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class Broken(Exception):
    """A file that is missing, half-written or of another form; the text is one line that names it and what is wrong."""


def read_text(path: Path) -> str:
    """The whole of it. Raises Broken: it cannot be read, is empty, or ends within a line."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise Broken(f"{path}: missing") from None
    except (OSError, UnicodeDecodeError) as error:
        raise Broken(f"{path}: cannot be read ({error})") from None
    if not text:
        raise Broken(f"{path}: empty, the profiler was stopped before it wrote it")
    if not text.endswith("\n") and path.suffix != ".json":
        raise Broken(f"{path}:{text.count(chr(10)) + 1}: half-written, the last line has no end")
    return text


def read_json(path: Path) -> dict[str, Any]:
    """An object. Raises Broken."""
    try:
        found = json.loads(read_text(path))
    except (json.JSONDecodeError, RecursionError) as error:
        where = f"{path}:{getattr(error, 'lineno', 1)}"
        raise Broken(f"{where}: half-written or no JSON ({getattr(error, 'msg', 'nested too deeply')})") from None
    if not isinstance(found, dict):
        raise Broken(f"{path}: expected a JSON object, this is a {type(found).__name__}")
    return found


def read_table(path: Path, numbers: Sequence[str], texts: Sequence[str] = (), optional: Sequence[str] = ()) -> list[dict]:
    """The rows of a CSV file with the columns that are asked for; others are left out.

    Args:
        numbers: columns that are made float (an empty cell counts 0).
        optional: texts that need not be there.

    Raises Broken: no such column, a row with another number of cells, a cell that is no number, no row.
    """
    lines = csv.reader(read_text(path).splitlines())
    try:
        found = [(lines.line_num, cells) for cells in lines]
    except csv.Error as error:
        raise Broken(f"{path}:{lines.line_num}: no CSV ({error})") from None
    header = [name.strip() for name in found[0][1]]
    if lacking := [name for name in (*numbers, *texts) if name not in header]:
        raise Broken(f"{path}: no column {', '.join(lacking)}; it has {', '.join(header)}")
    rows = []
    for number, cells in found[1:]:
        if len(cells) != len(header):
            raise Broken(f"{path}:{number}: half-written, {len(cells)} of {len(header)} columns")
        row = dict(zip(header, (cell.strip() for cell in cells), strict=True))
        rows.append({name: _number(row[name], name, path, number) for name in numbers}
                    | {name: row[name] for name in texts} | {name: row[name] for name in optional if name in row})
    if not rows:
        raise Broken(f"{path}: no rows")
    return rows


def _number(cell: str, name: str, path: Path, line: int) -> float:
    try:
        value = float(cell or 0)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise Broken(f"{path}:{line}: {name} is {cell!r}, not a number")
    return value
