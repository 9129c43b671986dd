"""The parts that a verdict is made of: windows, operations of matrix products, trends of memory, a CPU's files."""
from itertools import product

import numpy as np
import pytest
from mindspore.profiler import schedule
from mindspore.profiler.schedule import ProfilerAction

from parallel.errors import UserError
from train.checks import plan
from train.config import ProfileConfig
from train.profiling import cpu, memory
from train.profiling.figures import RankProfile, between_ranks
from train.profiling.matrix import flops_of_inputs, flops_of_sizes, is_product, shapes_of_ascend, shapes_of_cpu
from train.profiling.windows import Mark, Marks, scheduled


@pytest.mark.parametrize(("skip", "wait", "warmup", "active", "repeat"), [(10, 0, 2, 5, 1), (0, 3, 0, 1, 3), (2, 1, 4, 2, 2)])
def test_windows_are_those_of_mindspores_schedule(skip, wait, warmup, active, repeat):
    config = ProfileConfig(skip_first=skip, wait=wait, warmup=warmup, active=active, repeat=repeat)
    theirs = schedule(skip_first=skip, wait=wait, warmup=warmup, active=active, repeat=repeat)
    windows, last_step = scheduled(config, 100), 100
    told = {step for window in windows for step in window.told}
    warm = {step for window in windows for step in range(window.first, window.told[0])}
    for i in range(60):
        action = theirs(i)
        assert (last_step + 1 + i in told) == (action in (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE))
        assert (last_step + 1 + i in warm) == (action == ProfilerAction.WARM_UP)
        assert (last_step + 1 + i in {w.last for w in windows}) == (action == ProfilerAction.RECORD_AND_SAVE)


def test_a_schedule_that_does_not_fit_the_run_is_refused(tiny):
    with pytest.raises(UserError, match=r"its first window ends at step 21 .* train.total_steps=20"):
        tiny("profile.enabled=true", "profile.skip_first=14")
    with pytest.raises(UserError, match="no rank 2, allowed are 0 to 1, or all"):
        plan(tiny("profile.ranks=[0,2]"), 2, 0)
    with pytest.raises(UserError, match="profile.ranks"):
        tiny("profile.ranks=[]")


def test_flops_of_a_product():
    shapes = (3, 5, 7)
    for (m, k, n), ta, tb, batch in product([shapes, (4, 4, 9), (8, 2, 2)], (False, True), (False, True), ((), (6,), (2, 3))):
        a, b = (*batch, k, m) if ta else (*batch, m, k), (*batch, n, k) if tb else (*batch, k, n)
        x, y = np.ones(a), np.ones(b)
        out = np.matmul(x.swapaxes(-1, -2) if ta else x, y.swapaxes(-1, -2) if tb else y)
        true = 2 * int(out.sum())  # of ones, each element of the product counts its multiply-adds
        assert flops_of_sizes("BatchMatMul" if batch else "MatMul", [a, b], out.shape, plain=True) == pytest.approx(true)
        if not batch:
            assert flops_of_inputs(a, b) <= true
        if len({m, k, n}) == 3:
            assert flops_of_inputs(a, b) == true
    assert flops_of_inputs((1024, 128), (1024, 128)) == 2 * 1024 * 128 * 128  # a weight's gradient, not 1024 x 1024 scores
    assert flops_of_inputs((8, 512, 64), (8, 512, 64)) == 8 * 2 * 512 * 512 * 64  # scores
    assert flops_of_inputs((3, 5), (7, 2)) is None and flops_of_inputs((3,), (3,)) is None and flops_of_inputs((), ()) is None


def test_tiled_formats_of_ascend():
    # [64, 32] x [32, 48] as [k1, m1, m0, k0] tiles of 16
    assert flops_of_sizes("MatMulV2", [(2, 4, 16, 16), (3, 2, 16, 16)], (3, 4, 16, 16), plain=False) == 2 * 64 * 32 * 48
    assert flops_of_sizes("BatchMatMulV2", [(5, 2, 4, 16, 16), (5, 3, 2, 16, 16)], (5, 3, 4, 16, 16), plain=False) \
        == pytest.approx(5 * 2 * 64 * 32 * 48)
    assert shapes_of_ascend('"1024,128;128,64"') == [(1024, 128), (128, 64)] and shapes_of_ascend("N/A") == []
    assert shapes_of_cpu("MatMul-op0;41;input_1:[8, 129];input_2:TupleShape(NoShape);input_3:[];") == [(8, 129), ()]
    assert [is_product(kind) for kind in ("MatMul", "BatchMatMul", "MatMulV2", "BatchMatMulV3", "Mm", "MatMulCommon", "Mul")] \
        == [True] * 6 + [False]


