"""Worker of test_two_ranks.py: what two ranks agree on, written to argv[1]/rank_<n>.npz."""
import os
import sys

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from model.config import LossScaleConfig
from parallel import collectives, context
from parallel.mesh import Mesh
from tests.train.test_step import make_step, places, uneven
from train.reduction import FusedSum

rank, size = context.start()
step = make_step(4, 2, 1, mesh=Mesh(dp=size, rank=rank), eps=1.0)
tokens, positions = Tensor(uneven()[2 * rank:2 * rank + 2]), places(2, 2 * rank)
outputs = step(tokens, positions)
# The same in half precision.
half = make_step(4, 2, 1, LossScaleConfig(initial=1024.0), mesh=Mesh(dp=size, rank=rank), level="O2", eps=1.0)
in_half = [x.asnumpy().item() for x in half(tokens, positions)]
gathered = collectives.gather([2.0**24 + 1 + rank, 1 / 3, np.inf if rank else -1.0])
halves = collectives.gather(rank + 0.5)
# An overflow on one rank alone: both must skip.
before = [p.asnumpy() for p in step.weights]
if rank == 1:
    step.weights[0].set_data(Tensor(np.full(step.weights[0].shape, np.inf), ms.float32))
overflow = step(tokens, positions)[3].asnumpy()
same = all(np.array_equal(a, p.asnumpy()) for a, p in list(zip(before, step.weights, strict=True))[1:])
weights = {f"weight.{p.name}": value for p, value in zip(step.weights, before, strict=True)}
grads = tuple(Tensor(np.full(p.shape, i + rank + 1.0), ms.float32) for i, p in enumerate(step.weights))
sums = Tensor([1.0 + rank, 2.0 + 2 * rank], ms.float32)
all_reduce = ops.AllReduce()
fused_sums, fused = FusedSum(step.weights)(sums, grads)
fused_agrees = all(np.array_equal(a.asnumpy(), all_reduce(b).asnumpy()) and np.all(a.asnumpy() == 2 * i + 3)
                   for i, (a, b) in enumerate(zip(fused, grads, strict=True)))
fused_agrees &= fused_sums.asnumpy().tolist() == all_reduce(sums).asnumpy().tolist() == [3.0, 6.0]
np.savez(os.path.join(sys.argv[1], f"rank_{rank}.npz"), outputs=[x.asnumpy().item() for x in outputs], in_half=in_half,
         gathered=gathered,
         halves=halves, overflow=overflow, same=same, fused_agrees=fused_agrees, **weights)
