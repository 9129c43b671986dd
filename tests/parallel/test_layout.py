"""Parts of parameters: entries that MindSpore 2.10 made when it compiled a GPT for dp 2, tp 2 (hsdp where a group is named)."""
import numpy as np
import pytest

from parallel.layout import slice_of, whole_of

REST = [False, False, 0, 0]
COLUMN = [[2, 2], [0, -1], [64, 32], 0, True, "", [128, 32], [64, 32], *REST]                              # cut over tp
ROW = [[2, 2], [-1, 0], [32, 64], 0, True, "2-5208665662337742843", [32, 128], [32, 64], *REST]            # and over dp by hsdp
TABLE = [[2, 2], [0, -1], [32, 32], 0, True, "2-5208665662337742843", [64, 32], [32, 32], *REST]           # both on one axis
NORM = [[2, 2], [-1], [32], 0, True, "hccl_world_group", [32], [32], *REST]
POSITION = [[4], [-1, -1], [16, 32], 0, True, "hccl_world_group", [16, 32], [16, 32], *REST]
BATCH = [[2, 2], [1, -1], [64, 17], 0, True, "", [128, 17], [64, 17], *REST]                               # an input, cut over dp


def parts(layout):
    whole = np.arange(np.prod(layout[6])).reshape(layout[6])
    return whole, [slice_of(whole, layout, rank) for rank in range(4)]


def test_cut_over_tp_and_over_dp():
    whole, held = parts(COLUMN)
    for rank, part in enumerate(held):  # tp runs fastest
        assert np.array_equal(part, whole[:64] if rank % 2 == 0 else whole[64:])
    whole, held = parts(BATCH)
    for rank, part in enumerate(held):
        assert np.array_equal(part, whole[:64] if rank < 2 else whole[64:])


def test_optimizer_sharding_cuts_the_first_axis_among_the_holders():
    whole, held = parts(ROW)
    for rank, part in enumerate(held):
        assert np.array_equal(part, whole[16 * (rank // 2):][:16, 64 * (rank % 2):][:, :64])
    whole, held = parts(TABLE)  # AllGather over ranks 0 and 2 gives them the first half, in this order
    assert [part[0, 0] // 32 for part in held] == [0, 32, 16, 48] and held[0].shape == (16, 32)
    whole, held = parts(NORM)
    assert [part.tolist() for part in held] == [list(range(8 * rank, 8 * rank + 8)) for rank in range(4)]
    whole, held = parts(POSITION)
    assert [part[0, 0] // 32 for part in held] == [0, 4, 8, 12]


@pytest.mark.parametrize("layout", [COLUMN, ROW, TABLE, NORM, POSITION, BATCH])
def test_whole_from_parts(layout):
    whole, held = parts(layout)
    assert np.array_equal(whole_of(dict(enumerate(held)), layout), whole)


def test_missing_parts_are_refused():
    whole, held = parts(COLUMN)
    assert np.array_equal(whole_of({0: held[0], 3: held[3]}, COLUMN), whole)
    with pytest.raises(ValueError, match=r"ranks \[0, 2\] together do not hold the whole of a parameter of shape \[128, 32\]"):
        whole_of({0: held[0], 2: held[2]}, COLUMN)


def test_partial_optimizer_sharding_is_refused():
    with pytest.raises(ValueError, match="sharded over 2 of the 4 ranks that hold the same slice"):
        slice_of(np.zeros(32), [*NORM[:5], "2-123", *NORM[6:]], 0)
