"""The estimate against what others have measured and published: published.py says what stands for what ours does not have."""
from copy import deepcopy
from pathlib import Path

import pytest

from parallel.config import TopologyConfig
from parallel.cost.parameters import parameter_count
from tests.parallel.published import SYSTEMS, candidates, compare, predicted

TOLERANCE = 0.15
FOUND = {system["name"]: compare(system) for system in SYSTEMS}
ROWS = [row for _, rows in FOUND.values() for row in rows]
A100, H100, TITAN = SYSTEMS
SHOWN = ("1T", "177B on 2304", "177B on 4608", "462B", "8B on 128", "70B on 256")  # in the READMEs, with all misses
README = Path(__file__).parents[2] / "parallel"


@pytest.mark.parametrize("row", [r for r in ROWS if not r.miss and not r.calibrated], ids=lambda r: f"{r.system}, {r.name}")
def test_published_figures_are_reproduced(row):
    assert abs(row.error) < TOLERANCE, row


@pytest.mark.parametrize("row", [r for r in ROWS if r.miss], ids=lambda r: f"{r.system}, {r.name}")
def test_known_misses_are_too_fast(row):
    """Matrices that are narrow, or narrow after tp has cut them, reach less of the peak. One that is met is to be struck off."""
    assert TOLERANCE < row.error < 2 * TOLERANCE + 0.01, row


def test_what_was_to_be_reproduced_is_among_them():
    names = {(r.system, r.name) for r in ROWS if not r.miss}
    assert {(H100["name"], "177B on 96"), (H100["name"], "177B on 4608"), (TITAN["name"], "8B on 128")} <= names
    assert len(names) > 15 and sum(r.miss for r in ROWS) < 6 and sum(r.calibrated for r in ROWS) == len(SYSTEMS)


def test_torchtitan_scales_to_128_gpus():
    """97.3 % without torch.compile, 97.7 % with it. The model loses less than they do; no calibration helps a ratio."""
    eight, many = (r.predicted for name in ("8B on 8", "8B on 128") for r in FOUND[TITAN["name"]][1] if r.name == name)
    compiled = TITAN["rows"]["8B on 128"][-1] / TITAN["rows"]["8B on 8"][-1]
    for efficiency in (compiled, TITAN["eager"][128] / TITAN["eager"][8]):
        assert 0.97 < efficiency < 0.98 and many / eight == pytest.approx(efficiency, rel=0.03)
    assert many < eight


def test_megatron_loses_mfu_as_the_batch_is_spread():
    """47 % on 96 GPUs to 42 % on 4,608; the README states no virtual stages and no micro-batch. Any from 4 virtual stages on,
    which is what its authors gave 175B in arXiv:2104.04473 (run_figure_18.sh), is within the tolerance; 1 and 2 are not."""
    errors = {}
    for virtual in (1, 2, 4, 8, 16):
        system = deepcopy(H100)
        system["rows"] = {name: [*values[:7], 1, virtual, values[9]] for name, values in H100["rows"].items() if "177B" in name}
        on = {r.gpus: r for r in compare(system)[1]}
        assert on[96].predicted > on[2304].predicted > on[4608].predicted
        errors[virtual] = on[4608].error
    assert [v for v, error in errors.items() if abs(error) < TOLERANCE] == [4, 8, 16]


def test_models_have_their_sizes():
    for system, name, billions in ((A100, "145B", 145.6), (A100, "1T", 1008.0), (H100, "177B on 96", 177), (H100, "462B", 462)):
        assert parameter_count(candidates(system, name)[0]) == pytest.approx(billions * 1e9, rel=0.01)
    # Llama's head has a table of its own: 8.03 and 70.6 billion (arXiv:2407.21783).
    for name, billions in (("8B on 8", 8.03), ("70B on 256", 70.6)):
        sizes = candidates(TITAN, name)[0]
        tables = parameter_count(sizes) - sizes.positions * sizes.hidden + sizes.vocab * sizes.hidden
        assert tables == pytest.approx(billions * 1e9, rel=0.01)


def test_the_rate_is_what_was_solved_for():
    for system in SYSTEMS:
        share, rows = FOUND[system["name"]]
        name = system["calibrated"]
        sizes, plans = candidates(system, name)
        half = predicted(system, sizes, plans, share / 2)
        assert half < next(r.predicted for r in rows if r.name == name) == pytest.approx(
            next(r.published for r in rows if r.name == name), rel=1e-4)


def test_the_default_rate_lies_between_those_solved_for():
    shares = [share for share, _ in FOUND.values()]
    assert min(shares) < TopologyConfig().compute_efficiency < max(shares)


@pytest.mark.parametrize("name", ["README.md", "README_zh.md"])
def test_the_readmes_show_these_figures(name):
    text = (README / name).read_text(encoding="utf-8")
    for r in ROWS:
        assert str(r) in text or not (r.miss or r.calibrated or r.name in SHOWN), r
    for share, rows in FOUND.values():
        assert f"| {rows[0].system} | {share:.2f} |" in text
