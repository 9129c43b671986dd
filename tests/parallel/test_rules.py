"""What must divide before a model is cut, and the mesh's ranks and coordinates."""
from dataclasses import replace
from itertools import product

import pytest

from parallel.cost.communication import members
from parallel.cost.sizes import Plan, Sizes
from parallel.errors import UserError
from parallel.mesh import Mesh
from parallel.rules import check

SIZES = Sizes(hidden=96, layers=6, heads=12, ffn=384, vocab=64, seq=30, positions=32)
PLAN = Plan(Mesh(1), micro_batch_size=1, num_micro_batches=4, stage_layers=(6,))


def test_a_plan_that_divides_is_allowed():
    for tp, pp in product((1, 2, 3, 4, 6, 12), (1, 2, 3)):
        check(SIZES, replace(PLAN, mesh=Mesh(2, tp, pp), stage_layers=(6 // pp,) * pp))
    check(SIZES, replace(PLAN, mesh=Mesh(1, 1, 2), virtual_stages=3, stage_layers=(1,) * 6))
    half = replace(PLAN, activation_bytes=2, optimizer_sharding=True)
    check(SIZES, half)
    check(SIZES, replace(half, mesh=Mesh(2), num_micro_batches=1))
    check(SIZES, replace(half, mesh=Mesh(2, 1, 2), stage_layers=(3, 3)))
    check(SIZES, replace(PLAN, mesh=Mesh(1, 6, sequence_parallel=True)))
    check(SIZES, replace(PLAN, mesh=Mesh(1, 4, sequence_parallel=True), micro_batch_size=2))


@pytest.mark.parametrize(("sizes", "plan", "says"), [
    ({}, {"mesh": Mesh(1, 8)}, "parallel.tp=8 does not divide model.num_heads=12: allowed are 1, 2, 3, 4, 6, 12$"),
    ({"kv_heads": 3}, {"mesh": Mesh(1, 2)}, "parallel.tp=2 does not divide model.num_kv_heads=3: allowed are 1, 3$"),
    ({"ffn": 386}, {"mesh": Mesh(1, 4)}, "parallel.tp=4 does not divide model.ffn_hidden_size=386: allowed are 1, 2$"),
    ({}, {"mesh": Mesh(1, 1, 4), "virtual_stages": 2}, "parallel.pp=4 x virtual_stages=2 = 8 stages need a layer each.*=6"),
    ({}, {"mesh": Mesh(1, 1, 7), "num_micro_batches": 8}, "parallel.pp=7 .*model.num_layers=6: lower pp"),
    ({}, {"virtual_stages": 2}, "parallel.virtual_stages=2 interleaves pipeline stages, but parallel.pp=1: set it to 1"),
    ({}, {"mesh": Mesh(2, 1, 3), "num_micro_batches": 2}, r"num_micro_batches=2 is less than parallel.pp=3.*at least 3$"),
    ({}, {"mesh": Mesh(1, 1, 3), "virtual_stages": 2}, "num_micro_batches=4 must be a multiple of parallel.pp=3 where virtual"),
    ({}, {"mesh": Mesh(2), "optimizer_sharding": True, "activation_bytes": 2}, "half precision with 4 micro-batches and no"),
    ({}, {"mesh": Mesh(1, 4, sequence_parallel=True)}, r"tp=4 does not divide the 30 tokens .*\(1 x data.seq_length=30\)"),
])
def test_what_does_not_fit_is_refused_in_one_line(sizes, plan, says):
    with pytest.raises(UserError, match=says) as refused:
        check(replace(SIZES, **sizes), replace(PLAN, **plan))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("dp", "tp", "pp"), [(1, 1, 1), (4, 1, 1), (1, 4, 1), (1, 1, 4), (2, 2, 2), (3, 2, 5), (16, 8, 8)])
def test_ranks_and_coordinates_are_one_to_one(dp, tp, pp):
    ranks = [Mesh(dp, tp, pp, rank) for rank in range(dp * tp * pp)]
    assert all(m.world_size == len(ranks) for m in ranks)
    assert [(m.stage, m.dp_rank, m.tp_rank) for m in ranks] == list(product(range(pp), range(dp), range(tp)))  # tp innermost
    assert all((m.stage * dp + m.dp_rank) * tp + m.tp_rank == m.rank for m in ranks)


@pytest.mark.parametrize(("dp", "tp", "pp"), [(2, 2, 2), (3, 2, 5), (4, 1, 2), (1, 4, 2)])
def test_groups_are_the_ranks_that_share_the_other_coordinates(dp, tp, pp):
    mesh = [Mesh(dp, tp, pp, rank) for rank in range(dp * tp * pp)]

    def alike(one: Mesh, *names: str) -> tuple[int, ...]:
        return tuple(m.rank for m in mesh if all(getattr(m, n) == getattr(one, n) for n in names))

    for m in mesh:
        assert members(m, "tp") == alike(m, "stage", "dp_rank")
        assert members(m, "dp") == alike(m, "stage", "tp_rank")
        assert members(m, "dp x tp") == alike(m, "stage")
        assert members(m, "all") == alike(m)


def test_sequence_parallelism_cuts_rows_over_tp_too():
    assert [Mesh(3, 4).rows, Mesh(3, 4, sequence_parallel=True).rows] == [3, 12]
