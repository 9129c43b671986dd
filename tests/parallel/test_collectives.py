"""What ranks gather: two ranks are put together here; with real ones: tests/train/test_two_ranks.py."""
import numpy as np
import pytest
from mindspore import Tensor

from parallel import collectives


@pytest.fixture
def lengths(monkeypatch):
    """Of the messages; the second rank has the negative of each value."""
    seen = []

    def network(x):
        seen.append(len(x))
        return Tensor(np.concatenate((x.asnumpy(), -x.asnumpy())))

    monkeypatch.setattr(collectives, "is_distributed", lambda: True)
    monkeypatch.setattr(collectives, "_GATHER", [network])
    return seen


def test_values_of_any_number_travel_in_messages_of_few_lengths(lengths):
    for count in (0, 1, 2, 5, 31, 32, 33, 100):
        values = np.arange(count) + 2.0**24 + 1 / 3
        found = collectives.gather(values)
        assert found.shape == (2, count) and found.dtype == np.float64
        np.testing.assert_allclose(found, [values, -values], rtol=1e-13)
    assert set(lengths) == {64, 128, 256}
    assert collectives.gather([np.inf, 1.0]).tolist() == [[np.inf, 1.0], [-np.inf, -1.0]]


def test_arrays_keep_their_shape(lengths):
    for shape in ((8, 3), (8, 2), (0, 3), (65,), (2, 3, 4)):
        x = np.random.RandomState(0).rand(*shape).astype(np.float32)
        found = collectives.gather_arrays(x)
        assert found.shape == (2, *shape) and found.dtype == np.float32
        np.testing.assert_array_equal(found, [x, -x])
    assert lengths == [64, 64, 64, 128, 64]