def test_what_is_communication():
    between = ("AllReduce", "hcom_allReduce__101_0_1", "AllGather", "ReduceScatter", "AlltoAll", "Broadcast", "Send", "Receive")
    assert all(map(between_ranks, between)) and not any(map(between_ranks, ("BroadcastTo", "ReduceSum", "ReduceMean", "MatMul")))


def curve(kind: str, steps: np.ndarray) -> np.ndarray:
    noise = np.random.default_rng(3).normal(0, 3e6, len(steps))
    shapes = {"flat": 0 * steps, "leak": 2e5 * steps, "leak behind a saw": 2e5 * steps + 4e7 * (steps % 50) / 50,
              "saw": 4e7 * (steps % 50) / 50, "jump": 3e8 * (steps > 240), "two jumps": 2e8 * (steps > 150) + 2e8 * (steps > 320),
              "settles": 3e8 * (1 - np.exp(-steps / 30)), "falls": -2e5 * steps, "peak": 5e8 * ((steps > 200) & (steps < 230))}
    return 2e9 + shapes[kind] + noise


@pytest.mark.parametrize(("kind", "leak"), [("flat", False), ("leak", True), ("leak behind a saw", True), ("saw", False),
                                            ("jump", False), ("two jumps", False), ("settles", False), ("falls", False),
                                            ("peak", False)])
def test_what_is_a_leak(kind, leak):
    steps = np.arange(400)
    found = memory.trend(steps.tolist(), curve(kind, steps).tolist())
    assert found["leak"] is leak, found
    if kind == "leak":
        assert found["slope_bytes_per_step"] == pytest.approx(2e5, rel=0.05)


def test_too_few_steps_tell_nothing():
    assert memory.of_run([{"step": i, "memory_bytes": 1e9 * i} for i in range(10)])["leak"] is None
    assert memory.of_run([{"step": i} for i in range(100)])["leak"] is None
    assert memory.of_window([]) is None and memory.of_window([(0.0, 0.0, 0.0)])["fragmentation"] is None


def write_cpu(folder, milliseconds):
    """Steps of 100 ms from the second 1000 on, each with Mul, AllReduce, of which Mul hides a half, and MatMul."""
    folder.mkdir()
    line = "Default/a/{0}-op1;HostCpuOps;{1} \n"
    times = {"Mul": (10, 20), "AllReduce": (20, 20), "MatMul": (50, 30)}
    (folder / "cpu_op_execute_timestamp_0.txt").write_text("".join(
        line.format(kind, " ".join(f"{int(1e12) + (100 * step + at) * 1_000_000},{ms},0" for step in range(2)))
        for kind, (at, ms) in times.items()))
    (folder / "cpu_op_type_info_0.csv").write_text(
        "op_type,type_occurrences,execution_frequency(per-step),total_compute_time,avg_time(ms),percent\n"
        + "Custom,6,3,12,2,0.1\n" + "".join(f"{kind},2,1,{2 * ms},{ms},0.1\n" for kind, (_, ms) in times.items()))
    (folder / "cpu_op_detail_info_0.csv").write_text(
        "op_side,op_type,op_name,full_op_name,op_occurrences,op_total_time(ms),op_avg_time(ms),total_proportion,subgraph,pid\n"
        "Host,Custom,Custom-op1,Default/gpt-GPT/mlp-MLP/gelu-Gelu/Custom-op1,2,3,1.5,0.1,Default,7\n"
        "Host,Custom,Custom-op2,Default/gpt-GPT/mlp-MLP/gelu-Gelu/Custom-op2,2,4,2.0,0.1,Default,7\n"
        "Host,Custom,Custom-op1,Default/gpt-GPT/norm-LayerNorm/Custom-op1,2,5,2.5,0.1,Default,7\n"
        "Host,Mul,Mul-op1,Default/a/Mul-op1,2,40,20,0.1,Default,7\n")
    (folder / "cpu_framework_0.txt").write_text(2 * "MatMul;MatMul-op1;7;input_1:[30, 20];input_2:[20, 10];input_3:NoShape;\n")
    (folder / "cpu_ms_memory_record_0.txt").write_text(
        "Timestamp(ns),Total Allocated(Byte),Total Reserved(Byte),Total Active(Byte)\n"
        f"{int(9e11)},900,1000,0\n{int(1e12) + 50_000_000},600,1000,0\n")
    return [Mark(step, 1000 + 0.1 * i, 1000.005 + 0.1 * i, 1000.1 + 0.1 * i, {"data": 0.004, "meet": 0.001 * milliseconds,
                                                                             "eval": 0.0}, 0) for i, step in enumerate((7, 8))]


