"""MindIR, the compiled graph of one rank as MindSpore serializes it, read into plain Python values.

The format is `mind_ir.proto` of MindSpore 2.10 (`mindspore.train.mind_ir_pb2`). Names of graphs, operators and attributes are
MindSpore's own.
"""
import gc
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from mindspore.common.np_dtype import bfloat16
from mindspore.train import mind_ir_pb2 as pb

_A = pb.AttributeProto
_T = pb.TensorProto
_DTYPES = {_T.FLOAT: np.float32, _T.UINT8: np.uint8, _T.INT8: np.int8, _T.UINT16: np.uint16, _T.INT16: np.int16,
           _T.INT32: np.int32, _T.INT64: np.int64, _T.BOOL: np.bool_, _T.FLOAT16: np.float16, _T.DOUBLE: np.float64,
           _T.UINT32: np.uint32, _T.UINT64: np.uint64, _T.FLOAT64: np.float64, _T.BFLOAT16: bfloat16}
_INTEGERS = {_A.INT8, _A.INT16, _A.INT32, _A.INT64, _A.UINT8, _A.UINT16, _A.UINT32, _A.UINT64}


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and dtype of a tensor. A tuple of them is the type of a tuple; other values (functions, monads) have type None."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of its data."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype.name}{list(self.shape)}"


Type = TensorType | tuple | None


class Monad:
    """The one value of MindSpore's monads, which only order side effects."""

    def __repr__(self) -> str:
        return "MONAD"


MONAD = Monad()


@dataclass(slots=True)
class Node:
    """One operator's use, or one call.

    op: MindSpore's name of the operator ("MatMul"), or "call". inputs: names of values. A call's callee, the name of a graph or of
    a value that is a function, is the first of them. attributes: those of the primitive (group, group_rank_ids, in_strategy ...).
    marks: those of this use (micro, chunk, forward_comm_node_unique_id ...). scope: where in the cells it stands
    ("Default/network-GPT/.../MatMul-op3"; empty for calls). type: of the result.
    """

    op: str
    inputs: tuple[str, ...]
    output: str
    attributes: dict
    marks: dict
    scope: str
    type: Type


@dataclass(slots=True)
class Parameter:
    """A parameter of the network, under the name that it has in its cells. In a sub-graph: an input that is one, by reference."""

    name: str
    type: TensorType


@dataclass(slots=True)
class Graph:
    """One function: the nodes in an order that respects data and side effects.

    constants: name of a value -> np.ndarray (read only; equal ones share memory), int, float, bool, str, tuple, None or MONAD.
    inputs: names of values. parameters: name of a value -> the parameter (main graph only; a sub-graph is handed them as inputs).
    """

    name: str
    inputs: tuple[str, ...]
    types: tuple[Type, ...]
    output: str
    nodes: list[Node]
    constants: dict[str, object]
    parameters: dict[str, Parameter] = field(default_factory=dict)


@dataclass(slots=True)
class Program:
    """The main graph and those that it calls, by name."""

    main: Graph
    functions: dict[str, Graph]

    @property
    def nodes(self) -> Iterator[Node]:
        """All nodes: of the main graph, then of each function once, however often it is called."""
        for graph in (self.main, *self.functions.values()):
            yield from graph.nodes


