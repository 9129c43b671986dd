"""Communication, deadlocks and mismatches: graphs built by hand, since their faults are what no compiler makes on purpose."""
import tracemalloc

import numpy as np
import pytest

from parallel.lockstep.errors import Deadlock, KernelFailure, LockstepError, Mismatch, UnknownOperator
from parallel.lockstep.mindir import MONAD, Graph, Node, Program, TensorType
from parallel.lockstep.rank import Rank
from parallel.lockstep.schedule import run

F32 = np.dtype("float32")


def of(*shape: int, dtype=F32) -> TensorType:
    return TensorType(shape, np.dtype(dtype))


FOUR = of(4)


def node(op: str, inputs: str, output: str, kind=None, /, cell: str = "net", **attributes) -> Node:
    return Node(op, tuple(inputs.split()), output, attributes, {}, f"Default/{cell}/{op}-op0", kind)


def collective(op: str, inputs: str, output: str, kind, members, group: str = "g", /, **attributes) -> Node:
    return node(op, inputs, output, kind, cell=f"{op.lower()}-cell", group=group, group_rank_ids=tuple(members), **attributes)


def send(x: str, members, to: int, tag: int) -> Node:
    """`to`: place in the group."""
    return collective("Send", x, f"%sent{tag}", None, members, f"{members}Send", dest_rank=to, sr_tag=tag)


def receive(output: str, kind, members, source: int, tag: int) -> Node:
    return collective("Receive", "%x", output, kind, members, f"{members}Receive", src_rank=source, sr_tag=tag)


def program(nodes, output: str, kind=FOUR, functions=(), constants=None, parameters=None) -> Program:
    main = Graph("main", {"%x": kind}, output, nodes, constants or {}, parameters or {})
    return Program(main, {f.name: f for f in functions})


def execute(programs: list[Program], inputs: list[np.ndarray], numbers=None):
    numbers = numbers or range(len(programs))
    ranks = {r: Rank(p, {}, r) for r, p in zip(numbers, programs, strict=True)}
    return run(ranks, {r: (x,) for r, x in zip(numbers, inputs, strict=True)})


def same(nodes, output: str, members, kind=FOUR) -> tuple[list[np.ndarray], object]:
    """All members execute the same; rank r's input is [10 r, 10 r + 1, ...]."""
    size = int(np.prod(kind.shape))
    xs = [(10.0 * r + np.arange(size)).astype(kind.dtype).reshape(kind.shape) for r in members]
    outputs, traffic = execute([program(nodes, output, kind)] * len(xs), xs, members)
    return [outputs[r] for r in members], traffic


@pytest.mark.parametrize("op, expected", [("sum", [30, 33, 36, 39]), ("max", [20, 21, 22, 23]), ("min", [0, 1, 2, 3]),
                                          ("prod", [0, 11 * 21, 2 * 12 * 22, 3 * 13 * 23])])
def test_all_reduce(op, expected):
    outputs, traffic = same([collective("AllReduce", "%x", "%y", of(4), (0, 1, 2), op=op)], "%y", (0, 1, 2))
    for y in outputs:
        assert y.dtype == F32 and y.tolist() == expected
    assert traffic.calls[1] == {("AllReduce", 3): 1} and traffic.bytes[1] == {("AllReduce", 3): 16}


def test_all_gather_puts_parts_in_the_order_of_the_group():
    outputs, _ = same([collective("AllGather", "%x", "%y", of(4), (3, 5))], "%y", (3, 5), of(2))
    assert [y.tolist() for y in outputs] == [[30, 31, 50, 51]] * 2


def test_reduce_scatter():
    outputs, traffic = same([collective("ReduceScatter", "%x", "%y", of(2), (0, 1), op="sum")], "%y", (0, 1))
    assert [y.tolist() for y in outputs] == [[10, 12], [14, 16]]
    assert traffic.bytes[0] == {("ReduceScatter", 2): 16}


def test_all_to_all_exchanges_blocks():
    nodes = [collective("AlltoAll", "%x", "%y", of(4, 1), (0, 1), split_dim=1, concat_dim=0)]
    outputs, _ = same(nodes, "%y", (0, 1), of(2, 2))
    assert [y.ravel().tolist() for y in outputs] == [[0, 2, 10, 12], [1, 3, 11, 13]]


