"""What the benchmark makes of its figures; it measures on a machine that does nothing else, not here."""
import importlib.util
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench" / "bench.py"


@pytest.fixture
def bench():
    spec = importlib.util.spec_from_file_location("bench", BENCH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_ratios_are_of_one_round_each_and_all_is_in_the_table(bench, monkeypatch, tmp_path):
    ours = iter([0.4, 0.5, 0.5, 0.6, 0.45, 0.5])  # compiled and pure of each round
    peer = {"eager": iter([0.44, 0.5, 0.54]), "compiled": iter([0.4, 0.4, 0.45])}
    monkeypatch.setattr(bench, "SIZES", {"4 x 256": bench.SIZES["4 x 256"]})
    monkeypatch.setattr(bench, "our_step", lambda *_: next(ours))
    monkeypatch.setattr(bench, "peer_step", lambda size, mode, count: (next(peer[mode]), 200.0))
    compiled, pure = bench.steps(tmp_path, False, 3)
    assert compiled["ratios"]["eager"] == pytest.approx([1.1, 1.0, 1.2])
    assert compiled["ratios"]["torch.compile"] == pytest.approx([1.0, 0.8, 1.0])
    assert pure["ratios"]["eager"] == pytest.approx([0.88, 0.5 / 0.6, 1.08])
    assert compiled["tokens_per_second"] == pytest.approx(8 * 256 / 0.45)
    # 6 N for 4 blocks of 12 x 256^2 and the table, 12 L T C for attention: 34.6 million a token
    assert compiled["gflops"] == pytest.approx(34.6e6 * 8 * 256 / 0.45 / 1e9, rel=1e-3)
    shares = dict.fromkeys(("eval_time_fraction", "health_time_fraction", "checkpoint_time_fraction", "data_wait_fraction"), 0.01)
    start = {"layers": 12, "wall_seconds": 30.0, "compile_seconds": 20.0, "cached_wall_seconds": 12.0, "peak_memory_bytes": 2e9}
    text = bench.table({
        "steps": [compiled, pure], "starts": [start],
        "whole": {"steps": 760, "wall_seconds": 120.0, "tokens_per_second": 8000.0, "peak_memory_bytes": 1e9, **shares},
        "machine": "a processor, 2 cores", "versions": "mindspore 2.10.0", "command": "bash run_scripts/bench.sh"})
    assert "| 4 x 256, seq 256 | compiled | 4,551 | 1.10 (1.10, 1.00, 1.20) of 4,096 | " \
           "1.00 (1.00, 0.80, 1.00) of 5,120 | 157, 79% |" in text
    assert "| 12 | 30.0 | 20.0 | 12.0 | 2.00 |" in text and "760 steps in 120 s at 8,000 tokens/s" in text
