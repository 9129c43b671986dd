"""MindIR, the compiled graph of one rank as MindSpore serializes it, read into plain Python values.

The format is `mind_ir.proto` of MindSpore 2.10 (`mindspore/train/mind_ir_pb2.py`) in protobuf's wire format
(https://protobuf.dev/programming-guides/encoding/). It is decoded here and not by `mind_ir_pb2`, because `import mindspore` sets
protobuf to its pure Python implementation: that takes 0.3 ms for each node and copies every constant.
"""
import gc
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

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


@dataclass(slots=True)
class Node:
    """One use of an operator, or one call.

    op: MindSpore's name of the operator ("MatMul"), or "call". inputs: names of values; the first input of a call is its callee: the
    name of a graph, or of a value that is a function. attributes: the primitive's (group, group_rank_ids, in_strategy ...).
    marks: this use's (micro, chunk, forward_comm_node_unique_id ...). scope: where among the cells it stands
    ("Default/network-GPT/.../MatMul-op3"; nothing for a call). type: of the result.
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
    names without it. inputs: names and types. parameters: the network's, without the %, as they are called in its cells; only the
    main graph has them, the others are handed as inputs what they use.
    """

    name: str
    inputs: dict[str, Type]
    output: str
    nodes: list[Node]
    parameters: dict[str, TensorType] = field(default_factory=dict)
    constants: dict[str, object] = field(default_factory=dict)  # two graphs may give two values one name


@dataclass(slots=True)
class Program:
    """The main graph, those that it calls, and the constants of all of them, by name.

    A constant is an np.ndarray (read only; equal ones share memory), int, float, bool, str, np.dtype, tuple, None or MONAD.
    """

    main: Graph
    functions: dict[str, Graph]
    constants: dict[str, object]

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


def _fields(data: bytes, pos: int, end: int) -> Iterator[tuple[int, int, int]]:
    """(field number, a, b) of a message: data[a:b] for a nested message, string or fixed number, the value in `a` for a varint."""
    while pos < end:
        key = data[pos]
        pos += 1
        if key >= 0x80:
            key += (data[pos] << 7) - 0x80
            pos += 1
        kind = key & 7
        if kind == 0:
            value, pos = _varint(data, pos)
            yield key >> 3, value - (1 << 64) if value >> 63 else value, 0
            continue
        if kind == 2:
            size = data[pos]
            pos += 1
            if size >= 0x80:
                size, pos = _varint(data, pos - 1)
        else:
            size = 8 if kind == 1 else 4
        yield key >> 3, pos, pos + size
        pos += size


