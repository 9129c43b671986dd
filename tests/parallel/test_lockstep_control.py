"""Control flow, closures and parameter updates: real graphs that MindSpore compiles for CPU, against its own execution."""
import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from mindspore.ops import functional as F

from tests.parallel.oracle import check_same, compile_on_cpu, interpret, plain, rank_of

RNG = np.random.RandomState(1)
X = RNG.randn(8, 5).astype(np.float32)

_scale = ops.MultitypeFuncGraph("scale")


@_scale.register("Tensor", "Tensor")
def _scale_one(factor, gradient):
    return gradient * factor


class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        rng = np.random.RandomState(2)
        self.weight = Parameter(Tensor(rng.randn(5, 5) * 0.3, ms.float32), name="weight")
        self.bias = Parameter(Tensor(np.zeros(5), ms.float32), name="bias")
        self.matmul, self.gelu, self.softmax = ops.MatMul(transpose_b=True), ops.GeLU(), ops.Softmax(-1)

    def construct(self, x):
        return -F.reduce_mean(ops.log(self.softmax(self.gelu(self.matmul(x, self.weight)) + self.bias))[:, 0])


class Step(nn.Cell):
    """A training step: gradients, a finite check, AdamW in one branch and a dynamic loss scale in both."""

    def __init__(self):
        super().__init__()
        self.network = Network()
        self.weights = ParameterTuple(self.network.trainable_params())
        self.optimizer = nn.AdamWeightDecay(self.weights, learning_rate=0.1, weight_decay=0.1)
        self.grad, self.map = ops.GradOperation(get_by_list=True, sens_param=True), ops.HyperMap()
        self.scale = Parameter(Tensor(8.0, ms.float32), name="loss_scale", requires_grad=False)
        self.good_steps = Parameter(Tensor(0, ms.int32), name="good_steps", requires_grad=False)

    def construct(self, x):
        scale = self.scale * 1.0
        loss = self.network(x)
        gradients = self.map(F.partial(_scale, 1.0 / scale), self.grad(self.network, self.weights)(x, scale))
        norm = F.sqrt(F.reduce_sum(F.square(gradients[0])))
        finite = F.isfinite(norm)
        if finite:
            loss = F.depend(loss, self.optimizer(gradients))
            self.good_steps = self.good_steps + 1
            if self.good_steps >= 2:
                self.scale = self.scale * 2.0
                self.good_steps = self.good_steps * 0
        else:
            self.scale = F.maximum(self.scale * 0.5, 1.0)
            self.good_steps = self.good_steps * 0
        return loss, norm, finite, self.scale * 1.0


class Ordered(nn.Cell):
    """Reads before and after updates of the same parameter."""

    def __init__(self):
        super().__init__()
        self.total = Parameter(Tensor(np.zeros(3), ms.float32), name="total")

    def construct(self, x):
        before = self.total + 0.0
        F.assign_add(self.total, x)
        between = self.total * 1.0
        F.assign(self.total, between * between)
        F.assign_sub(self.total, x)
        return before, between, self.total + 0.0


class Branching(nn.Cell):
    """The gradient of a function with a branch in it, and a loop whose length depends on the data."""

    def __init__(self):
        super().__init__()
        self.grad = ops.GradOperation()

    def branch(self, x):
        return x * x if F.reduce_sum(x) > 0 else x * 3.0

    def construct(self, x):
        count = Tensor(0, ms.int32)
        total = F.reduce_sum(x * x)
        while total > 1.0:
            total = total * 0.5
            count = count + 1
        return self.branch(x), self.grad(self.branch)(x), count


def run_both(cell: nn.Cell, batches: list[np.ndarray]) -> tuple[dict, dict]:
    """Execute the cell step after step by MindSpore and by us; the outputs must be the same. Returns the parameters of both."""
    program = compile_on_cpu(cell, batches[0])
    rank = rank_of(cell, program)
    for batch in batches:
        check_same(interpret(rank, batch), plain(cell(Tensor(batch))))
    return rank.parameters, {p.name: p.asnumpy() for p in cell.get_parameters()}


def test_training_step_with_branches():
    infinite = np.full_like(X, np.inf)
    got, want = run_both(Step().set_train(), [X, X + 0.1, infinite, X * 2, infinite, X - 0.1, X])
    assert want["loss_scale"] == 8.0  # 8, 16 after two good steps, 8, 8, 4, 4, 8: every branch was taken
    for name, value in got.items():
        check_same(value, want[name])


def test_parameter_is_read_in_the_order_of_the_program():
    batches = [RNG.randn(3).astype(np.float32) for _ in range(3)]
    got, want = run_both(Ordered(), batches)
    check_same(got["total"], want["total"])


def test_gradient_through_a_branch_and_a_loop():
    cell = Branching()
    x = np.abs(X[0]) * 3
    run_both(cell, [x, -x, x * 10])


def test_given_parameters_and_inputs_are_not_changed():
    cell = Ordered()
    batch = np.ones(3, np.float32)
    program = compile_on_cpu(cell, batch)
    rank = rank_of(cell, program)
    interpret(rank, batch)
    assert not cell.total.asnumpy().any()
    assert np.array_equal(batch, np.ones(3))
    assert np.array_equal(rank.parameters["total"], np.zeros(3))  # 0 + 1, squared, minus 1
