"""Loss, gradients and their norm for one step: two forms, one result.

`LocalGradients` runs on one card, and data-parallel on CPU workers, where MindSpore cannot shard: each rank computes its samples,
and one AllReduce adds up. `ShardedGradients` is for Ascend under any mesh: MindSpore's semi-automatic parallelism cuts the
network as its cells' `shard` says, and adds what communication the gradients need.
"""
import mindspore as ms
import numpy as np
from mindspore import ParameterTuple, Tensor, lazy_inline, nn, ops
from mindspore.ops import functional as F
from mindspore.parallel.nn import GradAccumulation, Pipeline

from model import cpu
from model.layers import on_cpu
from parallel.cost.parameters import stage_parameters
from parallel.cost.sizes import Plan, Sizes
from parallel.mesh import Mesh
from train.reduction import FusedSum

_add = ops.MultitypeFuncGraph("add")
_share_of_squares = ops.MultitypeFuncGraph("share_of_squares")
_clear = ops.MultitypeFuncGraph("clear")


@_add.register("Tensor", "Tensor")
def _add_two(x, y):
    return x + y


@_share_of_squares.register("Function", "Number", "Tensor")
def _share_of_squares_of_one(l2_loss, share, x):
    return l2_loss(x) * share


@_clear.register("Tensor", "Tensor")
def _clear_one(done, accumulated):
    # Zero whatever it holds, infinities and NaN too. Of zeros_like the compiler would make a constant of the same size.
    accumulated = F.depend(accumulated, done)
    return F.assign(accumulated, F.cast(F.less(accumulated, accumulated), ms.float32))


class LocalGradients(nn.Cell):
    """construct: tokens, positions of this rank, sens float32 [2] (what the network's outputs are scaled by) ->
        loss sum, number of tokens, sum of the squared gradients, the same of each parameter (float32 [parameters]; an empty tuple
        unless `each`), gradients: of the global batch.

    Micro-batches follow one another, or all their activations would be alive at once.
    """

    def __init__(self, network: nn.Cell, mesh: Mesh, num_micro_batches: int, each: bool = False):
        super().__init__(auto_prefix=False)
        self.network = network.set_grad()
        self.weights = ParameterTuple(network.trainable_params())
        self.grad = ops.GradOperation(get_by_list=True, sens_param=True)
        self.num_micro_batches, self.distributed, self.each = num_micro_batches, mesh.dp > 1, each
        compiled = on_cpu() and all(w.dtype == ms.float32 for w in self.weights)
        self.square_sums = (cpu.cells() if compiled else cpu.pure).SquareSums()
        self.total, self.map = ops.ReduceSum(), ops.HyperMap()
        if self.distributed:
            self.sum_over_ranks = FusedSum(self.weights)

    def micro_batch(self, tokens, positions, index, sens):
        """(loss sum and tokens, gradients) of one micro-batch."""
        size = tokens.shape[0] // self.num_micro_batches
        tokens, positions = tokens[index * size:(index + 1) * size], positions[index * size:(index + 1) * size]
        return self.network(tokens, positions), self.grad(self.network, self.weights)(tokens, positions, sens)

    def construct(self, tokens, positions, sens):
        sums, grads = self.micro_batch(tokens, positions, 0, sens)
        for i in range(1, self.num_micro_batches):
            more_sums, more = self.micro_batch(F.depend(tokens, grads), positions, i, sens)
            sums, grads = sums + more_sums, self.map(_add, grads, more)
        if self.distributed:
            sums, grads = self.sum_over_ranks(sums, grads)
        squares = self.square_sums(grads)
        return sums[0], sums[1], self.total(squares), squares if self.each else (), grads

    def clear(self, done):
        """Nothing is kept from step to step."""
        return done

    def finite_here(self) -> bool:
        """Whether this rank's own part of the last step is known to have been finite; of one rank it is not."""
        return self.distributed and bool(self.sum_over_ranks.here.isfinite())


class Shared(nn.Cell):
    """The network as a graph of its own, which all micro-batches call: compiled once, however many there are."""

    @lazy_inline(attrs=[])
    def __init__(self, network: nn.Cell):
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, tokens, positions):
        return self.network(tokens, positions)


def in_micro_batches(network: nn.Cell, plan: Plan) -> nn.Cell:
    """The network over a batch that is cut into micro-batches, whose loss sums are added up."""
    if plan.mesh.pp == plan.num_micro_batches == 1:
        return network
    # Not shared without a pipeline: with lazy_inline MindSpore's pass over GradAccumulation's graph does not come to an end.
    cell = Pipeline(Shared(network), plan.num_micro_batches) if plan.mesh.pp > 1 \
        else GradAccumulation(network, plan.num_micro_batches)
    for add in cell.add_list:  # what has no strategy is cut along its first axis, here between the losses and the tokens
        add.shard(((1,), (1,)))
    return cell


