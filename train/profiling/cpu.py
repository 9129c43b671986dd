"""A CPU's profile: FRAMEWORK/cpu_*.  Column names are MindSpore 2.10's.

The profiler writes every execution of every operator with its time, but neither steps nor communication: those come of our marks.
"""
import re
from collections import Counter
from pathlib import Path

import numpy as np

from train.profiling.figures import Operator, RankProfile, StepTime, Transfer, between_ranks
from train.profiling.matrix import flops_of_inputs, is_product, shapes_of_cpu
from train.profiling.tables import Broken, read_table, read_text
from train.profiling.windows import Marks

CUSTOM = "Custom"
PRODUCT_CELLS = {"Affine", "Product", "HeadLoss"}  # whose compiled operators of two matrices are products
OPERATOR = re.compile(r"([^/]+?)-op\d*$")


def read(profile: RankProfile, folder: Path, marks: Marks | None) -> None:
    """Fill in what the folder FRAMEWORK tells; what is broken goes to the profile's problems."""
    if marks is None:
        profile.problems.append("without step marks a CPU's profile has no steps")
    for part in (_steps, _operators, _memory):
        try:
            part(profile, folder, marks)
        except Broken as broken:
            profile.problems.append(str(broken))


def _file(folder: Path, name: str) -> Path:
    """<name>_<number of the device>.<ending>."""
    stem, _, ending = name.partition(".")
    return next(iter(sorted(folder.glob(f"{stem}_*.{ending}"))), folder / f"{stem}_0.{ending}")