def test_a_cpus_files_and_our_marks(tmp_path):
    marks = Marks(0, 2, "CPU", 6, write_cpu(tmp_path / "FRAMEWORK", 1))
    cpu.read(profile := RankProfile(0, "CPU"), tmp_path / "FRAMEWORK", marks)
    assert not profile.problems and [step.step for step in profile.steps] == [7, 8]
    for step in profile.steps:  # Mul 10 to 30, AllReduce 20 to 40, MatMul 50 to 80 of 100 ms
        assert step.seconds == pytest.approx(0.1, rel=1e-4) and step.computation == pytest.approx(0.05, rel=1e-4)
        assert step.communication == pytest.approx(0.011, rel=1e-4) and step.data == pytest.approx(0.004)
        assert step.host == pytest.approx(0.035, rel=1e-4)
    assert {one.type: one.flops for one in profile.operators if "Custom" not in one.type} \
        == {"Mul": None, "MatMul": 2 * 2 * 30 * 20 * 10}
    assert {one.type: (one.calls, one.seconds) for one in profile.operators if "Custom" in one.type} \
        == {"Custom (Gelu)": (4, pytest.approx(0.007)), "Custom (LayerNorm)": (2, pytest.approx(0.005))}
    assert [(one.name, one.calls, one.seconds) for one in profile.transfers] == [("AllReduce", 2, pytest.approx(0.04))]
    assert profile.memory == [(pytest.approx(1000.05), 600.0, 1000.0)]  # not the row of a window before


def test_a_compiled_product_is_told_by_the_shapes_of_its_inputs(tmp_path):
    write_cpu(tmp_path / "FRAMEWORK", 0)
    affine = "Default/up-Linear/affine-Affine"
    (tmp_path / "FRAMEWORK" / "cpu_op_execute_timestamp_0.txt").write_text(
        f"{affine}/Custom-op2;HostCpuOps;4000,1,0 9000,1,0 \n{affine}/Custom-op3;HostCpuOps;5000,1,0 10000,1,0 \n")
    (tmp_path / "FRAMEWORK" / "cpu_framework_0.txt").write_text(
        2 * "Custom;Custom-op2;7;input_1:[30, 20];input_2:[20, 10];\nCustom;Custom-op3;7;input_1:[30, 20];\n")
    (tmp_path / "FRAMEWORK" / "cpu_op_detail_info_0.csv").write_text(
        "op_type,full_op_name,op_occurrences,op_total_time(ms)\n"
        f"Custom,{affine}/Custom-op2,2,3\nCustom,{affine}/Custom-op3,2,1\n")
    profile = RankProfile(0, "CPU")
    cpu._operators(profile, tmp_path / "FRAMEWORK", None)
    assert [(one.type, one.calls, one.flops) for one in profile.operators if "Custom" in one.type] \
        == [("Custom (MatMul)", 2, 2 * 2 * 30 * 20 * 10), ("Custom (Affine)", 2, None)]


@pytest.mark.parametrize("name", ["cpu_op_execute_timestamp_0.txt", "cpu_op_type_info_0.csv", "cpu_framework_0.txt",
                                  "cpu_ms_memory_record_0.txt", "cpu_op_detail_info_0.csv"])
@pytest.mark.parametrize("damage", ["half", "empty", "missing"])
def test_a_cpus_broken_files_are_named(tmp_path, name, damage):
    folder = tmp_path / "FRAMEWORK"
    marks, path = Marks(0, 2, "CPU", 6, write_cpu(folder, 1)), folder / name
    text = path.read_text()
    path.unlink() if damage == "missing" else path.write_text(text[:-8] + "\n" if damage == "half" else "")
    cpu.read(profile := RankProfile(0, "CPU"), folder, marks)
    assert len(profile.problems) == 1 and profile.problems[0].startswith(str(path)) and "\n" not in profile.problems[0]
