"""Checkpoints on disk: order and rotation (K1), damage, atomic writing."""
import os
import shutil

import numpy as np
import pytest

from ckpt import store, writing
from parallel.errors import UserError


def make(step):
    tensors = {"model": {"w": np.full((2, 3), step, np.float32)}, "optimizer": {"moment1.w": np.zeros(3, np.float32)}}
    return store.Checkpoint(tensors, {"step": step, "consumed_samples": 4 * step}, "run: {}\n")


def names(root):
    return sorted(p.name for p in root.iterdir())


def test_round_trip(tmp_path):
    folder = writing.save(tmp_path, make(7), keep_last=2)
    found = store.load(folder)
    assert found.step == 7 and found.state["consumed_samples"] == 28 and found.config == "run: {}\n"
    assert np.array_equal(found.tensors["model"]["w"], np.full((2, 3), 7, np.float32))
    assert (tmp_path / "latest").read_text() == "step_00000007\n"


def test_rotation_goes_by_the_step(tmp_path):  # K1: 99999999 has a digit less than 100000000
    for step in (900, 99_999_999, 100_000_000):
        writing.save(tmp_path, make(step), keep_last=2)
    os.utime(store.folder_of(tmp_path, 99_999_999))
    assert names(tmp_path) == ["latest", "step_100000000", "step_99999999"]
    assert store.find(tmp_path)[0].step == 100_000_000
    writing.save(tmp_path, make(100_000_001), keep_last=2)
    assert [store.load(f).step for f in store.steps(tmp_path)] == [100_000_000, 100_000_001]


def test_rotation_keeps_what_it_has_just_written_and_what_is_not_its_own(tmp_path):
    for step in (100, 200, 300, 400):
        writing.save(tmp_path, make(step), keep_last=9)
    shutil.copytree(tmp_path / "step_00000100", tmp_path / "my_best")
    writing.save(tmp_path, make(250), keep_last=1)
    assert names(tmp_path) == ["latest", "my_best", "step_00000250", "step_00000300", "step_00000400"]


def test_folder_names_and_times_do_not_matter(tmp_path):
    for step in (9, 10):
        writing.save(tmp_path, make(step), keep_last=5)
    (tmp_path / "step_00000009").rename(tmp_path / "zzz")
    os.utime(tmp_path / "zzz")
    assert store.find(tmp_path)[0].step == 10


def test_what_is_no_checkpoint_is_left_alone(tmp_path):
    for name in ("notes", "step_00000001"):
        (tmp_path / name).mkdir()
    (tmp_path / ".tmp-step_00000002").mkdir()  # but this is ours, of a killed process
    for step in (3, 4):
        writing.save(tmp_path, make(step), keep_last=1)
    assert names(tmp_path) == ["latest", "notes", "step_00000001", "step_00000004"]


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors", "state.json", "config.yaml", "manifest.json"])
@pytest.mark.parametrize("how", ["flip", "cut", "remove"])
def test_damage_is_found_and_passed_over(tmp_path, file, how):
    writing.save(tmp_path, make(1), keep_last=5)
    path = writing.save(tmp_path, make(2), keep_last=5) / file
    content = bytearray(path.read_bytes())
    if how == "flip":
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    elif how == "cut":
        path.write_bytes(content[:-1])
    else:
        path.unlink()
    with pytest.raises(store.BrokenCheckpoint):
        store.load(path.parent)
    assert store.find(tmp_path)[0].step == 1
    with pytest.raises(UserError, match="cannot be used|neither a checkpoint"):
        store.load_given(path.parent)


def test_a_failed_save_leaves_the_last_one_and_no_final_name(tmp_path, monkeypatch):
    writing.save(tmp_path, make(1), keep_last=1)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writing, "fsync_folder", full)
    with pytest.raises(OSError, match="No space"):
        writing.save(tmp_path, make(2), keep_last=1)
    assert not store.folder_of(tmp_path, 2).exists()
    assert (tmp_path / "latest").read_text() == "step_00000001\n" and store.find(tmp_path)[0].step == 1
    monkeypatch.undo()
    writing.save(tmp_path, make(2), keep_last=1)
    assert names(tmp_path) == ["latest", "step_00000002"]


def test_saving_a_step_again_replaces_it(tmp_path):
    writing.save(tmp_path, make(5), keep_last=2)
    again = store.Checkpoint({"model": {"w": np.zeros(1, np.float32)}}, {"step": 5}, "")
    writing.save(tmp_path, again, keep_last=2)
    assert store.load(store.folder_of(tmp_path, 5)).tensors["model"]["w"].shape == (1,)


def test_a_folder_of_checkpoints_means_its_newest(tmp_path):
    for step in (1, 2):
        writing.save(tmp_path, make(step), keep_last=5)
    assert store.load_given(tmp_path).step == 2
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="neither a checkpoint"):
        store.load_given(tmp_path / "empty")


def test_differences_name_all_three_kinds():
    assert store.differences({"a": (2,), "b": (3,)}, {"b": (4,), "c": (1,)}) == [
        "missing: a [2]", "unexpected: c [1]", "shape of b: [4] in the file, [3] in the model"]