def executions(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(begin, end, is communication) of each: float64 [n] and [n] seconds since 1970, bool [n]. Raises Broken."""
    begins, ends, communicates = [], [], []
    for number, line in enumerate(read_text(path).splitlines(), 1):
        try:
            name, _, times = line.split(";")
            kind = OPERATOR.search(name)
            between = kind is not None and between_ranks(kind[1])
            for one in times.split():
                begin, milliseconds, _ = one.split(",")
                begins.append(int(begin) * 1e-9)
                ends.append(begins[-1] + float(milliseconds) * 1e-3)
                communicates.append(between)
        except ValueError:
            raise Broken(f"{path}:{number}: half-written, expected name;HostCpuOps;ns,ms,thread ...") from None
    return np.array(begins), np.array(ends), np.array(communicates, bool)


def covered(begins: np.ndarray, ends: np.ndarray, first: float, last: float) -> list[tuple[float, float]]:
    """The union of the intervals, cut to [first, last]."""
    found: list[tuple[float, float]] = []
    for i in np.argsort(begins):
        begin, end = max(float(begins[i]), first), min(float(ends[i]), last)
        if begin >= end:
            continue
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def _steps(profile: RankProfile, folder: Path, marks: Marks | None) -> None:
    if marks is None:
        return
    begins, ends, between = executions(_file(folder, "cpu_op_execute_timestamp.txt"))
    for mark in marks.steps:
        near = (ends > mark.begin) & (begins < mark.end)
        parts = [covered(begins[chosen], ends[chosen], mark.begin, mark.end) for chosen in (near & ~between, near)]
        computation, busy = (sum(end - begin for begin, end in part) for part in parts)
        communication = busy - computation + mark.gap.get("meet", 0.0)
        data = mark.gap.get("data", 0.0)
        host = max(0.0, mark.seconds - computation - communication - data)
        seconds = computation + communication + data + host
        profile.steps.append(StepTime(mark.step, seconds, computation, communication, data, host))


def _operators(profile: RankProfile, folder: Path, _) -> None:
    rows = read_table(_file(folder, "cpu_op_type_info.csv"), ["type_occurrences", "total_compute_time"], ["op_type"])
    try:
        flops = products(_file(folder, "cpu_framework.txt"))
    except Broken as broken:
        flops = {}
        profile.problems.append(str(broken))
    own = _custom(profile, folder) if any(row["op_type"] == CUSTOM for row in rows) else []
    profile.operators += own
    for row in rows:
        if own and row["op_type"] == CUSTOM:
            continue
        kind, calls = row["op_type"], int(row["type_occurrences"])
        if between_ranks(kind):
            profile.transfers.append(Transfer(kind, calls, row["total_compute_time"] * 1e-3))
            continue
        counted, total = flops.get(kind, (0, None))
        profile.operators.append(Operator(kind, calls, row["total_compute_time"] * 1e-3, total if counted == calls else None))


def _custom(profile: RankProfile, folder: Path) -> list[Operator]:
    """Operators that were compiled for this model have one type: told apart by the class of the cell that they stand in."""
    calls, seconds, flops = Counter(), Counter(), Counter()
    try:
        shapes = _shapes(folder)
        for row in read_table(_file(folder, "cpu_op_detail_info.csv"), ["op_occurrences", "op_total_time(ms)"],
                              ["op_type", "full_op_name"]):
            if row["op_type"] == CUSTOM:
                cell = row["full_op_name"].rpartition("/")[0].rpartition("/")[2].rpartition("-")[2]
                a, b = (*shapes.get(row["full_op_name"], ()), (), ())[:2]
                each = flops_of_inputs(a, b) if cell in PRODUCT_CELLS else None
                kind = f"{CUSTOM} ({'MatMul' if each else cell})"
                calls[kind] += int(row["op_occurrences"])
                seconds[kind] += row["op_total_time(ms)"] * 1e-3
                flops[kind] += int(row["op_occurrences"]) * (each or 0)
    except Broken as broken:
        profile.problems.append(str(broken))
        return []
    return [Operator(kind, calls[kind], seconds[kind], flops[kind] or None) for kind in calls]


def _shapes(folder: Path) -> dict[str, list[tuple[int, ...]]]:
    """An operator's full name -> its inputs' shapes; {} where the files do not fit together.

    One file has the full names with their times, the other the shapes with short names, in the order of the executions.
    """
    names = "cpu_op_execute_timestamp.txt", "cpu_framework.txt"
    try:
        times, shapes = (read_text(_file(folder, name)).splitlines() for name in names)
        by_time = sorted((int(one.partition(",")[0]), name) for name, _, each in (line.split(";") for line in times)
                         for one in each.split())
        found = [(name, *line.split(";", 3)) for (_, name), line in zip(by_time, shapes, strict=True)]
        if all(name.rpartition("/")[2] == short for name, _, short, _, _ in found):
            return {name: shapes_of_cpu(inputs) for name, _, _, _, inputs in found}
    except (ValueError, Broken):  # who reads the file for its own sake says what is wrong with it
        pass
    return {}


def products(path: Path) -> dict[str, tuple[int, int]]:
    """Type of matrix product -> (executions whose shapes are known, their operations together). Raises Broken."""
    counts, flops = Counter(), Counter()
    for number, line in enumerate(read_text(path).splitlines(), 1):
        kind, found, shapes = line.partition(";")
        if not found or not line.endswith(";"):
            raise Broken(f"{path}:{number}: half-written, expected type;name;graph;input_1:[shape];...")
        if is_product(kind) and (one := flops_of_inputs(*(*shapes_of_cpu(shapes), (), ())[:2])):
            counts[kind] += 1
            flops[kind] += one
    return {kind: (counts[kind], flops[kind]) for kind in counts}


def _memory(profile: RankProfile, folder: Path, marks: Marks | None) -> None:
    columns = "Timestamp(ns)", "Total Allocated(Byte)", "Total Reserved(Byte)"
    rows = read_table(_file(folder, "cpu_ms_memory_record.txt"), columns)
    points = sorted((row[columns[0]] * 1e-9, row[columns[1]], row[columns[2]]) for row in rows)
    if marks and marks.steps:  # a second window of a process repeats the rows of the first
        points = [p for p in points if marks.steps[0].start <= p[0] <= marks.steps[-1].end]
    profile.memory += points
