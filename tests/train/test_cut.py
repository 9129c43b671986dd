"""Whole tensors and the parts of a cut model. That the parts are MindSpore's is what each rehearsal checks."""
import numpy as np
import pytest

from parallel.cost.sizes import Plan, Sizes
from parallel.mesh import Mesh
from train.cut import Cut

SIZES = Sizes(hidden=16, layers=4, heads=4, ffn=64, vocab=24, seq=8, positions=8)


def cuts(dp, tp, pp, sharding):
    """A Cut for each rank."""
    layers = (4 // pp,) * pp
    return [Cut(SIZES, Plan(Mesh(dp, tp, pp, r), 2, max(1, pp), layers, optimizer_sharding=sharding, threshold_kb=0))
            for r in range(dp * tp * pp)]


@pytest.mark.parametrize("mesh", [(1, 1, 1), (2, 1, 1), (1, 2, 1), (2, 2, 1), (2, 2, 2), (1, 4, 2), (4, 2, 2)])
@pytest.mark.parametrize("sharding", [False, True])
def test_parts_make_the_whole_again(mesh, sharding):
    ranks, rng = cuts(*mesh, sharding), np.random.RandomState(0)
    assert len(ranks[0].owners) == 2 + 4 * 16 + 2
    for name in ranks[0].owners:
        for key in (name, f"moment1.{name}", f"moment2.{name}"):
            whole = rng.standard_normal(ranks[0].shape(key)).astype(np.float32)
            parts = np.stack([cut.part(key, whole) for cut in ranks])
            np.testing.assert_array_equal(ranks[0].whole(key, parts), whole)


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


def test_gathering_needs_only_what_the_stage_holds():
    """On one rank: what is held is what is found."""
    cut = cuts(1, 1, 1, False)[0]
    held = {key: np.full(cut.shape(key), i, np.float32) for i, key in enumerate(
        m + name for name in cut.owners for m in ("", "moment1.", "moment2."))}
    found = cut.gather(held)
    assert found.keys() == held.keys() and all(np.array_equal(found[key], held[key]) for key in held)
