"""Profiles as the installed profiler writes them: its own viewers make the tables of events that are given."""
import csv
import json
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from mindspore.profiler.analysis.viewer.ascend_communication_viewer import AscendCommunicationViewer
from mindspore.profiler.analysis.viewer.ascend_kernel_details_viewer import AscendKernelDetailsViewer
from mindspore.profiler.analysis.viewer.ascend_memory_viewer import AscendMemoryViewer
from mindspore.profiler.analysis.viewer.ascend_step_trace_time_viewer import AscendStepTraceTimeViewer
from mindspore.profiler.common.constant import OpSummaryHeaders, ProfilerActivity

from parallel import config_file
from train.config import load_config
from train.profiling.windows import Mark, Marks

ROOT = Path(__file__).parents[2]
FIRST, WARMUP, STEPS = 11, 2, 4  # a window that begins at step 11, and tells of 13 to 16
EPOCH = 1_795_977_365.0
# A row of CANN's msprof: op_statistic_*.csv, which the profiler copies as it is.
OP_STATISTIC = ["Device_id", "Model Name", "OP Type", "Core Type", "Count", "Total Time(us)", "Min Time(us)", "Avg Time(us)",
                "Max Time(us)", "Ratio(%)"]


def make_run(folder: Path, *overrides: str, memory: list[float] = ()) -> Path:
    """A run's folder with its config and metrics.jsonl (memory_bytes of each step)."""
    run = folder / "runs" / "one"
    run.mkdir(parents=True)
    config = load_config(ROOT / "run_scripts" / "configs" / "smoke.yaml", [f"run.dir={folder / 'runs'}", "run.name=one",
                                                                           "model.vocab_size=2000", *overrides])
    (run / "config.yaml").write_text(config_file.dump(config), encoding="utf-8")
    rows = [{"step": i + 1, "loss": 1.0, "memory_bytes": value} for i, value in enumerate(memory)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return run


def make_ascend(run: Path, rank: int, world_size: int, *, computing: float, hidden: float = 0.0, exposed: float = 0.0,
                free: float = 0.0, data: float = 0.0, receive: float = 0.0, wait: float = 0.0, reserved: float = 1.25) -> Path:
    """A rank's profile of STEPS equal steps; milliseconds. Returns ASCEND_PROFILER_OUTPUT.

    data: of `free`; receive: of `exposed`, from another stage; wait: share of a collective's time; reserved: times what is
    allocated at the peak.
    """
    place = run / "profile" / f"step_{FIRST:08d}" / f"rank_{rank}"
    made = place / f"host_{rank}_20261129183605064_ascend_ms"
    out, framework = made / "ASCEND_PROFILER_OUTPUT", made / "FRAMEWORK"
    analyze, msprof = made / "PROF_1" / "analyze", made / "PROF_1" / "mindstudio_profiler_output"
    for each in (out, framework, analyze, msprof):
        each.mkdir(parents=True)
    length = computing + exposed + free
    begins = [EPOCH + i * length * 1e-3 for i in range(STEPS)]
    ids = {str(WARMUP + i): (_us(begin), _us(begin + length * 1e-3) - Decimal("0.001")) for i, begin in enumerate(begins)}
    paths = {"ascend_profiler_output_path": str(out), "ascend_ms_dir": str(made), "framework_path": str(framework)}
    _step_trace(paths, begins, ids, computing, hidden, exposed, free, receive)
    _communication(paths, analyze, begins, ids, hidden + exposed, wait)
    _memory(paths, framework, msprof, rank, begins, reserved)
    _kernels(out, computing)
    gap = {"data": data * 1e-3, "eval": 0.0}
    steps = [Mark(FIRST + WARMUP + i, begin - data * 1e-3, begin, begin + length * 1e-3, gap, 10**9)
             for i, begin in enumerate(begins)]
    Marks(rank, world_size, "Ascend", FIRST, steps).write(place)
    return out


def _us(seconds: float) -> Decimal:
    return Decimal(f"{seconds * 1e6:.3f}")


def _step_trace(paths, begins, ids, computing, hidden, exposed, free, receive):
    viewer = AscendStepTraceTimeViewer(**paths, profiler_level="Level1", activities=[])

    def events(*spans):
        found = [(_us(begin + at * 1e-3), Decimal(str(ms * 1000))) for begin in begins for at, ms in spans if ms]
        return np.array(found, dtype=viewer.OVERLAP_DTYPE)

    viewer.computing_np = events((0, computing))
    viewer.communication_np = events((computing - hidden, hidden + exposed))
    viewer.communication_not_overlapped_np = events((computing, exposed))
    viewer.free_np = events((computing + exposed, free))
    transfers = events((computing - hidden, hidden + exposed - receive), (computing + exposed - receive, receive))
    names = ["hcom_allReduce__101_0_1" if i % 2 == 0 or not receive else "hcom_receive__101_1_1" for i in range(len(transfers))]
    viewer.hccl_events = [SimpleNamespace() for _ in names] or None
    viewer.hccl_events_np = np.array([(n, *t) for n, t in zip(names, transfers.tolist(), strict=True)], dtype=viewer.HCCL_DTYPE)
    viewer.generate_step_trace_time_data(ids)
    viewer._write_data()


def _communication(paths, analyze, begins, ids, milliseconds, wait):
    if not milliseconds:
        return
    raw = {f"hcom_allReduce__101_{i}_1@7": {
        "Communication Time Info": {
            "Start Timestamp(us)": _us(begin) + 1, "Elapse Time(ms)": milliseconds, "Transit Time(ms)": milliseconds * (1 - wait),
            "Wait Time(ms)": milliseconds * wait, "Synchronization Time(ms)": 0.0, "Idle Time(ms)": 0.0, "Wait Time Ratio": wait,
            "Synchronization Time Ratio": 0.0},
        "Communication Bandwidth Info": {"HCCS": {
            "Transit Size(MB)": 100.0, "Transit Time(ms)": milliseconds * (1 - wait), "Bandwidth(GB/s)": 0.0,
            "Large Packet Ratio": 0.0, "Size Distribution": {}}}} for i, begin in enumerate(begins)}
    for info in raw.values():  # as msprof has it: the sum of the links in a node once more
        links = info["Communication Bandwidth Info"]
        links["SDMA"] = dict(links["HCCS"])
    (analyze / "communication.json").write_text(json.dumps(raw, default=float), encoding="utf-8")
    viewer = AscendCommunicationViewer(**paths, msprof_analyze_output_path=str(analyze), is_set_schedule=True, jit_level="O0")
    viewer.save({"trace_view_container": SimpleNamespace(get_step_id_time_dict=lambda: ids)})


def _memory(paths, framework, msprof, rank, begins, reserved):
    rows = [[int(begin * 1e6) * 1000 + k, int(2**30 * (0.5 + 0.5 * (k == 1))), int(2**30 * reserved), 2**29]
            for begin in begins for k in range(3)]
    _csv(framework / f"cpu_ms_memory_record_{rank}.txt", AscendMemoryViewer.MS_MEMORY_RECORD_HEADERS, rows)
    AscendMemoryViewer(**paths, rank_id=rank, msprof_profile_output_path=str(msprof), profile_memory=True,
                       activities=[ProfilerActivity.CPU.value])._parse_memory_record()


# Type, core, calls a step, share of the computing time, input and output shapes
KERNELS = [("MatMulV2", "AI_CORE", 2, 0.6, "1024,512;512,2048", "1024,2048"),
           ("BatchMatMulV2", "AI_CORE", 1, 0.1, "8,128,64;8,64,128", "8,128,128"),
           ("LayerNormGrad", "AI_VECTOR_CORE", 1, 0.2, "1024,512;1024,512", "1024,512"),
           ("Add", "AI_VECTOR_CORE", 4, 0.1, "1024,512;1024,512", "1024,512")]


def _kernels(out, computing):
    headers = [AscendKernelDetailsViewer.RENAME_HEADERS.get(h.value, h.value) for h in OpSummaryHeaders
               if h.value not in (*AscendKernelDetailsViewer.EXCLUDE_HEADERS, "Model Name")]
    rows, statistic = [], []
    for kind, core, calls, share, inputs, outputs in KERNELS:
        each = computing * 1e3 * share / calls
        row = dict.fromkeys(headers, "0") | {
            "Name": f"{kind}-op1", "Type": kind, "Accelerator Core": core, "Duration(us)": each, "Input Shapes": f'"{inputs}"',
            "Output Shapes": f'"{outputs}"', "Input Formats": "ND;ND", "Output Formats": "ND"}
        rows += [list(row.values())] * (calls * STEPS)
        statistic.append([0, "model", kind, core, calls * STEPS, each * calls * STEPS, each, each, each, 100 * share])
    _csv(out / "kernel_details.csv", headers, rows)
    _csv(out / "op_statistic.csv", OP_STATISTIC, statistic)


def _csv(path: Path, headers: list[str], rows: list[list]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([headers, *rows])