class _Reader:
    """Reads one model. Equal attributes and equal constants become one object: a large graph repeats few of them very often."""

    def __init__(self, data: bytes):
        self.data = data
        self.seen: dict[bytes, tuple[str, object]] = {}
        self.types: dict[bytes, Type] = {}
        self.arrays: dict[tuple, np.ndarray] = {}
        self.names: dict[bytes, str] = {}
        self.constants: dict[str, object] = {}
        self.primitives: dict[str, tuple[str, dict]] = {}
        self.nothing: dict = {}

    def program(self) -> Program:
        graphs = []
        fields = list(_fields(self.data, 0, len(self.data)))
        for number, a, b in fields:  # ModelProto; the primitives first, since nodes refer to them
            if number == 12:
                self.primitive(a, b)
        for number, a, b in fields:
            if number in (7, 8):
                graphs.append(self.graph(a, b))
        return Program(graphs[0], {g.name: g for g in graphs[1:]}, self.constants)

    def text(self, a: int, b: int) -> str:
        return self.data[a:b].decode(errors="replace")

    def primitive(self, a: int, b: int) -> None:
        name = op = ""
        attributes = {}
        for number, a, b in _fields(self.data, a, b):  # PrimitiveProto
            if number == 1:
                name = self.text(a, b)
            elif number == 2:
                op = self.text(a, b)
            elif number == 3:
                key, value = self.attribute(a, b)
                attributes[key] = value
        self.primitives[name] = op, attributes

    def graph(self, a: int, b: int) -> Graph:
        nodes, inputs, parameters, output = [], {}, {}, ""
        fields = list(_fields(self.data, a, b))  # GraphProto
        name = next(self.text(a, b) for number, a, b in fields if number == 2)
        self.prefix, self.names, self.local = f"{name}:", {}, {}
        for number, a, b in fields:
            if number == 1:
                self.node(a, b, nodes)
            elif number == 3:
                label = self.name(*next((a, b) for n, a, b in _fields(self.data, a, b) if n == 7))
                parameters[label.removeprefix("%")] = self.tensor(a, b, False)
            elif number == 5:
                key, value = self.input(a, b)
                inputs[key] = value
            elif number == 6:
                output = self.name(*next((a, b) for n, a, b in _fields(self.data, a, b) if n == 1))
        return Graph(name, inputs, output, nodes, parameters, self.local)

    def name(self, a: int, b: int) -> str:
        """The name of a value; the name of its graph, which begins it in the file, becomes %."""
        key = self.data[a:b]
        if key not in self.names:
            self.names[key] = self.local(key.decode())
        return self.names[key]

    def local(self, name: str) -> str:
        return "%" + name[len(self.prefix):] if name.startswith(self.prefix) else name

    def input(self, a: int, b: int) -> tuple[str, Type]:
        name, kind = "", None
        for number, a, b in _fields(self.data, a, b):  # ValueInfoProto
            if number == 1:
                name = self.name(a, b)
            elif number == 2:
                kind = self.tensor(a, b, False)
            elif number == 4 and self.text(a, b) in ("UMonadType", "IOMonadType"):
                kind = MONAD
            elif number == 5:
                kind = self.type(a, b)
        return name, kind

    def node(self, a: int, b: int, nodes: list[Node]) -> None:
        inputs, output, op, scope, marks, attributes = [], "", "", "", {}, []
        for number, a, b in _fields(self.data, a, b):  # NodeProto
            if number == 1:
                inputs.append(self.name(a, b))
            elif number == 2:
                output = self.name(a, b)
            elif number == 4:
                op = self.text(a, b).removeprefix("REF::")
            elif number == 5:
                attributes.append((a, b))
            elif number == 7:
                scope = self.text(a, b)
            elif number in (8, 9):
                key, value = self.attribute(a, b)
                marks[key] = value
        if op == "Constant":
            self.constants[output] = self.local[output] = self.value(*attributes[0])[1]
            return
        kind = self.type(*attributes[0]) if attributes else None  # its one attribute: what inference found
        if op in self.primitives:
            op, attributes = self.primitives[op]
            nodes.append(Node(op, tuple(inputs), output, attributes, marks or self.nothing, scope, kind))
        else:
            nodes.append(Node("call", (self.local(op), *inputs), output, self.nothing, marks or self.nothing, "", kind))

    def attribute(self, a: int, b: int) -> tuple[str, object]:
        """(name, value); equal ones are decoded once."""
        key = self.data[a:b]
        if key not in self.seen:
            self.seen[key] = self.value(a, b)
        return self.seen[key]

    def value(self, a: int, b: int) -> tuple[str, object]:
        """AttributeProto -> (name, value)."""
        name, kind, number_range, single, many, tensor, values = "", 0, None, 0, None, None, []
        for number, a, b in _fields(self.data, a, b):
            if number == 1:
                name = self.text(a, b)
            elif number in (2, 4, 5):
                number_range = a, b
            elif number == 3:
                single = a
            elif number in (8, 9, 11):  # inside a tuple the value is in the repeated fields
                number_range = a, b
            elif number == 10:
                many = a
            elif number in (6, 12):
                tensor = a, b
            elif number == 16:
                kind = a
            elif number == 17:
                values.append((a, b))
        if kind in (_TENSOR, _TENSORS):
            return name, self.tensor(*tensor, True)
        if kind in (_TUPLE, _LIST):
            return name, tuple(self.value(a, b)[1] for a, b in values)
        if kind in _INTEGERS or kind == _BOOL:
            number = single if many is None else many
            return name, bool(number) if kind == _BOOL else number
        if kind in (_FLOAT, _DOUBLE):
            form = "<f" if kind == _FLOAT else "<d"
            return name, struct.unpack(form, self.data[slice(*number_range)])[0] if number_range else 0.0
        if kind == _STRING:
            return name, self.text(*number_range) if number_range else ""
        return name, MONAD if kind in (_UMONAD, _IOMONAD) else None

    def tensor(self, a: int, b: int, with_data: bool) -> np.ndarray | TensorType | np.dtype | None:
        """TensorProto -> its data; without data (or `with_data`) its type, or the dtype alone where it stands for a dtype."""
        dims, data_type, raw = [], 0, None
        for number, a, b in _fields(self.data, a, b):
            if number == 1:
                dims.append(a)
            elif number == 2:
                data_type = a
            elif number == 9 and b > a:
                raw = a, b
        if data_type not in _DTYPES and data_type != _BFLOAT16:
            return None
        dtype = _dtype(data_type)
        if with_data and raw is not None:
            return self.array(dtype, tuple(dims), *raw)
        return dtype if with_data and not dims else TensorType(tuple(dims), dtype)

    def array(self, dtype: np.dtype, shape: tuple, a: int, b: int) -> np.ndarray:
        """A view of the data; equal constants share the first of them, so that the others are never touched again."""
        key = dtype, shape, memoryview(self.data)[a:b]  # hashed and compared without a copy
        if key not in self.arrays:
            self.arrays[key] = np.frombuffer(self.data, dtype, (b - a) // dtype.itemsize, a).reshape(shape)
        return self.arrays[key]

    def type(self, a: int, b: int) -> Type:
        """AttributeProto that describes a result; equal ones are decoded once."""
        key = self.data[a:b]
        if key not in self.types:
            self.types[key] = self.decode_type(a, b)
        return self.types[key]

    def decode_type(self, a: int, b: int) -> Type:
        kind, tensor, values = 0, None, []
        for number, a, b in _fields(self.data, a, b):
            if number in (6, 12):
                tensor = a, b
            elif number == 16:
                kind = a
            elif number == 17:
                values.append((a, b))
        if kind in (_TUPLE, _LIST):
            return tuple(self.decode_type(a, b) for a, b in values)
        if kind in (_TENSOR, _TENSORS) and tensor:
            return self.tensor(*tensor, False)
        return MONAD if kind in (_UMONAD, _IOMONAD) else None


def _dtype(data_type: int) -> np.dtype:
    if data_type == _BFLOAT16:
        from mindspore.common.np_dtype import bfloat16  # numpy has none of its own; `import mindspore` takes seconds
        return np.dtype(bfloat16)
    return np.dtype(_DTYPES[data_type])
