"""From a config to the cells that are compiled: the training step, the evaluation step and the probe, for any mesh."""
import re
from collections.abc import Iterator
from contextlib import contextmanager

import mindspore as ms
from mindspore import nn

from data.tokenizer import PAD_ID
from eval.health.probe import ProbeStep
from eval.step import EvalStep
from model.gpt import GPT, GPTLoss, head_loss, recompute
from model.precision import Cast, Precision
from parallel.context import auto_parallel
from parallel.cost.sizes import Plan
from parallel.errors import UserError
from parallel.mesh import Mesh, micro_batches
from train.config import RunConfig
from train.gradients import LocalGradients, ShardedGradients
from train.plans import plan_of
from train.step import TrainStep


def is_sharded(mesh: Mesh) -> bool:
    """Whether MindSpore's compiler cuts the network: on Ascend. CPU workers are data-parallel by our own AllReduce."""
    return mesh.world_size > 1 and ms.get_context("device_target") == "Ascend"


def build_gpt(config: RunConfig, mesh: Mesh) -> GPT:
    """The model, with model.vocab_size resolved. Raises UserError for a pattern of `precision` that fits no cell."""
    precision = Precision(config.precision)
    gpt = GPT(config.model, seed=config.run.seed, tp=mesh.tp, precision=precision)
    precision.check(casts_of(gpt))
    return gpt


def casts_of(gpt: GPT) -> list[Cast]:
    """The number format of each cell that computes, the loss among them."""
    return [*gpt.casts, *gpt.precision.apply(head_loss(gpt), "head_loss.")]


def build_train_step(gpt: GPT, config: RunConfig, mesh: Mesh, num_micro_batches: int) -> TrainStep:
    """The step of this rank."""
    network = GPTLoss(gpt, PAD_ID)
    recompute(gpt, config.parallel.recompute, config.parallel.recompute_layers)
    if is_sharded(mesh):
        sizes, plan = plan_of(config, mesh, num_micro_batches)
        shard(network, plan)
        gradients = ShardedGradients(network, sizes, plan)
    else:
        gradients = LocalGradients(network, mesh, num_micro_batches, config.train.clips_each)
    tokens = config.train.global_batch_size * config.data.seq_length
    return TrainStep(gradients, config.train, config.precision.loss_scale, tokens, config.model.vocab_size)


def build_eval_step(gpt: GPT, config: RunConfig, mesh: Mesh, num_micro_batches: int) -> EvalStep:
    """The evaluation's forward pass on this rank."""
    network = EvalStep(gpt, PAD_ID)
    if is_sharded(mesh):
        shard(network, plan_of(config, mesh, num_micro_batches)[1])
    return network


def build_probe_step(gpt: GPT, config: RunConfig, mesh: Mesh, batch: int, seq: int) -> nn.Cell:
    """The step that looks at activations, as it is to be called with ids [batch / dp, seq]; not for a pipeline, whose last stage
    alone could give anything back."""
    step = ProbeStep(gpt, batch, seq)
    if not is_sharded(mesh):
        return step
    step.shard(mesh)
    return auto_parallel(step, training_plan(config, mesh), ((mesh.dp, 1),))


def shard(network: GPTLoss | EvalStep, plan: Plan) -> None:
    """Say how the network is cut over dp and tp, and where its blocks stand in the pipeline."""
    network.shard(plan.mesh)
    if plan.mesh.pp > 1:
        network.place(plan.block_stages())


@contextmanager
def lack_of_kernels() -> Iterator[None]:
    """What MindSpore says of an operator that this device has no kernel for, as a UserError that names it and its place."""
    try:
        yield
    except TypeError as error:
        if not (found := re.search(r"Select CPU operator\[(\w+)\] fail.*?get (input\[[^]]*])", str(error), re.DOTALL)):
            raise
        place = re.search(r"In file (.+?:\d+)", str(error))
        raise UserError(f"precision: there is no CPU kernel of {found[1]} for {found[2]}{f' at {place[1]}' if place else ''}: "
                        "put the cell into precision.black_list, and it is computed in float32 (python -m train --list-casts "
                        "shows the cells)") from error


def compiled(cell: nn.Cell, config: RunConfig, mesh: Mesh) -> nn.Cell:
    """The step as it is to be called, with tokens and a number for each sample: cut by MindSpore where it is sharded."""
    if not is_sharded(mesh):
        return cell
    return auto_parallel(cell, training_plan(config, mesh), ((mesh.dp, 1), (mesh.dp,)))


def training_plan(config: RunConfig, mesh: Mesh) -> Plan:
    """The plan of a training step: what all of a run's graphs are compiled for."""
    count = micro_batches(config.parallel, config.train.global_batch_size, config.train.micro_batch_size, mesh.dp)
    return plan_of(config, mesh, count)[1]
