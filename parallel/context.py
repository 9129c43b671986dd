"""MindSpore's context for this process: device, threads, and the group of ranks."""
import os

import mindspore as ms
from mindspore import communication, nn
from mindspore.parallel.auto_parallel import AutoParallel

from parallel.cost.sizes import Plan
from parallel.errors import UserError


def is_distributed() -> bool:
    """Whether this process was started as one of several (by msrun, or by a rank table)."""
    return int(os.environ.get("RANK_SIZE", "1")) > 1


def start() -> tuple[int, int]:
    """Graph mode on Ascend where MindSpore finds one, else on CPU; join the other ranks. Returns (rank, world size)."""
    ms.set_context(mode=ms.GRAPH_MODE)
    if ms.get_context("device_target") not in ("Ascend", "CPU"):
        raise UserError(f"device {ms.get_context('device_target')} is not supported: use Ascend, or CPU for tests")
    if not is_distributed():
        return 0, 1
    if ms.get_context("device_target") == "CPU":  # each worker its share of the cores
        workers = int(os.environ.get("MINDGPT_LOCAL_WORKERS", "1"))
        ms.device_context.cpu.op_tuning.threads_num(max(1, len(os.sched_getaffinity(0)) // workers))
        ms.runtime.dispatch_threads_num(1)  # more of them spin, and take the cores from the other worker
    communication.init()
    rank, size = communication.get_rank(), communication.get_group_size()
    if ms.get_context("device_target") == "CPU":  # on Ascend AutoParallel sets its own
        ms.set_auto_parallel_context(parallel_mode="data_parallel", device_num=size, global_rank=rank)
    return rank, size


def auto_parallel(cell: nn.Cell, plan: Plan, dataset_strategy: tuple) -> AutoParallel:
    """The cell under MindSpore's semi-automatic parallelism: its compiler cuts it as the primitives' strategies say.

    Args:
        dataset_strategy: into how many parts each axis of each input is cut. Explicit, since "data_parallel" would cut over all
            ranks of a stage and gather again over tp.
    """
    parallel = AutoParallel(cell, parallel_mode="semi_auto")
    parallel.dataset_strategy(dataset_strategy)
    if plan.mesh.pp > 1:
        parallel.pipeline(stages=plan.mesh.pp, interleave=plan.virtual_stages > 1)
    if plan.optimizer_sharding:
        parallel.hsdp(threshold=plan.threshold_kb)
    if plan.fusion_mb:
        size = {"mode": "size", "config": plan.fusion_mb}
        parallel.comm_fusion({"allreduce": size, "allgather": size, "reducescatter": size})
    return parallel
