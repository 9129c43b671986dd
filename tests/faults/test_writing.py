"""A fault at every call that writes a checkpoint: `latest` is never wrong, and the good one before it never lost."""
import errno
import json
import os
import pathlib
import shutil

import numpy as np
import pytest

from ckpt import store, tensors, writing
from ckpt.saver import Saver
from ckpt.writing import Part, SaveError
from parallel import files

FAULTS = ("ENOSPC", "EIO", "crash before", "crash after")


class Crash(BaseException):
    """The process ends here; no code of it runs any more, but for what Python unwinds."""


class Calls:
    """Every call that changes the disk, counted; one of them fails."""

    def __init__(self, monkeypatch, fault: str = "", at: int = 0):
        self.fault, self.at, self.count = fault, at, 0
        for owner, name in ((os, "fsync"), (os, "rename"), (os, "replace"), (shutil, "rmtree"), (pathlib.Path, "mkdir"),
                            (pathlib.Path, "unlink")):
            monkeypatch.setattr(owner, name, self.watched(getattr(owner, name)))
        for module in (tensors, files):
            monkeypatch.setattr(module, "open", self.watched(self.open), raising=False)

    def watched(self, call):
        def wrapped(*args, **kwargs):
            self.count += 1
            if self.count != self.at:
                return call(*args, **kwargs)
            if self.fault.startswith("crash"):
                if self.fault == "crash after":
                    call(*args, **kwargs)
                raise Crash
            raise OSError(getattr(errno, self.fault), os.strerror(getattr(errno, self.fault)))
        return wrapped

    def open(self, *args, **kwargs):
        file, calls = open(*args, **kwargs), self  # noqa: SIM115  closed by the one that asked

        class File:
            """Writes half of what it is given when it fails."""

            def __enter__(self):
                return self

            def __exit__(self, *_):
                file.close()

            def write(self, data):
                def write_half(data):
                    file.write(data[:len(data) // 2])
                    file.flush()
                    raise OSError(errno.ENOSPC, "No space left on device")
                failing = calls.count + 1 == calls.at and calls.fault == "ENOSPC"
                if failing:
                    calls.count += 1
                    return write_half(data)
                return calls.watched(file.write)(data)

            def __getattr__(self, name):
                return getattr(file, name)

        return File()


def make(step):
    """A checkpoint of about a kilobyte."""
    arrays = {"model": {"w": np.full((20, 10), step, np.float32)}, "optimizer": {"moment1.w": np.zeros((20, 10), np.float32)}}
    return store.Checkpoint(arrays, {"step": step, "run_id": "a"}, "run: {}\n")


def count_calls(root, monkeypatch) -> int:
    """Of one save onto an older one that goes."""
    writing.save(root, make(1), 1)
    with monkeypatch.context() as patch:
        calls = Calls(patch)
        writing.save(root, make(2), 1)
    return calls.count


def test_a_fault_at_every_call(tmp_path, monkeypatch):
    total, published = count_calls(tmp_path / "count", monkeypatch), set()
    assert total > 25
    for fault in FAULTS:
        for at in range(1, total + 1):
            root = tmp_path / f"{fault} {at}"
            writing.save(root, make(1), 1)
            with monkeypatch.context() as patch, pytest.raises((OSError, SaveError, Crash)):
                Calls(patch, fault, at)
                writing.save(root, make(2), 1)
            found, _ = store.find(root)
            assert found and found.step in (1, 2), (fault, at)
            assert np.all(found.tensors["model"]["w"] == found.step)
            named = root / (root / store.LATEST).read_text().strip()
            assert store.load(named).step in (1, 2), (fault, at)  # what `latest` names is there, and whole
            published.add(found.step)
            writing.save(root, make(3), 1)  # and the next one finds nothing in its way
            assert [p.name for p in root.iterdir() if p.name.startswith(".")] == [] and store.find(root)[0].step == 3
    assert published == {1, 2}


def test_no_room_is_known_before_anything_is_written(tmp_path, monkeypatch):
    writing.save(tmp_path, make(1), 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9 - 1500, 1500))
    with pytest.raises(SaveError, match=r"no room for the checkpoint of step 2: it takes 0.0 MB, .* 0.0 MB free"):
        writing.save(tmp_path, make(2), 1)
    assert sorted(p.name for p in tmp_path.iterdir()) == [store.LATEST, "step_00000001"]


def test_a_small_disk_that_fills_up(tmp_path):
    """The real thing, where the system lets us: a file system of 1 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.system(f"mount -t tmpfs -o size=3m none '{disk}' 2>/dev/null"):
        pytest.skip("no right to mount a small file system here")
    try:
        root, big = disk / "checkpoints", make(2)
        writing.save(root, make(1), 1)
        big.tensors["model"]["w"] = np.zeros(400_000, np.float32)  # 1.6 MB and a spare MB are there ...
        (disk / "other").write_bytes(bytes(1_500_000))
        with pytest.raises(SaveError, match="no room"):
            writing.save(root, big, 1)
        (disk / "other").unlink()
        spare, writing.SPARE = writing.SPARE, -10**9  # ... somebody else takes them meanwhile
        try:
            (disk / "other").write_bytes(bytes(2_000_000))
            with pytest.raises(OSError, match="No space left"):
                writing.save(root, big, 1)
        finally:
            writing.SPARE = spare
        assert store.find(root)[0].step == 1 and (root / store.LATEST).read_text() == "step_00000001\n"
    finally:
        os.system(f"umount '{disk}'")


def test_a_kill_in_the_midst_of_rotation_leaves_nothing_behind(tmp_path, monkeypatch):
    for step in (1, 2):
        writing.save(tmp_path, make(step), 2)

    def killed(folder):
        next(folder.glob("*")).unlink()
        raise Crash
    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(shutil, "rmtree", killed)
        writing.save(tmp_path, make(3), 2)
    assert [f.name for f in store.steps(tmp_path)] == ["step_00000002", "step_00000003"]
    writing.save(tmp_path, make(4), 2)
    assert sorted(f.name for f in tmp_path.glob("*")) == ["latest", "step_00000003", "step_00000004"]
    assert not list(tmp_path.glob(".*"))


def test_what_does_not_come_back_from_the_disk_is_not_published(tmp_path, monkeypatch):
    writing.save(tmp_path, make(1), 1)
    monkeypatch.setattr(writing, "digest_of", lambda pieces: "0" * 64)
    with pytest.raises(SaveError, match="does not come back"):
        writing.save(tmp_path, make(2), 1)
    assert store.find(tmp_path)[0].step == 1


def parts(count: int) -> list[Part]:
    """Rows of a matrix, one part for each rank."""
    whole = np.arange(8 * count, dtype=np.float32).reshape(2 * count, 4)
    return [Part({"model": {"w": whole[2 * r:2 * r + 2].copy()}, "optimizer": {}},
                 {"w": tensors.Place(whole.shape, (2 * r, 0))}, r, {"w": [[count], [0, -1], [2, 4]]}) for r in range(count)]


def test_several_ranks_write_one_checkpoint(tmp_path):
    savers = [Saver(tmp_path, 2, r, 3) for r in range(3)]
    for saver, part in zip(savers, parts(3), strict=True):
        saver.start(part, 0, {"step": 5}, "run: {}\n")
    for saver in savers:
        saver.wait()
    found = store.load(store.folder_of(tmp_path, 5))
    np.testing.assert_array_equal(found.tensors["model"]["w"], np.arange(24, dtype=np.float32).reshape(6, 4))
    np.testing.assert_array_equal(tensors.read(found.tensors["model"], "w", (slice(1, 5), slice(2, 4))),
                                  np.arange(24, dtype=np.float32).reshape(6, 4)[1:5, 2:4])
    assert tensors.shapes(found.tensors["model"]) == {"w": (6, 4)}
    assert sorted(p.name for p in tmp_path.iterdir()) == [store.LATEST, "step_00000005"]
    for r in range(3):  # how MindSpore cut it on each rank, hashed as all else
        path = store.folder_of(tmp_path, 5) / f"layouts-rank_0000{r}.json"
        assert json.loads(path.read_text()) == {"w": [[3], [0, -1], [2, 4]]} and path.name in store.manifest_of(path.parent)
    (store.folder_of(tmp_path, 5) / "model-rank_00001.safetensors").unlink()
    assert store.find(tmp_path)[0] is None


def test_a_rank_that_cannot_write_is_named_and_nothing_is_published(tmp_path, monkeypatch):
    def fails_for_rank_1(temporary, part):
        if part.rank == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_part(temporary, part)

    write_part = writing.write_part
    monkeypatch.setattr(writing, "write_part", fails_for_rank_1)
    savers = [Saver(tmp_path, 2, r, 2) for r in range(2)]
    for saver, part in zip(savers, parts(2), strict=True):
        saver.start(part, 0, {"step": 5}, "run: {}\n")
    with pytest.raises(SaveError, match="rank 1 could not write its part: .*No space"):
        savers[0].wait()
    with pytest.raises(OSError, match="No space"):
        savers[1].wait()
    assert store.find(tmp_path) == (None, []) and not (tmp_path / store.LATEST).exists()


def test_a_rank_that_is_gone_does_not_keep_the_others_waiting(tmp_path):
    first = Saver(tmp_path, 2, 0, 2)
    first.start(parts(2)[0], 0, {"step": 5}, "run: {}\n")
    first.close()
    with pytest.raises(SaveError, match="rank 1 has not written its part yet"):
        first.check()
    assert store.find(tmp_path) == (None, [])


def test_an_error_behind_the_training_surfaces_at_the_next_call(tmp_path, monkeypatch):
    saver = Saver(tmp_path, 1)
    monkeypatch.setattr(writing, "write_part", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "Input/output error")))
    saver.start(Part({"model": {"w": np.zeros(3, np.float32)}}), 12, {"step": 1}, "")
    saver.thread.join()
    with pytest.raises(SaveError, match=r"step 1 could not be written: .*Input/output error; .* MB free\. The one before"):
        saver.check()
    saver.check()  # told once
