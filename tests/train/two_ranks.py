"""Worker of test_two_ranks.py: what two ranks agree on, written to argv[1]/rank_<n>.npz."""
import os
import sys

import mindspore as ms
import numpy as np
from mindspore import Tensor

from parallel import collectives, context
from parallel.mesh import Mesh
from tests.train.test_step import make_step, uneven
from train.reduction import FusedSum, Sum

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
grads = tuple(Tensor(np.full(p.shape, i + rank + 1.0), ms.float32) for i, p in enumerate(step.weights))
one = Tensor(1.0 + rank, ms.float32)
forms = [cell(one, one * 2, grads) for cell in (FusedSum(step.weights), Sum(step.weights, size))]
forms_agree = all(np.array_equal(a.asnumpy(), b.asnumpy()) and np.all(a.asnumpy() == 2 * i + 3)
                  for i, (a, b) in enumerate(zip(*(form[2] for form in forms), strict=True)))
forms_agree &= [[x.asnumpy().item() for x in form[:2]] for form in forms] == [[3.0, 6.0]] * 2
np.savez(os.path.join(sys.argv[1], f"rank_{rank}.npz"), outputs=[x.asnumpy().item() for x in outputs], gathered=gathered,
         halves=halves, overflow=overflow, same=same, forms_agree=forms_agree, **weights)
