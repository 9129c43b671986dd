"""A checkpoint that was cut short or altered anywhere is found, and the one before it is taken."""
import shutil
from pathlib import Path

import numpy as np
import pytest

from ckpt import store, writing

PLACES = 200


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> Path:
    """A folder with a checkpoint of step 1, and one of step 2 with parts of two ranks."""
    root, rng = tmp_path_factory.mktemp("kept"), np.random.RandomState(0)
    arrays = {"w": rng.standard_normal((30, 20)).astype(np.float32), "b": rng.standard_normal(20).astype(np.float32)}
    tensors = {"model": arrays, "optimizer": {f"moment1.{n}": a for n, a in arrays.items()}}
    for step in (1, 2):
        writing.save(root, store.Checkpoint(tensors, {"step": step, "consumed_samples": 8 * step}, "run: {name: x}\n"), 5)
    return root


def places(kept: Path):
    """(file, offset) at PLACES random bytes of all files of the newer one, each file among them."""
    rng, files = np.random.RandomState(1), sorted(store.folder_of(kept, 2).iterdir())
    assert len(files) == 5
    sizes = np.array([f.stat().st_size for f in files])
    chosen = [*range(5), *rng.choice(5, PLACES - 5, p=sizes / sizes.sum())]
    return [(files[i].name, int(rng.randint(sizes[i]))) for i in chosen]


@pytest.mark.parametrize("how", ["cut short", "one bit"])
def test_damage_anywhere(kept, tmp_path, how):
    rng, found = np.random.RandomState(2), 0
    for number, (name, offset) in enumerate(places(kept)):
        root = tmp_path / str(number)
        shutil.copytree(kept, root)
        path = store.folder_of(root, 2) / name
        content = bytearray(path.read_bytes())
        if how == "cut short":
            path.write_bytes(content[:offset])
        else:
            content[offset] ^= 1 << rng.randint(8)
            path.write_bytes(content)
        checkpoint, passed_over = store.find(root)
        assert checkpoint and checkpoint.step == 1, (name, offset)
        assert store.problems_of(store.folder_of(root, 2)), (name, offset)
        found += bool(passed_over)
        shutil.rmtree(root)
    # A state.json that cannot be read leaves no step to pass over; everything else is named.
    assert found >= PLACES - sum(name == store.STATE for name, _ in places(kept))