def test_broadcast_gives_the_root_s_tuple():
    nodes = [node("MakeTuple", "%x", "%t"), collective("Broadcast", "%t", "%y", (of(4),), (0, 1), root_rank=1)]
    outputs, traffic = same(nodes, "%y", (0, 1))
    assert [y[0].tolist() for y in outputs] == [[10, 11, 12, 13]] * 2
    assert traffic.bytes[0] == {("Broadcast", 2): 16}


def test_sum_is_taken_in_the_order_of_ranks():
    """float32: (1e8 + 1) - 1e8 is 0 and (1e8 - 1e8) + 1 is 1, whoever comes first."""
    for order, total in (((0, 1, 2), 0.0), ((0, 2, 1), 1.0)):
        reduce = [collective("AllReduce", "%x", "%y", of(1), order, op="sum")]
        xs = [np.array([v], np.float32) for v in (1e8, 1, -1e8)]
        outputs, _ = execute([program(reduce, "%y", of(1))] * 3, xs)
        assert [float(y[0]) for y in outputs.values()] == [total] * 3


def test_group_of_one_is_no_traffic():
    outputs, traffic = same([collective("AllReduce", "%x", "%y", of(4), (0,), op="sum")], "%y", (0,))
    assert outputs[0].tolist() == [0, 1, 2, 3] and not traffic.calls


def test_messages_are_told_apart_by_tag_and_kept_in_order():
    pair = (0, 1)
    sender = program([node("Neg", "%x", "%n", of(4)), send("%x", pair, 1, 7), send("%n", pair, 1, 8), send("%n", pair, 1, 7)],
                     "%x")
    receiver = program([receive("%a", of(4), pair, 0, 8), receive("%b", of(4), pair, 0, 7), receive("%c", of(4), pair, 0, 7),
                        node("MakeTuple", "%a %b %c", "%y")], "%y")
    xs = [np.arange(4, dtype=np.float32)] * 2
    outputs, traffic = execute([sender, receiver], xs)
    assert [y.tolist() for y in outputs[1]] == [[-0.0, -1, -2, -3], [0, 1, 2, 3], [-0.0, -1, -2, -3]]
    assert traffic.bytes[0] == {("Send", 2): 48} and traffic.calls[1] == {("Receive", 2): 3}


def test_a_rank_in_receive_has_not_come_to_a_collective_of_the_same_group():
    world = (0, 1)
    reduce = collective("AllReduce", "%x", "%y", of(4), world, "world", op="sum")
    first = program([collective("Receive", "%x", "%r", of(4), world, "world", src_rank=1, sr_tag=0), reduce,
                     node("Add", "%y %r", "%z", of(4))], "%z")
    second = program([collective("Send", "%x", "%s", of(4), world, "world", dest_rank=0, sr_tag=0), reduce], "%y")
    outputs, _ = execute([first, second], [np.ones(4, np.float32)] * 2)
    assert outputs[0].tolist() == [3] * 4


def branch(name: str, nodes, output: str = "%y") -> Graph:
    return Graph(name, {"%p": of(4), "%u": MONAD}, output, nodes, {})


def test_collectives_in_branches_and_closures():
    """Switch on a bool, two Partials, a call; the taken branch communicates, and a closure is called twice."""
    yes = branch("yes", [collective("AllReduce", "%p", "%y", of(4), (0, 1), op="sum")])
    no = branch("no", [node("Neg", "%p", "%y", of(4))])
    nodes = [node("ReduceSum", "%x", "%s", of()), node("GreaterEqual", "%s zero", "%c", of(dtype=bool)),
             node("Partial", "yes %x u", "%t"), node("Partial", "no %x", "%f"), node("Switch", "%c %t %f", "%g"),
             node("call", "%g", "%a", of(4)), node("Partial", "no", "%n"), node("call", "%n %a u", "%b", of(4)),
             node("call", "%n %b u", "%d", of(4))]
    p = program(nodes, "%d", functions=(yes, no), constants={"zero": np.float32(0).reshape(()), "u": MONAD})
    up, down = np.arange(4, dtype=np.float32), -np.ones(4, np.float32)
    outputs, traffic = execute([p, p], [up, up])
    assert outputs[0].tolist() == outputs[1].tolist() == [0, 2, 4, 6] and traffic.calls[0] == {("AllReduce", 2): 1}
    with pytest.raises(Deadlock, match=r"rank 0 waits at AllReduce sum in Default/allreduce-cell/AllReduce-op0 in group g of "
                                       r"ranks \[0, 1\]; not come: rank 1 \(has ended\)"):
        execute([p, p], [up, down])


