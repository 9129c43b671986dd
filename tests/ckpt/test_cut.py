"""The parts of a cut model. That they are MindSpore's is what each rehearsal checks."""
import numpy as np
import pytest

from ckpt.cut import Cut
from parallel.cost.sizes import Plan, Sizes
from parallel.mesh import Mesh

SIZES = Sizes(hidden=16, layers=4, heads=4, ffn=64, vocab=24, seq=8, positions=8)


def cuts(dp, tp, pp, sharding):
    """A Cut for each rank."""
    layers = (4 // pp,) * pp
    return [Cut(SIZES, Plan(Mesh(dp, tp, pp, r), 2, max(1, pp), layers, optimizer_sharding=sharding, threshold_kb=0))
            for r in range(dp * tp * pp)]


@pytest.mark.parametrize("mesh", [(1, 1, 1), (2, 1, 1), (1, 2, 1), (2, 2, 1), (2, 2, 2), (1, 4, 2), (4, 2, 2)])
@pytest.mark.parametrize("sharding", [False, True])
def test_what_ranks_write_makes_the_whole_and_nothing_twice(mesh, sharding):
    ranks = cuts(*mesh, sharding)
    assert len(ranks[0].owners) == 2 + 4 * 16 + 2
    for name in ranks[0].owners:
        for key in (name, f"moment1.{name}", f"moment2.{name}"):
            written = np.zeros(ranks[0].shape(key), int)
            for cut in ranks:
                if cut.writes(key):
                    written[cut.region(key)] += 1
            assert (written == 1).all(), key


@pytest.mark.parametrize("sharding", [False, True])
def test_shares_count_each_value_once(sharding):
    ranks = cuts(2, 2, 2, sharding)
    for name in ranks[0].owners:
        counted = np.zeros(ranks[0].shape(name))
        for cut in ranks:
            counted[cut.region(name)] += cut.share(name)
        assert (counted == 1.0).all(), name


def test_parts_worked_by_hand():
    weight = np.arange(64 * 16, dtype=np.float32).reshape(64, 16)
    ranks = cuts(2, 2, 1, False)
    for rank, half in ((0, 0), (1, 1), (2, 0), (3, 1)):  # tp is innermost
        np.testing.assert_array_equal(ranks[rank].part("blocks.0.mlp.up.weight", weight), weight[32 * half:32 * half + 32])
        down = ranks[rank].part("blocks.0.mlp.down.weight", weight.T)
        np.testing.assert_array_equal(down, weight.T[:, 32 * half:32 * half + 32])
        assert ranks[rank].part("norm.bias", weight[0]).shape == (16,)
    sharded = cuts(2, 2, 1, True)
    for rank, first in ((0, 0), (2, 16), (1, 32), (3, 48)):  # over dp within the half of its tp rank
        np.testing.assert_array_equal(sharded[rank].part("blocks.0.mlp.up.weight", weight), weight[first:first + 16])
    for rank in range(4):  # a bias that tp does not cut, over all four
        np.testing.assert_array_equal(sharded[rank].part("norm.bias", weight[0]), weight[0, 4 * rank:4 * rank + 4])


def test_what_mindspore_cut_in_another_way_is_named():
    by_rank = [[2, 2], [0, -1], [32, 16], 0, True, "", [64, 16], [32, 16], False, False, 0, 0]  # as it writes it for dp 2, tp 2
    over_dp = [[2, 2], [1, -1], *by_rank[2:]]
    cut = cuts(2, 2, 1, False)[1]
    name = "blocks.0.mlp.up.weight"
    assert cut.problems({name: by_rank, f"moment1.{name}": by_rank, "args0": over_dp}) == []
    assert cut.problems({name: over_dp}) == [f"{name}: [32:64, 0:16] here, [0:32, 0:16] in the compiled graph"]
