"""Worker of test_two_ranks.py: what two ranks agree on, written to argv[1]/rank_<n>.npz."""
import os
import sys

import mindspore as ms
import numpy as np
from mindspore import Tensor

from parallel import collectives, context
from parallel.mesh import Mesh
from tests.train.test_step import make_step, uneven

rank, size = context.start()
step = make_step(4, 2, 1, mesh=Mesh(dp=size, rank=rank), eps=1.0)
outputs = step(Tensor(uneven()[2 * rank:2 * rank + 2]))
gathered = collectives.gather([2.0**24 + 1 + rank, 1 / 3, np.inf if rank else -1.0])
halves = collectives.gather(rank + 0.5)
# An overflow on one rank alone: both must skip.
tokens = Tensor(uneven()[2 * rank:2 * rank + 2])
before = [p.asnumpy() for p in step.weights]
if rank == 1:
    step.weights[0].set_data(Tensor(np.full(step.weights[0].shape, np.inf), ms.float32))
overflow = step(tokens)[3].asnumpy()
same = all(np.array_equal(a, p.asnumpy()) for a, p in list(zip(before, step.weights, strict=True))[1:])
weights = {f"weight.{p.name}": value for p, value in zip(step.weights, before, strict=True)}
np.savez(os.path.join(sys.argv[1], f"rank_{rank}.npz"), outputs=[x.asnumpy().item() for x in outputs], gathered=gathered,
         halves=halves, overflow=overflow, same=same, **weights)
