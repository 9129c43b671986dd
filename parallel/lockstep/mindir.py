"""MindIR, the compiled graph of one rank as MindSpore serializes it, read into plain Python values.

The format is `mind_ir.proto` of MindSpore 2.10 (`mindspore/train/mind_ir_pb2.py`) in protobuf's wire format
(https://protobuf.dev/programming-guides/encoding/). It is decoded here and not by `mind_ir_pb2`, because `import mindspore` sets
protobuf to its pure Python implementation: that takes 0.3 ms for each node and copies every constant.
"""
import gc
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

import numpy as np

# TensorProto.DataType
_DTYPES = {1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "float16",
           11: "float64", 12: "uint32", 13: "uint64", 17: "float64"}
_BFLOAT16 = 16
# AttributeProto.AttributeType
_FLOAT, _STRING, _BOOL, _DOUBLE, _TENSOR, _TENSORS, _TUPLE, _LIST, _UMONAD, _IOMONAD = 1, 8, 9, 11, 17, 19, 20, 21, 23, 24
_INTEGERS = {2, 3, 4, 5, 6, 7, 12, 13}


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and dtype of a tensor. A tuple of them is the type of a tuple; a value that is neither has the type None."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of its data."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype.name}{list(self.shape)}"


class Monad:
    """The one value of MindSpore's monads, which only order side effects, and their type."""

    def __repr__(self) -> str:
        return "MONAD"


MONAD = Monad()
Type = TensorType | tuple | Monad | None


def type_of(x) -> Type:
    """The type of an array or of a tuple of arrays."""
    return tuple(map(type_of, x)) if isinstance(x, tuple) else TensorType(x.shape, x.dtype)


def describe(kind: Type) -> str:
    """A type for people: float32[4, 2], or (float32[4], bool[])."""
    return "(" + ", ".join(map(describe, kind)) + ")" if isinstance(kind, tuple) else str(kind)


@dataclass(slots=True)
class Node:
    """One use of an operator, or one call.

    op: MindSpore's name of the operator ("MatMul"), or "call". inputs: names of values; the first input of a call is its
    callee: the name of a graph, or of a value that is a function. attributes: the primitive's (group, group_rank_ids,
    in_strategy ...). marks: this use's (micro, chunk, forward_comm_node_unique_id ...). scope: where among the cells it
    stands ("Default/network-GPT/.../MatMul-op3"; nothing for a call). type: of the result.
    """

    op: str
    inputs: tuple[str, ...]
    output: str
    attributes: dict
    marks: dict
    scope: str
    type: Type


@dataclass(slots=True)
class Graph:
    """One function: the nodes in an order that respects data and side effects.

    The name of a value begins with % if it belongs to the graph (inputs, parameters, results of nodes); constants and graphs have
    names without it. inputs: names and types. constants: those that the graph uses; np.ndarray (read only; equal ones share
    memory), int, float, bool, str, np.dtype, tuple, None or MONAD. parameters: the network's, without the %, as they are called
    in its cells; only the main graph has them, the others are handed as inputs what they use.
    """

    name: str
    inputs: dict[str, Type]
    output: str
    nodes: list[Node]
    constants: dict[str, object] = field(default_factory=dict)
    parameters: dict[str, TensorType] = field(default_factory=dict)


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


def read(data: bytes) -> Program:
    """The program in a serialized MindIR: the content of a `.mindir` file, or what `get_func_graph_proto` returns.

    Constants are views of `data`.
    """
    was_enabled = gc.isenabled()
    gc.disable()  # many small objects and no cycle among them: looking for cycles would take longer than reading
    try:
        return _Reader(data).program()
    finally:
        if was_enabled:
            gc.enable()


