"""The mesh and the batch's arithmetic."""
import pytest

from parallel.config import ParallelConfig
from parallel.errors import UserError
from parallel.mesh import Mesh, make_mesh, micro_batches


def test_dp_is_what_the_others_leave():
    assert make_mesh(ParallelConfig(), 4, 3) == Mesh(dp=4, rank=3)
    assert make_mesh(ParallelConfig(tp=2, pp=2), 8, 0) == Mesh(dp=2, tp=2, pp=2)


def test_ranks_are_laid_out_tp_dp_pp():
    assert [Mesh(2, 2, 2, rank).dp_rank for rank in range(8)] == [0, 0, 1, 1, 0, 0, 1, 1]


@pytest.mark.parametrize(("config", "world", "says"), [
    ({"dp": 3}, 4, "set parallel.dp to 4 or auto, or start 3 ranks"),
    ({"tp": 3}, 4, "start a multiple of 3 ranks"),
    ({"dp": 3, "tp": 2}, 8, "dp=3 x tp=2 x pp=1 = 6, but 8"),
])
def test_a_world_of_another_size_is_refused(config, world, says):
    with pytest.raises(UserError, match=says):
        make_mesh(ParallelConfig(**config), world, 0)


@pytest.mark.parametrize(("count", "micro", "expected"), [
    ("auto", "auto", 1), ("auto", 2, 4), (2, "auto", 2), (4, 2, 4)])
def test_micro_batches(count, micro, expected):
    assert micro_batches(ParallelConfig(num_micro_batches=count), 16, micro, dp=2) == expected


@pytest.mark.parametrize(("count", "micro", "dp", "says"), [
    ("auto", "auto", 3, "multiple of 3"), ("auto", 3, 2, "allowed are 1, 2, 4, 8, or auto"),
    (3, "auto", 2, "allowed are 1, 2, 4, 8"),
    (2, 2, 2, "makes 4")])
def test_batches_that_do_not_divide_are_refused(count, micro, dp, says):
    with pytest.raises(UserError, match=says):
        micro_batches(ParallelConfig(num_micro_batches=count), 16, micro, dp)
