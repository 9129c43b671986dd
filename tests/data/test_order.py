import numpy as np
import pytest

from data.order import SampleOrder

SIZES = [1, 2, 3, 4, 5, 7, 8, 9, 10, 17, 31, 32, 33, 63, 64, 65, 255, 256, 257, 1000, 1023, 1024, 1025, 65_535, 65_536, 65_537]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("seed", [0, 1, -1, 2**64 + 5])
def test_each_epoch_is_a_permutation(n, seed):
    order = SampleOrder(n, seed)
    for epoch in (0, 1, 10**9):
        assert np.array_equal(np.sort(order.indices(epoch * n, n)), np.arange(n))


def test_any_stretch_equals_the_whole():
    order = SampleOrder(10, 3)
    whole = order.indices(0, 100)
    assert whole.dtype == np.int64
    for start, count in ((0, 7), (7, 20), (19, 1), (35, 65), (50, 0)):
        assert np.array_equal(order.indices(start, count), whole[start:start + count])
    positions = np.array([[3, 99], [42, 0]])
    assert np.array_equal(order.at(positions), whole[positions])


def test_epochs_and_seeds_differ():
    n = 1000
    orders = [SampleOrder(n, seed).indices(epoch * n, n).tobytes() for seed in range(5) for epoch in range(5)]
    assert len(set(orders)) == 25


def test_seed_and_epoch_do_not_stand_for_each_other():
    """Epoch 2 of seed 1 is not epoch 1 of seed 2, nor is epoch 0 of seed 0 a fixed order."""
    n = 1000
    assert not np.array_equal(SampleOrder(n, 1).indices(2 * n, n), SampleOrder(n, 2).indices(n, n))
    assert not np.array_equal(SampleOrder(n, 1).indices(n, n), SampleOrder(n, 2).indices(2 * n, n))


def test_the_order_never_changes_unnoticed():
    """Golden values: a change here breaks the resuming of every run that exists."""
    assert SampleOrder(1000, 1234).indices(0, 8).tolist() == GOLDEN_FIRST
    assert SampleOrder(1000, 1234).indices(1000 * 7 + 996, 8).tolist() == GOLDEN_BORDER
    assert SampleOrder(10**9, 42).indices(10**12 + 5, 4).tolist() == GOLDEN_LARGE


def test_looks_shuffled():
    n, epochs = 1000, 1000
    rows = SampleOrder(n, 7).indices(0, n * epochs).reshape(epochs, n).astype(float)
    for a, b in ((rows[:, :-1], rows[:, 1:]), (rows[:-1], rows[1:])):  # neighbours in an epoch, the same place in the next one
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 5 / np.sqrt(n * epochs)
    for column in (0, 1, n // 2, n - 1):
        counts = np.bincount((rows[:, column] // 50).astype(int), minlength=20)
        assert ((counts - 50) ** 2 / 50).sum() < 43.8  # chi-square, 19 degrees of freedom, p = 0.001


def test_small_sets_see_all_their_orders_alike():
    orders = SampleOrder(4, 11).indices(0, 4 * 2400).reshape(-1, 4)
    _, counts = np.unique(orders, axis=0, return_counts=True)
    assert len(counts) == 24
    assert ((counts - 100) ** 2 / 100).sum() < 49.7  # 23 degrees of freedom, p = 0.001


def test_a_new_process_gives_the_same_order():
    import subprocess
    import sys
    code = "from data.order import SampleOrder; print(SampleOrder(12345, 5).indices(3 * 12345 - 4, 9).tolist())"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == str(SampleOrder(12345, 5).indices(3 * 12345 - 4, 9).tolist())


def test_no_samples_have_no_order():
    with pytest.raises(ValueError, match="at least 1"):
        SampleOrder(0, 1)


GOLDEN_FIRST = [858, 605, 815, 10, 362, 253, 342, 346]
GOLDEN_BORDER = [5, 98, 898, 699, 24, 388, 969, 367]
GOLDEN_LARGE = [8954560, 832043896, 380061203, 686460946]
