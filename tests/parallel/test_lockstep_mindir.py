"""The reader against protobuf's own decoder."""
import time

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from mindspore.graph.api import _cell_graph_executor as executor
from mindspore.train import mind_ir_pb2

from parallel.lockstep import mindir
from parallel.lockstep.mindir import MONAD, TensorType

MASK = np.triu(np.full((64, 64), -1e9, np.float32), 1)


class Cell(nn.Cell):
    def __init__(self):
        super().__init__()
        self.weight = Parameter(Tensor(np.ones((64, 64)), ms.float32), name="weight")
        self.count = Parameter(Tensor(0, ms.int32), name="count", requires_grad=False)
        self.matmul = ops.MatMul(transpose_b=True).add_prim_attr("note", "attention").add_prim_attr("cut", (2, -3))
        self.mask, self.table = Tensor(MASK), Tensor(MASK.T.copy())

    def construct(self, x):
        self.count = self.count - 1
        y = self.matmul(x, self.weight) + self.mask
        if self.count > 0:
            y = y * 0.25 + self.mask
        return y + self.table, ops.transpose(y, (1, 0)).astype(ms.float16)


@pytest.fixture(scope="module")
def both():
    ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
    cell = Cell()
    phase, _ = executor.compile(cell, Tensor(np.ones((64, 64), np.float32)), phase="mindir")
    data = executor._graph_executor.get_func_graph_proto(phase, "mind_ir", False)
    model = mind_ir_pb2.ModelProto()
    model.ParseFromString(data)
    return data, mindir.read(data), model


def graphs(both):
    _, program, model = both
    mine = [program.main, *program.functions.values()]
    assert len(mine) == 1 + len(model.functions) > 2
    return list(zip(mine, [model.graph, *model.functions], strict=True))


def local(name: str, graph) -> str:
    return "%" + name.removeprefix(graph.name + ":") if name.startswith(graph.name + ":") else name


def test_nodes(both):
    primitives = {p.name: p.op_type for p in both[2].primitives}
    for mine, theirs in graphs(both):
        nodes = [n for n in theirs.node if n.op_type != "Constant"]
        assert [n.output for n in mine.nodes] == [local(n.output[0], theirs) for n in nodes]
        for a, b in zip(mine.nodes, nodes, strict=True):
            name = b.op_type.removeprefix("REF::")
            inputs = tuple(local(i, theirs) for i in b.input)
            if name in primitives:
                assert (a.op, a.inputs, a.scope) == (primitives[name], inputs, b.domain)
            else:
                assert (a.op, a.inputs) == ("call", (local(name, theirs), *inputs))
            assert set(a.marks) == {m.name for m in (*b.node_attr, *b.primal_attr)}


def test_types_inputs_and_parameters(both):
    program = both[1]
    f32, i32 = np.dtype("float32"), np.dtype("int32")
    assert program.main.inputs == {"%x": TensorType((64, 64), f32)}
    assert program.main.parameters == {"weight": TensorType((64, 64), f32), "count": TensorType((), i32)}
    kinds = {n.op: n.type for n in program.main.nodes}
    assert kinds["MatMul"] == TensorType((64, 64), f32) and kinds["MatMul"].nbytes == 4 * 64 * 64
    assert kinds["Cast"] == TensorType((64, 64), np.dtype("float16"))
    assert kinds["Greater"] == TensorType((), np.dtype("bool"))
    assert kinds["UpdateState"] is MONAD
    assert {n.type for n in program.main.nodes if n.op == "MakeTuple"} >= {(kinds["MatMul"], kinds["Cast"])}
    assert any(MONAD in g.inputs.values() for g in program.functions.values())


def test_attributes(both):
    (matmul,) = [n for n in both[1].nodes if n.op == "MatMul"]
    assert matmul.attributes["note"] == "attention"
    assert matmul.attributes["cut"] == (2, -3)


def test_constants(both):
    data, program, _ = both
    constants = {id(c): c for g in (program.main, *program.functions.values()) for c in g.constants.values()}
    arrays = [c for c in constants.values() if isinstance(c, np.ndarray)]
    large = [a for a in arrays if a.shape == (64, 64)]
    assert sorted(a[0, 1] for a in large) == [-1e9, 0.0]  # two of them, though the mask is used in two graphs
    assert all(np.array_equal(a, MASK) or np.array_equal(a, MASK.T) for a in large)
    for a in large:
        assert np.shares_memory(a, np.frombuffer(data, np.uint8))
        with pytest.raises(ValueError):
            a[0, 0] = 1
    scalars = [c for c in constants.values() if not isinstance(c, np.ndarray)]
    assert (1, 0) in scalars and 0.25 in scalars and MONAD in scalars and any(c is True for c in scalars)


def test_large_graph_is_read_quickly(both):
    """The same graph 200 times over, as 200 functions: about ten thousand nodes."""
    graph = both[2].graph.SerializeToString()
    size, header = len(graph), b"\x42"  # field 8, functions, a nested message
    varint = bytes([size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14])
    start = time.process_time()
    program = mindir.read(both[0] + (header + varint + graph) * 200)
    seconds = time.process_time() - start
    assert program.main.name == both[1].main.name
    nodes = len(both[1].main.nodes) * 200
    assert seconds / nodes < 2e-4
