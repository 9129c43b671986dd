"""One rank: its graph made ready once, then executed up to each communication."""
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

import numpy as np

from parallel.lockstep.collectives import COMMUNICATION, Operation, operation
from parallel.lockstep.errors import KernelFailure, UnknownOperator
from parallel.lockstep.kernels import kernel_of
from parallel.lockstep.mindir import MONAD, Graph, Node, Program, TensorType, Type
from parallel.lockstep.state import UPDATES, Ref, value

KERNEL, UPDATE, COMMUNICATE, LOAD, TUPLE, ITEM, PARTIAL, SWITCH, CALL = range(9)
PLUMBING = {"Load": LOAD, "TensorMove": LOAD, "MakeTuple": TUPLE, "TupleGetItem": ITEM, "Partial": PARTIAL, "Switch": SWITCH,
            "call": CALL}


@dataclass(slots=True)
class Code:
    """A graph made ready: each value has a slot in a frame; inputs have the first ones, constants stand in `frame`.

    steps: (kind, what to run, slots of its inputs, slot of its result, slots that nobody reads after it, node).
    """

    frame: list = field(default_factory=list)
    steps: list[tuple] = field(default_factory=list)
    output: int = 0


@dataclass(slots=True)
class Closure:
    """A function with its first arguments."""

    code: Code
    args: tuple = ()