def test_deadlock_names_every_waiting_rank_and_who_is_missing():
    def crossed(first: str, second: str):
        return program([collective("AllReduce", "%x", "%a", of(4), (0, 1), first, op="sum"),
                        collective("AllGather", "%a", "%y", of(8), (0, 1), second)], "%y")

    third = program([receive("%y", of(4), (0, 2), 0, 9)], "%y")
    programs = [crossed("A", "B"), crossed("B", "A"), third]
    with pytest.raises(Deadlock) as found:
        execute(programs, [np.ones(4, np.float32)] * 3)
    lines = str(found.value).splitlines()
    assert lines[0] == "deadlock: 3 of 3 ranks wait and none can go on"
    assert lines[1:] == [
        "  rank 0 waits at AllReduce sum in Default/allreduce-cell/AllReduce-op0 in group A of ranks [0, 1]; not come: "
        "rank 1 (at AllReduce sum in Default/allreduce-cell/AllReduce-op0)",
        "  rank 1 waits at AllReduce sum in Default/allreduce-cell/AllReduce-op0 in group B of ranks [0, 1]; not come: "
        "rank 0 (at AllReduce sum in Default/allreduce-cell/AllReduce-op0)",
        "  rank 2 waits at Receive in Default/receive-cell/Receive-op0 for tag 9 from rank 0; not come: "
        "rank 0 (at AllReduce sum in Default/allreduce-cell/AllReduce-op0)"]


def test_a_member_that_is_not_there():
    with pytest.raises(Deadlock, match=r"not come: rank 4 \(not in this job\)"):
        same([collective("AllReduce", "%x", "%y", of(4), (0, 4), op="sum")], "%y", (0,))


def test_a_message_that_nobody_receives():
    sender = program([send("%x", (0, 1), 1, 3)], "%x")
    with pytest.raises(Deadlock, match=r"nobody received: 1 from rank 0 to rank 1 \(tag 3\)"):
        execute([sender, program([], "%x")], [np.ones(4, np.float32)] * 2)


@pytest.mark.parametrize("other, what", [
    (collective("AllReduce", "%x", "%y", of(4), (0, 1), op="max"), "max"),
    (collective("AllGather", "%x", "%y", of(8), (0, 1)), "AllGather"),
    (collective("AllReduce", "%t", "%y", of(5), (0, 1), op="sum"), r"float32\[5\]"),
    (collective("AllReduce", "%h", "%y", of(4, dtype="float16"), (0, 1), op="sum"), r"float16\[4\]"),
    (collective("AllReduce", "%x", "%y", of(4), (0, 1, 2), op="sum"), r"\[0, 1, 2\]"),
])
def test_mismatch_names_both_ranks(other, what):
    before = [node("Cast", "%x", "%h", of(4, dtype="float16")), node("Concat", "%pair", "%t", of(5))]
    before = [node("StridedSlice", "%x zero one one", "%first", of(1)), node("MakeTuple", "%x %first", "%pair"), *before]
    constants = {"zero": (0,), "one": (1,)}
    mine = program(before + [collective("AllReduce", "%x", "%y", of(4), (0, 1), op="sum")], "%y", constants=constants)
    theirs = program([*before, other], "%y", constants=constants)
    with pytest.raises(Mismatch, match=f"group g: rank 1 came with .*{what}.* but rank 0 with AllReduce"):
        execute([mine, theirs], [np.ones(4, np.float32)] * 2)


