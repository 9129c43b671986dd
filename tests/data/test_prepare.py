import gzip
import json
import multiprocessing
import os
import subprocess
import sys

import numpy as np
import pytest
from pydantic import ValidationError

from data.config import DataConfig
from data.manifest import load_manifest
from data.prepare import load_tokenizer, prepare
from data.tokenizer import EOS_ID
from parallel.errors import UserError
from tests.data.conftest import CORPUS, cut, small_config


def rows_of(config, manifest, name):
    """All samples of a set, by the number that each carries: int32 [samples, seq_length + 1]."""
    import mindspore.dataset as ds
    reader = ds.MindDataset(manifest.sets[name].record_files(config.prepared_dir), shuffle=False, num_parallel_workers=1)
    rows = {int(row["sample_id"]): row["tokens"] for row in reader.create_dict_iterator(num_epochs=1, output_numpy=True)}
    assert sorted(rows) == list(range(manifest.sets[name].samples))
    return np.stack([rows[i] for i in sorted(rows)])


def text_of(config, manifest, name):
    rows = rows_of(config, manifest, name)
    tokens = [int(rows[0, 0]), *rows[:, 1:].ravel().tolist()]
    return load_tokenizer(config).decode(tokens)


def test_the_text_comes_back(config, manifest, text_folder):
    for name in ("valid_en", "valid_zh"):
        assert text_of(config, manifest, name) == (text_folder / f"{name}.txt").read_text()
    entry = manifest.sets["train"]
    rows = rows_of(config, manifest, "train")
    real = rows[:, 1:][rows[:, 1:] != 0]
    assert len(real) == entry.tokens
    assert entry.documents == (real == EOS_ID).sum() == 2
    sizes = [len((text_folder / f"train_{corpus}.txt").read_bytes()) for corpus in ("en", "zh")]
    first_pieces = rows[[0, np.flatnonzero((rows == EOS_ID).any(1))[0] + 1], 0]
    lost = load_tokenizer(config).byte_lengths()[first_pieces].sum()  # a corpus' first token is not predicted
    assert entry.text_bytes == sum(sizes) - lost
    counts = np.load(config.prepared_dir / "token_counts.npy")
    assert np.array_equal(counts, np.bincount(real, minlength=manifest.tokenizer.vocab_size))
    assert len(entry.record_files(config.prepared_dir)) == 3


def test_unchanged_input_is_not_prepared_again(config, manifest, capsys):
    before = {path: path.stat().st_mtime_ns for path in config.prepared_dir.rglob("*")}
    assert prepare(config) == manifest
    assert "up to date" in capsys.readouterr().out
    for path in (config.path["en"], config.path["zh"]):  # another time, the same content
        os.utime(path)
    assert prepare(config) == manifest == load_manifest(config)
    assert {path: path.stat().st_mtime_ns for path in config.prepared_dir.rglob("*")} == before


def test_same_result_for_any_number_of_workers_and_shards(config, manifest, text_folder, tmp_path, monkeypatch):
    monkeypatch.setattr("data.records.BYTES_PER_PROCESS", 1)
    other = small_config(text_folder, tmp_path / "other", num_workers=2, num_shards=5)
    again = prepare(other)
    assert again.fingerprint == manifest.fingerprint
    assert np.array_equal(rows_of(other, again, "train"), rows_of(config, manifest, "train"))


def tiny(folder, prepared=None, **changes):
    values = {"path": folder, "seq_length": 8, "num_workers": 1, "num_shards": 2, "tokenizer": {"vocab_size": 400},
              "prepared_dir": prepared or folder.parent / "out"}
    return DataConfig(**{**values, **changes})


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text(cut("train_en.txt", 20_000))
    return tmp_path / "in"


def test_change_is_noticed(folder):
    config = tiny(folder)
    first = prepare(config)
    with pytest.raises(UserError, match="prepared with data.seq_length 8 .now 16."):
        load_manifest(config.model_copy(update={"seq_length": 16}))

    text = (folder / "a.txt").read_text()
    (folder / "a.txt").write_text(text[:-2] + "X\n")  # the same size
    second = prepare(config)
    assert second.fingerprint != first.fingerprint

    (folder / "b.txt").write_text("more text\n")
    with pytest.raises(UserError, match="the text has changed"):
        load_manifest(config)
    assert len(prepare(config).inputs) == 2

    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    assert load_manifest(config).sets["train"].samples  # the prepared data is enough


