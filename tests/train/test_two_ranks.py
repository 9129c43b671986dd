"""Two real ranks under msrun: the same update as one (N3), exact sums over ranks, an overflow that both skip."""
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from mindspore import Tensor

from model.config import LossScaleConfig
from tests.train.test_step import make_step, places, uneven

ROOT = Path(__file__).parents[2]
LAUNCH = """
import sys
from pathlib import Path
from train.launch import free_port
from train.workers import Topology, run_workers
sys.exit(run_workers(["-m", "tests.train.two_ranks", sys.argv[1]], Topology(2, free_port()), Path(sys.argv[1]) / "logs"))
"""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    done = subprocess.run([sys.executable, "-c", LAUNCH, str(folder)], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return [dict(np.load(folder / f"rank_{rank}.npz")) for rank in (0, 1)]


def test_uneven_ranks_give_the_update_of_one_card(ranks):  # N3, second: 2 ranks x batch 2, with 8 and 170 tokens
    step = make_step(4, 4, 1, eps=1.0)
    expected = [x.asnumpy().item() for x in step(Tensor(uneven()), places(4))]
    for rank in ranks:
        np.testing.assert_allclose(rank["outputs"], expected, rtol=1e-5)
        for p in step.weights:
            np.testing.assert_allclose(rank[f"weight.{p.name}"], p.asnumpy(), rtol=1e-5, atol=1e-7)


def test_uneven_ranks_in_half_precision(ranks):  # N3
    step = make_step(4, 4, 1, LossScaleConfig(initial=1024.0), level="O2", eps=1.0)
    expected = [x.asnumpy().item() for x in step(Tensor(uneven()), places(4))]
    for rank in ranks:
        np.testing.assert_allclose(rank["in_half"], expected, rtol=2e-3)


def test_both_ranks_hold_the_same_weights_to_the_bit(ranks):
    names = [n for n in ranks[0] if n.startswith("weight.")]
    assert names and all(np.array_equal(ranks[0][n], ranks[1][n]) for n in names)


def test_sums_over_ranks_are_exact(ranks):
    for rank in ranks:
        assert rank["gathered"].tolist() == [[2.0**24 + 1, pytest.approx(1 / 3, abs=1e-14), -1.0],
                                             [2.0**24 + 2, pytest.approx(1 / 3, abs=1e-14), np.inf]]
        assert rank["halves"].tolist() == [[0.5], [1.5]]


def test_the_fused_sum_is_that_of_each_tensor(ranks):
    assert all(rank["fused_agrees"] for rank in ranks)


def test_an_overflow_on_one_rank_is_skipped_by_both(ranks):
    assert all(rank["overflow"] and rank["same"] for rank in ranks)
