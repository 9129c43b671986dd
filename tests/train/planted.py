"""Faults for the audit to find, each one that raises no error: entry of the dry run, which plants one and compiles a rank."""
from mindspore import Layout, nn
from mindspore.parallel.auto_parallel import AutoParallel

from model.gpt import GPTLoss
from model.layers import Linear
from parallel.mesh import Mesh
from train import compile_rank

shard = GPTLoss.shard


def integer_tuples(network: GPTLoss, mesh: Mesh) -> None:
    """MindSpore's own `Cell.shard` with tuples of integers on each linear, instead of our strategies."""
    for _, linear in network.cells_and_names():
        if isinstance(linear, Linear):
            inputs, weight = ((mesh.dp, 1), (mesh.tp, 1)) if linear.split == "column" else ((mesh.dp, mesh.tp), (1, mesh.tp))
            nn.Cell.shard(linear, in_strategy=(inputs,), parameter_plan={"self.weight": weight})
    strategy, layout = AutoParallel.dataset_strategy, Layout((mesh.dp, mesh.tp), ("dp", "tp"))
    # Cell.shard makes MindSpore look for strategies by itself, and it does not compile where the batch is cut by tuples too.
    AutoParallel.dataset_strategy = lambda self, _: strategy(self, (layout("dp", "None"), layout("dp")))


def lost_data_parallelism(network: GPTLoss, mesh: Mesh) -> None:
    """A linear whose input is not cut over dp: each data-parallel rank computes the whole batch."""
    shard(network, mesh)
    network.gpt.blocks[1].mlp.up.affine.matmul.shard(((1, 1), (mesh.tp, 1)))


def shared_transpose(network: GPTLoss, mesh: Mesh) -> None:
    """One Transpose, which can carry one strategy, for the two layouts of attention."""
    core = network.gpt.blocks[0].attention.core
    core.split_q = core.split_k = core.split_v = core.join
    shard(network, mesh)


def data_parallel(network: GPTLoss, mesh: Mesh) -> None:
    """The batch over all ranks of a stage, so that the ranks of a tp group have different samples and gather them."""
    shard(network, mesh)
    strategy = AutoParallel.dataset_strategy
    AutoParallel.dataset_strategy = lambda self, _: strategy(self, "data_parallel")


FAULTS = {f.__name__: f for f in (integer_tuples, lost_data_parallelism, shared_transpose, data_parallel)}


def main(job: dict) -> None:
    """As compile_rank.main, with the fault job["fault"]."""
    GPTLoss.shard = FAULTS[job["fault"]]
    compile_rank.main(job)