def test_damage_is_noticed_and_mended(folder):
    config = tiny(folder)
    with pytest.raises(UserError, match="holds no prepared data.*python -m data prepare"):
        load_manifest(config)
    whole = prepare(config)
    victim = config.prepared_dir / whole.sets["train"].files[0].name
    for damage, message in ((lambda: victim.write_bytes(victim.read_bytes()[:-1]), "bytes, not"), (victim.unlink, "is missing")):
        damage()
        with pytest.raises(UserError, match=message):
            load_manifest(config)
        assert prepare(config).fingerprint == whole.fingerprint
        assert load_manifest(config).fingerprint == whole.fingerprint
    (config.prepared_dir / "manifest.json").write_text("{}")
    with pytest.raises(UserError, match="not a manifest of this version"):
        load_manifest(config)


def test_held_out_samples_are_the_end_of_each_corpus(folder):
    config = tiny(folder, valid_fraction=0.1)
    manifest = prepare(config)
    train, valid = rows_of(config, manifest, "train"), rows_of(config, manifest, "valid_text")
    assert len(valid) == round(0.1 * (len(train) + len(valid)))
    assert train[-1, -1] == valid[0, 0]
    tokens = [int(train[0, 0]), *train[:, 1:].ravel().tolist(), *valid[:, 1:].ravel().tolist()]
    assert load_tokenizer(config).decode(tokens) == (folder / "a.txt").read_text()


def test_one_sample_leaves_nothing_to_hold_out(folder):
    (folder / "a.txt").write_text("hello world\n" * 20)
    manifest = prepare(tiny(folder, seq_length=1000, tokenizer={"vocab_size": 280}))
    assert (manifest.sets["train"].samples, manifest.sets["valid_text"].samples) == (1, 0)


def test_validation_corpora_must_be_those_of_training(folder):
    with pytest.raises(ValidationError, match="data.valid_path=null"):
        tiny({"en": folder}, folder.parent / "out", valid_path={"english": folder})
    with pytest.raises(ValidationError):
        tiny({"../x": folder}, folder.parent / "out")


def test_validation_text_that_was_trained_on_is_warned_about(folder, capsys):
    prepare(tiny(folder, valid_path=folder / "a.txt"))
    assert "WARNING: a.txt of valid_path is training text too" in capsys.readouterr().out


def dirty_folder(folder):
    body = cut("train_en.txt", 8000)
    (folder / "a.txt").write_bytes(b"\xef\xbb\xbf" + body.encode())
    (folder / "b.txt").write_bytes(body.replace("\n", "\r\n").encode())
    (folder / "c.txt").write_bytes(b"caf\xe9 au lait\n")
    (folder / "d.txt").write_bytes("sixteen bits".encode("utf-16"))
    (folder / "e.txt").write_bytes(b"a\x00b\n")
    (folder / "f.txt").write_bytes(b"")
    (folder / "g.txt").write_bytes(b"  \n \n")
    (folder / "h.txt").write_bytes(b"no final newline")
    (folder / "i.txt").write_bytes(gzip.compress(b"packed text\n"))
    (folder / "j.jsonl").write_text(json.dumps({"text": "from json"}) + "\n")
    return body


def test_dirty_files(folder, capsys):
    """The case of the fault list: one policy, counted per file, the same for 1 and 4 workers."""
    body = dirty_folder(folder)
    with pytest.raises(UserError, match="c.txt: invalid UTF-8 .byte 0xe9. at byte 3"):
        prepare(tiny(folder))
    assert sorted(path.name for path in folder.parent.iterdir()) == ["in"]  # nothing was left behind

    config = tiny(folder, on_bad_text="skip", valid_fraction=0.001)
    manifest = prepare(config)
    changes = {entry.name: entry.changes for entry in manifest.inputs}
    assert changes == {
        "a.txt": {"byte_order_marks_removed": 1}, "b.txt": {"carriage_returns_removed": body.count("\n")},
        "c.txt": {"bad_documents_skipped": 1}, "d.txt": {"bad_documents_skipped": 1}, "e.txt": {"bad_documents_skipped": 1},
        "f.txt": {"blank_documents": 1}, "g.txt": {"blank_documents": 1}, "h.txt": {}, "i.txt": {}, "j.jsonl": {}}
    assert "c.txt: bad documents skipped: 1" in capsys.readouterr().out
    rows = np.concatenate([rows_of(config, manifest, name) for name in ("train", "valid_text")])
    tokens = [int(rows[0, 0]), *rows[:, 1:].ravel().tolist()]
    assert load_tokenizer(config).decode(tokens) == body * 2 + "no final newline" + "packed text\n" + "from json"

    replaced = tiny(folder, folder.parent / "r1", on_bad_text="replace")
    manifest = prepare(replaced)
    assert {entry.name: entry.changes for entry in manifest.inputs}["e.txt"] == {"nul_removed": 1}
    parallel = prepare(replaced.model_copy(update={"num_workers": 4, "prepared_dir": folder.parent / "r4"}))
    assert parallel.fingerprint == manifest.fingerprint
    assert parallel.inputs == manifest.inputs