class _Reader:
    """Reads one model. Equal attributes and equal constants become one object: a large graph repeats few of them very often."""

    def __init__(self, model: pb.ModelProto):
        self.seen: dict[bytes, object] = {}
        self.arrays: dict[tuple, np.ndarray] = {}
        self.primitives = {p.name: (p.op_type, {a.name: self.attribute(a) for a in p.attribute}) for p in model.primitives}
        self.no_marks: dict = {}

    def array(self, tensor) -> np.ndarray:
        raw, dims = tensor.raw_data, tuple(tensor.dims)
        key = tensor.data_type, dims, raw
        if key not in self.arrays:
            self.arrays[key] = np.frombuffer(raw, _DTYPES[tensor.data_type]).reshape(dims)
        return self.arrays[key]

    def value(self, a) -> object:
        """A constant's value, or an attribute's."""
        kind = a.type
        if kind == _A.TENSOR or kind == _A.TENSORS:
            tensors = a.tensors or [a.t]
            if not tensors[0].raw_data:
                return self.tensor_type(tensors[0]) if tensors[0].dims or not tensors[0].name else _dtype(tensors[0])
            return self.array(tensors[0])
        if kind == _A.TUPLE or kind == _A.LIST:
            return tuple(self.value(v) for v in a.values)
        if kind == _A.BOOL:  # inside a tuple the value is in `ints`
            return bool(a.ints[0] if a.ints else a.i)
        if kind in _INTEGERS:
            return a.ints[0] if a.ints else a.i
        if kind == _A.FLOAT:
            return a.floats[0] if a.floats else a.f
        if kind == _A.DOUBLE:
            return a.doubles[0] if a.doubles else a.d
        if kind == _A.STRING:
            return (a.strings[0] if a.strings else a.s).decode(errors="replace")
        return MONAD if kind in (_A.UMONAD, _A.IOMONAD) else None

    def attribute(self, a) -> object:
        key = a.SerializePartialToString()
        if key not in self.seen:
            self.seen[key] = self.value(a)
        return self.seen[key]

    def type(self, a) -> Type:
        key = b"type" + a.SerializePartialToString()
        if key not in self.seen:
            self.seen[key] = self._type(a)
        return self.seen[key]

    def _type(self, a) -> Type:
        if a.type in (_A.TUPLE, _A.LIST):
            return tuple(self._type(v) for v in a.values)
        if a.type in (_A.TENSOR, _A.TENSORS) and a.tensors:
            return self.tensor_type(a.tensors[0])
        return MONAD if a.type in (_A.UMONAD, _A.IOMONAD) else None

    def tensor_type(self, t) -> TensorType | None:
        return TensorType(tuple(t.dims), _dtype(t)) if t.data_type in _DTYPES else None

    def node(self, proto) -> Node:
        primitive = self.primitives.get(proto.op_type.removeprefix("REF::"))
        op, attributes = primitive or ("call", {})
        inputs = tuple(proto.input) if primitive else (proto.op_type.removeprefix("REF::"), *proto.input)
        shape = next((self.type(a) for a in proto.attribute if a.name == "shape"), None)
        marks = {a.name: self.attribute(a) for group in (proto.node_attr, proto.primal_attr) for a in group} or self.no_marks
        return Node(op, inputs, proto.output[0], attributes, marks, proto.domain if primitive else "", shape)

    def graph(self, proto) -> Graph:
        nodes, constants = [], {}
        for n in proto.node:
            if n.op_type == "Constant":
                constants[n.output[0]] = self.value(n.attribute[0])
            else:
                nodes.append(self.node(n))
        types = tuple(MONAD if i.denotation in ("UMonadType", "IOMonadType") else self.tensor_type(i.tensor[0]) if i.tensor
                      else self.type(i.attr_info) for i in proto.input)
        parameters = {p.name: Parameter(p.name.removeprefix(proto.name + ":"), self.tensor_type(p)) for p in proto.parameter}
        return Graph(proto.name, tuple(i.name for i in proto.input), types, proto.output[0].name, nodes, constants, parameters)


def _dtype(tensor) -> np.dtype:
    return np.dtype(_DTYPES[tensor.data_type])


def read(data: bytes) -> Program:
    """The program in a serialized MindIR: the content of a `.mindir` file, or what `get_func_graph_proto` returns."""
    model = pb.ModelProto()
    model.ParseFromString(data)
    was_enabled = gc.isenabled()
    gc.disable()  # 10^5 nodes without a cycle among them: collecting takes longer than reading
    try:
        reader = _Reader(model)
        return Program(reader.graph(model.graph), {f.name: reader.graph(f) for f in model.functions})
    finally:
        if was_enabled:
            gc.enable()
