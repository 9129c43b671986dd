"""The sweep over settings of reading."""
import itertools

import pytest

from data import tune
from data.__main__ import main
from data.tune import Setting


def test_the_cheapest_setting_that_is_near_the_best_is_taken(manifest, config, monkeypatch):
    speeds = {("none", 2): 96.0, ("none", 8): 97.0, ("none", 32): 99.0, ("memory", 8): 100.0}
    tried = []

    def measured(batches, seconds, tokens):
        tried.append(batches)
        return speeds[batches]
    monkeypatch.setattr(tune, "_batches", lambda manifest, changed, batch_size: (changed.cache, changed.prefetch))
    monkeypatch.setattr(tune, "tokens_per_second", measured)
    monkeypatch.setattr(tune, "settings", lambda config, nbytes: [Setting(cache, 1, n) for cache, n in speeds])
    lines = []
    assert tune.tune(manifest, config, 4, 1.0, lines.append) == (Setting("none", 1, 2), 96.0)
    assert tried == 3 * list(speeds)  # in turn
    assert "data.num_workers=1 data.prefetch=2 data.cache=none" in lines[-2]
    speeds["none", 2] = 94.0  # more than 5 % below the best
    assert tune.tune(manifest, config, 4, 1.0, lines.append)[0] == Setting("none", 1, 8)


def test_the_cache_is_tried_where_it_fits(config):
    small = tune.settings(config, 1000)
    assert small[-1].cache == "memory" and {s.cache for s in tune.settings(config, 1 << 60)} == {"none"}
    assert {s.prefetch for s in small} == {2, 8, 32} and min(s.num_workers for s in small) == 1


def test_the_first_batch_does_not_count():
    clock = iter([0.0, 1.0, 2.0, 3.0, 4.0])
    batches = itertools.count()
    assert tune.tokens_per_second(batches, 3.5, 10, lambda: next(clock)) == pytest.approx(3 * 10 / 4.0)
    assert next(batches) == 4
    assert tune.tokens_per_second(iter(range(3)), 9.0, 10, itertools.count().__next__) > 0  # fewer batches than time


def test_the_command(tmp_path, text_folder, capsys):
    (tmp_path / "c.yaml").write_text(f"data: {{path: {text_folder}/train_zh.txt, prepared_dir: out, seq_length: 16, "
                                     "tokenizer: {vocab_size: 2500, character_coverage: 0.98}}\n")
    common = ["--config", str(tmp_path / "c.yaml")]
    assert main(["tune", *common]) == 2 and "holds no prepared data" in capsys.readouterr().err
    main(["prepare", *common])
    for option, message in (("--batch-size=0", "--batch-size 0: 1 to "), ("--seconds=0", "--seconds 0: more than 0")):
        assert main(["tune", *common, option]) == 2 and message in capsys.readouterr().err
    assert main(["tune", *common, "--seconds", "0.05"]) == 0
    out = capsys.readouterr().out
    assert "data.cache=memory" in out and "take         --set data.num_workers=" in out