def test_no_text_at_all_is_refused(folder):
    (folder / "a.txt").write_text(" \n")
    (folder / "b.txt").write_bytes(b"")
    with pytest.raises(UserError, match="all training text is empty"):
        prepare(tiny(folder))
    (folder / "a.txt").write_text("hello world\n" * 20)
    with pytest.raises(UserError, match="corpus two holds no text .1 files, 1 blank"):
        prepare(tiny({"one": folder / "a.txt", "two": folder / "b.txt"}, folder.parent / "out", tokenizer={"vocab_size": 280}))
    assert sorted(path.name for path in folder.parent.iterdir()) == ["in"]


def test_vocabulary_that_does_not_fit_leaves_nothing(folder):
    (folder / "a.txt").write_text("hello world\n" * 20)
    with pytest.raises(UserError, match="vocab_size=8000 is too large .* 286 "):
        prepare(tiny(folder, tokenizer={"vocab_size": 8000}))
    assert sorted(path.name for path in folder.parent.iterdir()) == ["in"]


def test_long_lines_in_the_shipped_file(folder):
    config = tiny(CORPUS / "long_lines_en.txt", folder.parent / "out", document="line", seq_length=64, valid_fraction=0.01,
                  tokenizer={"vocab_size": 1000})
    manifest = prepare(config)
    lines = [line for line in (CORPUS / "long_lines_en.txt").read_text().split("\n") if line.strip()]
    assert manifest.inputs[0].documents == len(lines)
    assert manifest.inputs[0].text_bytes == sum(len(line.encode()) for line in lines)


def test_folder_that_is_not_ours_is_left_alone(folder):
    out = folder.parent / "out"
    out.mkdir()
    prepare(tiny(folder))  # empty: fine
    other = folder.parent / "mine"
    other.mkdir()
    (other / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="holds other files"):
        prepare(tiny(folder, other))
    with pytest.raises(UserError, match="is a file"):
        prepare(tiny(folder, folder / "a.txt"))
    with pytest.raises(UserError, match="cannot be written"):
        prepare(tiny(folder, folder / "a.txt" / "out"))
    assert [path.name for path in other.iterdir()] == ["thesis.tex"]


def test_full_disk_is_told_before_writing(folder, monkeypatch):
    import shutil
    monkeypatch.setattr("data.prepare.shutil.disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, 1000))
    with pytest.raises(UserError, match="GB free"):
        prepare(tiny(folder))


def test_given_tokenizer_is_used_and_its_losses_are_told(folder, config, manifest, capsys):
    given = config.prepared_dir / "tokenizer.model"
    again = prepare(tiny(folder, tokenizer={"model": given}))
    assert again.tokenizer == manifest.tokenizer
    assert "WARNING" not in capsys.readouterr().out

    from tests.data.test_tokenizer import sentencepiece_model
    lossy = folder.parent / "lossy.model"
    lossy.write_bytes(sentencepiece_model())
    assert prepare(tiny(folder, folder.parent / "out2", tokenizer={"model": lossy})).tokenizer.lossy_share == 1
    assert "WARNING: 100.0% of the lines come back changed" in capsys.readouterr().out


def _prepare_in_process(config, results):
    results.put(prepare(config).fingerprint)


def test_two_processes_at_once(folder):
    config = tiny(folder)
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [context.Process(target=_prepare_in_process, args=(config, results)) for _ in range(2)]
    for process in processes:
        process.start()
    fingerprints = {results.get(timeout=60) for _ in processes}
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert fingerprints == {load_manifest(config).fingerprint}
    assert sorted(path.name for path in folder.parent.iterdir()) == ["in", "out"]


def test_killed_in_the_middle(folder):
    """A kill leaves no half-prepared folder, and the next run clears up and succeeds."""
    config = tiny(folder)
    code = ("import os, data.prepare as p; from tests.data.test_prepare import tiny; from pathlib import Path\n"
            "p.run_jobs = lambda *_: os.kill(os.getpid(), 9)\n"
            f"p.prepare(tiny(Path({str(folder)!r})))")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == -9
    assert not config.prepared_dir.exists()
    assert list(folder.parent.glob(".out.tmp-*"))
    prepare(config)
    assert sorted(path.name for path in folder.parent.iterdir()) == ["in", "out"]
