"""Entry functions for the tests of the dry run: what a job does in its process."""
import os
import signal
import time
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, communication, nn, ops
from mindspore.graph.api import _cell_graph_executor as executor
from mindspore.parallel.auto_parallel import AutoParallel

from parallel.errors import UserError

BATCH, HIDDEN, VOCAB = 64, 16, 64


class Layer(nn.Cell):
    """x [batch, hidden] -> ReLU(x w), the batch cut over `dp` ranks."""

    def __init__(self, name: str, dp: int):
        super().__init__()
        self.w = Parameter(Tensor(np.eye(HIDDEN, dtype=np.float32)), name=name)
        self.matmul, self.relu = ops.MatMul().shard(((dp, 1), (1, 1))), ops.ReLU().shard(((dp, 1),))

    def construct(self, x):
        return self.relu(self.matmul(x, self.w))


class Net(nn.Cell):
    """ids int32 [batch] -> rows of a table that is cut over the ranks (each has another graph), two layers, a mean: a loss."""

    def __init__(self, dp: int):
        super().__init__()
        self.table = Parameter(Tensor(np.ones((VOCAB, HIDDEN), np.float32)), name="table")
        self.gather = ops.Gather().shard(((dp, 1), (1,)))
        self.first, self.second = Layer("first", dp), Layer("second", dp)
        self.mean = ops.ReduceMean().shard(((dp, 1),))

    def construct(self, ids):
        return self.mean(self.second(self.first(self.gather(self.table, ids, 0))))


def compile_net(job: dict) -> None:
    """Compile one step of plain gradient descent; write the rank's graph (MindIR) to job["out"]."""
    communication.init()
    dp = communication.get_group_size()
    net = Net(dp)
    step = AutoParallel(nn.TrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.1)).set_train(), parallel_mode="semi_auto")
    step.dataset_strategy(((dp,),))
    phase, _ = executor.compile(step, Tensor(np.arange(BATCH // dp), ms.int32), phase="train")
    Path(job["out"]).write_bytes(executor._graph_executor.get_func_graph_proto(phase, "mind_ir", False))


def many(job: dict) -> None:
    """What job["do"] says."""
    print("job", job["do"], flush=True)
    match job["do"]:
        case "compile":
            compile_net(job)
        case "bad strategy":
            communication.init()
            step = AutoParallel(Layer("w", 3), parallel_mode="semi_auto")
            executor.compile(step, Tensor(np.ones((BATCH, HIDDEN), np.float32)), phase="train")
        case "bad shape":
            communication.init()
            executor.compile(Layer("w", 1), Tensor(np.ones((BATCH, HIDDEN + 1), np.float32)), phase="train")
        case "refuse":
            raise UserError("parallel.tp=3 does not divide 16")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os._exit(7)
        case "sleep":
            Path(job["out"]).write_text(f"{os.getppid()} {os.getpid()}")
            time.sleep(60)