def test_received_shape_must_be_the_expected_one():
    sender = program([send("%x", (0, 1), 1, 3)], "%x")
    receiver = program([receive("%y", of(8), (0, 1), 0, 3)], "%y")
    with pytest.raises(Mismatch, match=r"rank 1 expects float32\[8\] in Receive .*\(tag 3\), but rank 0 sent float32\[4\] in"):
        execute([sender, receiver], [np.ones(4, np.float32)] * 2)


def test_unknown_operator_names_operator_cell_and_rank():
    with pytest.raises(UnknownOperator, match="rank 6: no kernel for the operator PromptFlashAttention in Default/attention/"):
        Rank(program([node("PromptFlashAttention", "%x", "%y", of(4), cell="attention")], "%y"), {}, 6)


def test_failing_operator_names_cell_rank_and_operands():
    bad = program([node("MatMul", "%x %x", "%y", of(4), cell="head")], "%y", of(4, 2))
    with pytest.raises(KernelFailure, match=r"rank 2: MatMul in Default/head/MatMul-op0 of \(float32\[4, 2\], float32\[4, 2\]\)"):
        execute([bad], [np.ones((4, 2), np.float32)], [2])
    wrong = program([node("Neg", "%x", "%y", of(3))], "%y")
    with pytest.raises(KernelFailure, match=r"the result has the shape \[4\], and not \[3\] as MindSpore inferred"):
        execute([wrong], [np.ones(4, np.float32)])


def test_failing_collectives_name_operation_and_ranks():
    with pytest.raises(KernelFailure, match=r"ReduceScatter sum in Default/reducescatter-cell/.* of ranks \[0, 1\]: "):
        same([collective("ReduceScatter", "%x", "%y", of(1), (0, 1), op="sum")], "%y", (0, 1), of(3))
    with pytest.raises(KernelFailure, match=r"rank 0: the result of AllGather in .* is float32\[8\], and not float32\[4\] as"):
        same([collective("AllGather", "%x", "%y", of(4), (0, 1))], "%y", (0, 1))
    with pytest.raises(LockstepError, match="rank 0: AllReduce in .* has no attribute group_rank_ids"):
        Rank(program([node("AllReduce", "%x", "%y", of(4), group="g", op="sum")], "%y"), {}, 0)


def test_inputs_and_parameters_must_fit():
    p = program([], "%weight", parameters={"weight": of(2, 3)})
    with pytest.raises(ValueError, match=r"rank 0: parameter weight, float32\[2, 3\], was not given"):
        Rank(p, {}, 0)
    with pytest.raises(ValueError, match=r"parameter weight is float32\[2, 3\] in the graph, but was given float32\[3, 2\]"):
        Rank(p, {"weight": np.ones((3, 2), np.float32)}, 0)
    rank = Rank(p, {"weight": np.ones((2, 3), np.float32)}, 0)
    with pytest.raises(ValueError, match=r"rank 0: the graph's inputs are \(float32\[4\]\), but was given \(int64\[4\]\)"):
        run({0: rank}, {0: (np.arange(4),)})


def test_values_are_freed_after_their_last_use():
    """A chain of 40 operators on 4 MB each: never more than a few are alive."""
    kind = of(1024, 1024)
    names = ["%x", *(f"%v{i}" for i in range(40))]
    chain = [node("Neg", a, b, kind) for a, b in zip(names, names[1:], strict=False)]
    rank = Rank(program(chain, names[-1], kind), {}, 0)
    x = np.ones(kind.shape, np.float32)
    tracemalloc.start()
    run({0: rank}, {0: (x,)})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * kind.nbytes


def test_intercept_changes_the_chosen_results():
    p = program([node("Neg", "%x", "%a", of(4), cell="first"), node("Neg", "%a", "%y", of(4), cell="second")], "%y")
    rank = Rank(p, {}, 0)
    assert rank.intercept(lambda n: n.op == "Neg", lambda x: x * 10, limit=1) == 1
    assert rank.intercept(lambda n: n.op == "MatMul", lambda x: x) == 0
    outputs, _ = run({0: rank}, {0: (np.arange(4, dtype=np.float32),)})
    assert outputs[0].tolist() == [0, 10, 20, 30]