class Rank:
    """One rank of the job.

    Args:
        graph: what MindSpore compiled for this rank.
        parameters: name in the cells -> this rank's part of it (`layout.slice_of`), with the shape and dtype that the graph has.
            All of the graph's; others are ignored.
        rank: its global number.

    Raises UnknownOperator, or ValueError for a parameter that is missing or does not fit.
    """

    def __init__(self, graph: Program, parameters: dict[str, np.ndarray], rank: int):
        self.rank, self.inputs = rank, list(graph.main.inputs.values())
        self._refs = {name: Ref(self._parameter(name, kind, parameters)) for name, kind in graph.main.parameters.items()}
        self._functions = {name: Code() for name in graph.functions}
        for name, function in graph.functions.items():
            self._make(self._functions[name], function)
        self._main = Code()
        self._make(self._main, graph.main)

    @property
    def parameters(self) -> dict[str, np.ndarray]:
        """What the parameters hold now; read only."""
        return {name: ref.value for name, ref in self._refs.items()}

    def step(self, *inputs: np.ndarray) -> Generator[tuple[Operation, object], object, object]:
        """Execute the graph: yields (operation, what this rank contributes) and wants the answer sent; returns the outputs."""
        found = [TensorType(np.shape(x), np.asarray(x).dtype) for x in inputs]
        if found != self.inputs:
            raise ValueError(f"rank {self.rank}: the graph's inputs are {_types(self.inputs)}, but was given {_types(found)}")
        return value((yield from self._run(self._main, inputs)))

    def intercept(self, choose: Callable[[Node], bool], change: Callable[[np.ndarray], np.ndarray],
                  limit: int | None = None) -> int:
        """Let `change` see and replace the results of those operators that `choose` wants, at most `limit`, in the graphs' order.

        Returns how many they are. Parameter updates and communication cannot be chosen.
        """
        count = 0
        for code in (self._main, *self._functions.values()):
            for i, (kind, run, *rest) in enumerate(code.steps):
                if kind == KERNEL and count != limit and choose(rest[-1]):
                    code.steps[i] = KERNEL, lambda *xs, run=run: change(run(*xs)), *rest
                    count += 1
        return count

    def _parameter(self, name: str, kind: TensorType, parameters: dict[str, np.ndarray]) -> np.ndarray:
        if name not in parameters:
            raise ValueError(f"rank {self.rank}: parameter {name}, {kind}, was not given")
        x = np.array(parameters[name])  # a copy: what Parameter.asnumpy returns is MindSpore's own memory
        if TensorType(x.shape, x.dtype) != kind:
            raise ValueError(f"rank {self.rank}: parameter {name} is {kind} in the graph, but was given {_types([x])[1:-1]}")
        return x

    def _make(self, code: Code, graph: Graph) -> None:
        slots = {name: i for i, name in enumerate(graph.inputs)}
        frame: list = [None] * len(slots)
        monads = {slots[name] for name, kind in graph.inputs.items() if kind is MONAD}
        fixed = set()

        def slot(name: str) -> int:
            if name not in slots:  # the first use of something that is there before the graph runs
                x = self._refs[name[1:]] if name[0] == "%" else Closure(self._functions[name]) if name in self._functions \
                    else graph.constants[name]
                slots[name] = len(frame)
                fixed.add(len(frame))
                if x is MONAD:
                    monads.add(len(frame))
                frame.append(x)
            return slots[name]

        for node in graph.nodes:
            if node.op == "Depend":  # order only, which the order of the nodes has already
                slots[node.output] = slot(node.inputs[0])
                continue
            out = slots[node.output] = len(frame)
            frame.append(None)
            if node.op == "UpdateState":
                monads.add(out)
                continue
            kind, run = self._dispatch(node)
            ins = [slot(name) for name in node.inputs]
            if kind in (KERNEL, UPDATE, COMMUNICATE, LOAD):
                ins = [i for i in ins if i not in monads]
            code.steps.append((kind, run, ins, out, (), node))
        code.output = slot(graph.output)
        code.frame = frame
        _free_early(code, fixed)

    def _dispatch(self, node: Node) -> tuple[int, object]:
        if node.op in PLUMBING:
            return PLUMBING[node.op], None
        if node.op in UPDATES:
            return UPDATE, UPDATES[node.op]
        if node.op in COMMUNICATION:
            return COMMUNICATE, operation(node, self.rank)
        kernel = kernel_of(node)
        if kernel is None:
            raise UnknownOperator(f"rank {self.rank}: no kernel for the operator {node.op} in {node.scope}")
        return KERNEL, kernel

    def _run(self, code: Code, args: tuple) -> Generator:
        frame = code.frame.copy()
        frame[:len(args)] = args
        for kind, run, ins, out, unused, node in code.steps:
            if kind in (KERNEL, UPDATE):
                xs = [x if type(x := frame[i]) is np.ndarray else value(x) for i in ins]
                try:
                    result = _fit(run(*xs), node.type) if kind == KERNEL else self._update(run, [frame[i] for i in ins], xs)
                except Exception as error:
                    raise KernelFailure(f"rank {self.rank}: {node.op} in {node.scope} of {_types(xs)}: {error}") from error
            elif kind == LOAD:
                result = value(frame[ins[0]])
            elif kind == TUPLE:
                result = tuple([frame[i] for i in ins])
            elif kind == ITEM:
                result = frame[ins[0]][frame[ins[1]]]
            elif kind == COMMUNICATE:
                result = yield run, value(frame[ins[0]])
            elif kind == PARTIAL:
                function, *more = [frame[i] for i in ins]
                result = Closure(function.code, (*function.args, *more))
            elif kind == SWITCH:
                result = frame[ins[1] if value(frame[ins[0]]) else ins[2]]
            else:
                function, *more = [frame[i] for i in ins]
                result = yield from self._run(function.code, (*function.args, *more))
            frame[out] = result
            for i in unused:
                frame[i] = None
        return frame[code.output]

    @staticmethod
    def _update(run: tuple, raw: list, xs: list):
        f, changed = run
        # MindSpore also assigns to what is no parameter, for instance to clear a gradient that nobody reads again.
        return f(*[x if type(x) is Ref else Ref(x) for x in raw[:changed]], *xs[changed:])


def _free_early(code: Code, kept: set[int]) -> None:
    """Note at each step the slots that are read for the last time, so that a value does not outlive its use."""
    seen = {code.output, *kept}
    for i in range(len(code.steps) - 1, -1, -1):
        kind, run, ins, out, _, node = code.steps[i]
        unused = tuple({*ins, out} - seen)
        seen.update(unused)
        code.steps[i] = kind, run, ins, out, unused, node


def _fit(x, kind: Type):
    """A result in the dtype that MindSpore inferred; an error if the shape differs."""
    if type(kind) is TensorType:
        if type(x) is not np.ndarray or x.dtype != kind.dtype:
            x = np.asarray(x).astype(kind.dtype)
        if x.shape != kind.shape:
            raise ValueError(f"the result has the shape {list(x.shape)}, and not {list(kind.shape)} as MindSpore inferred")
        return x
    return tuple(map(_fit, x, kind)) if type(kind) is tuple else x


def _types(xs) -> str:
    return "(" + ", ".join(f"{x.dtype.name}{list(x.shape)}" if hasattr(x, "shape") else repr(x) for x in xs) + ")"
