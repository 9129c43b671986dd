"""Ascend's profile: ASCEND_PROFILER_OUTPUT/.  Column names are those that MindSpore 2.10's viewers write
(mindspore/profiler/analysis/viewer); op_statistic.csv is CANN's msprof's. Nothing here has met a real card's files yet.
"""
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from train.profiling.figures import Operator, RankProfile, StepTime, Transfer, between_ranks, mean
from train.profiling.matrix import flops_of_sizes, is_product, shapes_of_ascend
from train.profiling.tables import Broken, read_json, read_table
from train.profiling.windows import Mark, Marks

MEGABYTE = 1024 * 1000  # memory_record.csv: MindSpore divides bytes by 1024, and these by 1000
KIND = re.compile(r"^hcom_|_*__\d.*$|-op\d.*$")  # what is not the kind in hcom_allReduce__101_0_1, AllReduce-op12


def read(profile: RankProfile, folder: Path, marks: Marks | None) -> None:
    """Fill in what the folder ASCEND_PROFILER_OUTPUT tells; what is broken goes to the profile's problems."""
    if marks is None:
        profile.problems.append("without step marks, waiting for data counts as gaps of the host")
    for part in (_steps, _operators, _transfers, _memory):
        try:
            part(profile, folder, marks)
        except Broken as broken:
            profile.problems.append(str(broken))


def _steps(profile: RankProfile, folder: Path, marks: Marks | None) -> None:
    path, numbers = folder / "step_trace_time.csv", ["Computing", "Communication(Not Overlapped)", "Free", "Bubble"]
    rows = read_table(path, numbers, ["Step"])
    first, told = (marks.first, marks.steps) if marks else (0, [])
    for row in rows:
        try:
            step = first + int(row["Step"] or 0)
        except ValueError:
            raise Broken(f"{path}: Step is {row['Step']!r}, not a number") from None
        # Without steps of its own (graphs that sink), the profiler gives one row for the whole window.
        own = told if len(rows) == 1 else [mark for mark in told if mark.step == step]
        if own or not told:  # a row that we have no mark of is a step that was cut
            profile.steps.append(_step(own[0].step if own else step, [row[name] * 1e-6 for name in numbers], own))
    if not profile.steps:
        raise Broken(f"{path}: its steps are not those of the step marks, {told[0].step} to {told[-1].step}")


def _step(step: int, seconds: list[float], marks: list[Mark]) -> StepTime:
    """One row of the profiler's, spread over the steps that it stands for."""
    computation, communication, free, bubble = (s / max(1, len(marks)) for s in seconds)
    free = max(0.0, free - mean(mark.apart for mark in marks))
    data = min(free, mean(mark.gap.get("data", 0.0) for mark in marks))
    return StepTime(step, computation + communication + free, computation, communication, data, free - data,
                    min(bubble, communication))


def _operators(profile: RankProfile, folder: Path, _) -> None:
    flops, kernels = {}, {}
    try:
        flops, kernels = kernel_details(folder / "kernel_details.csv")
    except Broken as broken:
        profile.problems.append(str(broken))
    try:
        rows = read_table(folder / "op_statistic.csv", ["Count", "Total Time(us)"], ["OP Type"])
        kinds: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
        for row in rows:  # one for each type of core
            kinds[row["OP Type"]][0] += row["Count"]
            kinds[row["OP Type"]][1] += row["Total Time(us)"] * 1e-6
    except Broken as broken:
        profile.problems.append(str(broken))
        kinds = kernels
    for kind, (calls, seconds) in kinds.items():
        if not between_ranks(kind):
            counted, total = flops.get(kind, (0, None))
            profile.operators.append(Operator(kind, int(calls), seconds, total if counted == calls else None))


def kernel_details(path: Path) -> tuple[dict[str, tuple[int, float]], dict[str, tuple[int, float]]]:
    """(type of matrix product -> executions whose shapes are known, their operations; type -> executions, seconds).

    Shapes are there from ProfilerLevel.Level1 on. Raises Broken.
    """
    rows = read_table(path, ["Duration(us)"], ["Type"], ["Input Shapes", "Output Shapes", "Input Formats"])
    counts, flops, calls, seconds = Counter(), Counter(), Counter(), Counter()
    for row in rows:
        kind = row["Type"]
        calls[kind] += 1
        seconds[kind] += row["Duration(us)"] * 1e-6
        if is_product(kind) and (one := _product(kind, row)):
            counts[kind] += 1
            flops[kind] += one
    return {k: (counts[k], flops[k]) for k in counts}, {k: (calls[k], seconds[k]) for k in calls}


def _product(kind: str, row: dict) -> float | None:
    inputs, outputs = (shapes_of_ascend(row.get(name, "")) for name in ("Input Shapes", "Output Shapes"))
    return flops_of_sizes(kind, inputs, outputs[0], "FRACTAL" not in row.get("Input Formats", "")) if outputs else None


WITHIN_SDMA = ("HCCS", "PCIE", "SIO")  # links whose sum msprof tells once more, as SDMA


def _transfers(profile: RankProfile, folder: Path, _) -> None:
    path = folder / "communication.json"
    sums: dict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0, 0.0])
    try:
        for name, info in _operations(read_json(path)):
            operation, _, group = name.partition("@")
            times, links = info["Communication Time Info"], info["Communication Bandwidth Info"]
            into = sums[f"{KIND.sub('', operation.split('/')[-1])} over group {group or 'all'}"]
            wait = float(times["Wait Time(ms)"])
            into[0] += 1
            into[1] += float(times.get("Elapse Time(ms)", wait + float(times["Transit Time(ms)"]))) * 1e-3
            into[2] += wait * 1e-3
            sizes = {link: float(figures["Transit Size(MB)"]) for link, figures in links.items()}
            into[3] += sum(sizes.values()) - (sizes.get("SDMA", 0.0) if any(map(sizes.get, WITHIN_SDMA)) else 0.0)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise Broken(f"{path}: not of the form step -> p2p, collective -> operation -> times and bandwidths "
                     f"({type(error).__name__}: {error})") from None
    profile.transfers += [Transfer(name, int(n), seconds, wait, size) for name, (n, seconds, wait, size) in sums.items()]


def _operations(found: dict) -> Iterator[tuple[str, dict]]:
    for step in found.values():
        for kind in ("p2p", "collective"):
            yield from ((name, info) for name, info in step.get(kind, {}).items() if name != "Total Op Info")


def _memory(profile: RankProfile, folder: Path, _) -> None:
    columns = ["Timestamp(us)", "Total Allocated(MB)", "Total Reserved(MB)"]
    rows = read_table(folder / "memory_record.csv", columns, ["Component"])
    # Which components there are depends on what ran: GE's graphs, MindSpore's pool, or both and their sum.
    component = next((c for c in ("MindSpore+GE", "MindSpore", "GE") if any(r["Component"] == c for r in rows)), None)
    if component is None:
        raise Broken(f"{folder / 'memory_record.csv'}: no rows of MindSpore or GE")
    profile.memory += sorted((row[columns[0]] * 1e-6, row[columns[1]] * MEGABYTE, row[columns[2]] * MEGABYTE)
                             for row in rows if row["Component"] == component)