class ShardedGradients(nn.Cell):
    """As LocalGradients, in the terms of a compiled graph: in the network tensors are global, outside a rank has its own part.

    The norm counts each parameter once: what a number of ranks hold alike is divided by it before all ranks add up. Where each is
    clipped, that sum is a vector, in which every parameter of the whole model has a place, and a rank fills those of its stage.
    """

    def __init__(self, network: nn.Cell, sizes: Sizes, plan: Plan):
        super().__init__(auto_prefix=False)
        mesh, self.each = plan.mesh, plan.clips_each
        self.network = in_micro_batches(network, plan).set_grad()
        # This stage's own, or MindSpore would shorten the tuple of gradients at the split, but not the tuple of shares.
        self.weights = ParameterTuple(network.weights_of(mesh.stage if mesh.pp > 1 else None))
        self.grad = ops.GradOperation(get_by_list=True, sens_param=True)
        self.accumulates = plan.num_micro_batches > 1 or mesh.pp > 1
        # With optimizer sharding the gradients are cut over dp on their way out, and the accumulators are not.
        self.takes_accumulators = self.accumulates and not plan.optimizer_sharding
        if self.accumulates:
            # Of all stages: with optimizer sharding the compiler looks for them before it splits, and drops them after.
            self.all_accumulated = ParameterTuple(network.trainable_params()).clone(prefix="accu_grads", init="zeros")
            here = {f"accu_grads.{w.name}" for w in self.weights}
            self.accumulated = ParameterTuple(a for a in self.all_accumulated if a.name in here)
        shares = square_shares(sizes, plan)
        self.shares = tuple(shares[w.name] for w in self.weights)
        self.map, self.l2_loss, self.all_reduce, self.stack = ops.HyperMap(), ops.L2Loss(), ops.AllReduce(), ops.Stack()
        counts = [len(stage_parameters(sizes, plan, stage)) for stage in range(mesh.pp)]
        self.first, self.end = sum(counts[:mesh.stage]), sum(counts[:mesh.stage + 1])
        self.before, self.after = _zeros(self.first), _zeros(sum(counts) - self.end)
        self.concat, self.sum = ops.Concat(), ops.ReduceSum()
        self.copies_of_sums, self.round = 1.0 / (mesh.dp * mesh.tp), ops.Round()  # the ranks of the last stage hold them alike

    def construct(self, tokens, positions, sens):
        sums = self.network(tokens, positions)
        grads = self.grad(self.network, self.weights)(tokens, positions, sens)
        if self.takes_accumulators:
            grads = F.depend(self.accumulated, grads)
        halves = self.map(F.partial(_share_of_squares, self.l2_loss), self.shares, grads)
        loss, count = sums[0] * self.copies_of_sums, sums[1] * self.copies_of_sums
        if self.each:
            places = (*self.before, self.stack(halves) * 2.0, *self.after)
            totals = self.all_reduce(self.concat((self.stack((loss, count)), *places)))
            squares = totals[2:]
            return totals[0], self.round(totals[1]), self.sum(squares), squares[self.first:self.end], grads
        totals = self.all_reduce(self.stack((F.addn(halves) * 2.0, loss, count)))
        return totals[1], self.round(totals[2]), totals[0], (), grads

    def clear(self, done):
        """Zero the accumulators once `done`, a number that depends on the last use of the gradients, is there."""
        if self.accumulates:
            return F.depend(done, self.map(F.partial(_clear, done), self.all_accumulated))
        return done


def _zeros(places: int) -> tuple[Tensor, ...]:
    """For what other stages fill; nothing where there is none, since MindSpore has no empty tensors."""
    return (Tensor(np.zeros(places), ms.float32),) if places else ()


def square_shares(sizes: Sizes, plan: Plan) -> dict[str, float]:
    """For each parameter of this rank's stage, 1 / the number of ranks that hold the same slice of its gradient.

    0 for the copy of the token table that the last of several stages is sent: its gradient has gone to the first stage.
    """
    stage = plan.mesh.stage
    shares = {p.name: 1.0 if p.sharded(plan) else 1.0 / p.copies(plan) for p in stage_parameters(sizes, plan, stage)}
    if stage > 0 and "embedding.token" in shares:
        shares["embedding.token"] = 0.0
    return shares