def _varint(data: bytes, pos: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos
        shift += 7


def _fields(data: bytes, span: tuple[int, int]) -> Iterator[tuple[int, object]]:
    """The fields of the message data[start:end]: (number, value); a value that is not a varint is given as its own span."""
    pos, end = span
    while pos < end:
        key = data[pos]
        pos += 1
        if key >= 0x80:
            key += (data[pos] << 7) - 0x80
            pos += 1
        kind = key & 7
        if kind == 0:
            value, pos = _varint(data, pos)
            yield key >> 3, value - (1 << 64) if value >> 63 else value
            continue
        if kind == 2:
            size = data[pos]
            pos += 1
            if size >= 0x80:
                size, pos = _varint(data, pos - 1)
        else:
            size = 8 if kind == 1 else 4
        yield key >> 3, (pos, pos + size)
        pos += size


class _Reader:
    """Reads one model. Equal attributes and equal constants become one object: a large graph repeats few of them very often."""

    def __init__(self, data: bytes):
        self.data = data
        self.primitives: dict[str, tuple[str, dict]] = {}
        self.constants: dict[str, object] = {}  # all so far: a graph may use those of one before it, or give its own an old name
        self.attributes: dict[bytes, tuple[str, object]] = {}
        self.types: dict[bytes, Type] = {}
        self.arrays: dict[tuple, np.ndarray] = {}
        self.prefix = ""                        # of this graph
        self.names: dict[bytes, str] = {}       # in this graph
        self.used: dict[str, object] = {}       # constants of this graph

    def program(self) -> Program:
        fields = list(_fields(self.data, (0, len(self.data))))  # ModelProto
        for number, span in fields:
            if number == 12:
                self.primitive(span)
        graphs = [self.graph(span) for number, span in fields if number in (7, 8)]
        return Program(graphs[0], {g.name: g for g in graphs[1:]})

    def text(self, span: tuple[int, int]) -> str:
        return self.data[slice(*span)].decode(errors="replace")

    def only(self, number: int, span: tuple[int, int]) -> tuple[int, int]:
        """The first field of this number."""
        return next(value for n, value in _fields(self.data, span) if n == number)

    def primitive(self, span: tuple[int, int]) -> None:
        name = op = ""
        attributes = {}
        for number, value in _fields(self.data, span):  # PrimitiveProto
            if number == 1:
                name = self.text(value)
            elif number == 2:
                op = self.text(value)
            elif number == 3:
                key, attributes[key] = self.attribute(value)
        self.primitives[name] = op, attributes

    def graph(self, span: tuple[int, int]) -> Graph:
        name = self.text(self.only(2, span))
        self.prefix, self.names, self.used = f"{name}:", {}, {}
        graph = Graph(name, {}, "", [], self.used)
        for number, value in _fields(self.data, span):  # GraphProto
            if number == 1:
                self.node(value, graph.nodes)
            elif number == 3:
                graph.parameters[self.name(self.only(7, value)).removeprefix("%")] = self.tensor_type(value)
            elif number == 5:
                key, graph.inputs[key] = self.input(value)
            elif number == 6:
                graph.output = self.name(self.only(1, value))
        self.use([graph.output])
        return graph

    def name(self, span: tuple[int, int]) -> str:
        """The name of a value; the name of its graph, which begins it in the file, becomes %."""
        key = self.data[slice(*span)]
        if key not in self.names:
            self.names[key] = self.local(key.decode())
        return self.names[key]

    def local(self, name: str) -> str:
        return "%" + name[len(self.prefix):] if name.startswith(self.prefix) else name

    def use(self, names: list[str]) -> None:
        for name in names:
            if name in self.constants:
                self.used[name] = self.constants[name]

    def input(self, span: tuple[int, int]) -> tuple[str, Type]:
        name, kind = "", None
        for number, value in _fields(self.data, span):  # ValueInfoProto
            if number == 1:
                name = self.name(value)
            elif number == 2:
                kind = self.tensor_type(value)
            elif number == 4 and self.text(value) in ("UMonadType", "IOMonadType"):
                kind = MONAD
            elif number == 5:
                kind = self.type(value)
        return name, kind

    def node(self, span: tuple[int, int], nodes: list[Node]) -> None:
        inputs, output, op, scope, marks, described = [], "", "", "", {}, None
        for number, value in _fields(self.data, span):  # NodeProto
            if number == 1:
                inputs.append(self.name(value))
            elif number == 2:
                output = self.name(value)
            elif number == 4:
                op = self.text(value).removeprefix("REF::")
            elif number == 5:  # of a constant its value, of others what MindSpore inferred of the result
                described = value
            elif number == 7:
                scope = self.text(value)
            elif number in (8, 9):
                key, marks[key] = self.attribute(value)
        if op == "Constant":
            self.constants[output] = self.value(described)[1]
            return
        self.use(inputs)
        kind = self.type(described) if described else None
        if op in self.primitives:
            name, attributes = self.primitives[op]
            nodes.append(Node(name, tuple(inputs), output, attributes, marks, scope, kind))
        else:
            nodes.append(Node("call", (self.local(op), *inputs), output, {}, marks, "", kind))

    def attribute(self, span: tuple[int, int]) -> tuple[str, object]:
        """(name, value); equal ones are decoded once."""
        key = self.data[slice(*span)]
        if key not in self.attributes:
            self.attributes[key] = self.value(span)
        return self.attributes[key]

    def value(self, span: tuple[int, int]) -> tuple[str, object]:
        """AttributeProto -> (name, value)."""
        name, kind, x, parts = "", 0, None, []
        for number, value in _fields(self.data, span):
            if number == 1:
                name = self.text(value)
            elif number == 16:
                kind = value
            elif number == 17:
                parts.append(value)
            elif number <= 12:  # the value itself: in a field of its own kind, inside a tuple in the repeated one
                x = value
        if kind in (_TENSOR, _TENSORS):
            return name, self.tensor(x)
        if kind in (_TUPLE, _LIST):
            return name, tuple(self.value(part)[1] for part in parts)
        if kind in _INTEGERS:
            return name, x or 0
        if kind == _BOOL:
            return name, bool(x)
        if kind in (_FLOAT, _DOUBLE):
            return name, struct.unpack("<f" if kind == _FLOAT else "<d", self.data[slice(*x)])[0] if x else 0.0
        if kind == _STRING:
            return name, self.text(x) if x else ""
        return name, MONAD if kind in (_UMONAD, _IOMONAD) else None

    def tensor(self, span: tuple[int, int]) -> np.ndarray | TensorType | np.dtype | None:
        """TensorProto -> its data; without data its type, or where it has no shape the dtype, which MindSpore writes so."""
        raw = next((value for number, value in _fields(self.data, span) if number == 9), (0, 0))
        kind = self.tensor_type(span)
        if kind is None or raw[0] == raw[1]:
            return kind.dtype if kind and not kind.shape else kind
        # Equal constants share the first of them. A memoryview is hashed and compared without a copy.
        key = kind, memoryview(self.data)[slice(*raw)]
        if key not in self.arrays:
            count = (raw[1] - raw[0]) // kind.dtype.itemsize
            self.arrays[key] = np.frombuffer(self.data, kind.dtype, count, raw[0]).reshape(kind.shape)
        return self.arrays[key]

    def tensor_type(self, span: tuple[int, int]) -> TensorType | None:
        """TensorProto -> its type; None for what is no tensor of numbers."""
        shape, data_type = [], 0
        for number, value in _fields(self.data, span):
            if number == 1:
                shape.append(value)
            elif number == 2:
                data_type = value
        dtype = _dtype(data_type)
        return dtype and TensorType(tuple(shape), dtype)

    def type(self, span: tuple[int, int]) -> Type:
        """AttributeProto that describes a result; equal ones are decoded once."""
        key = self.data[slice(*span)]
        if key not in self.types:
            kind, tensor, parts = 0, None, []
            for number, value in _fields(self.data, span):
                if number == 12:
                    tensor = value
                elif number == 16:
                    kind = value
                elif number == 17:
                    parts.append(value)
            if kind in (_TUPLE, _LIST):
                self.types[key] = tuple(map(self.type, parts))
            elif kind in (_TENSOR, _TENSORS) and tensor:
                self.types[key] = self.tensor_type(tensor)
            else:
                self.types[key] = MONAD if kind in (_UMONAD, _IOMONAD) else None
        return self.types[key]


@cache
def _dtype(data_type: int) -> np.dtype | None:
    if data_type == _BFLOAT16:
        from mindspore.common.np_dtype import bfloat16  # numpy has none of its own; `import mindspore` takes seconds
        return np.dtype(bfloat16)
    return np.dtype(_DTYPES[data_type]) if data_type in _DTYPES else None
