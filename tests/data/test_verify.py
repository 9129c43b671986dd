"""Prepared files against their SHA-256."""
import shutil

from data.manifest import read_manifest
from data.verify import Verifier


def test_a_changed_file_is_named_by_the_rank_whose_share_it_is(config, manifest, tmp_path):
    folder = shutil.copytree(config.prepared_dir, tmp_path / "prepared")
    manifest = read_manifest(folder)
    names = sorted(file.name for entry in manifest.sets.values() for file in entry.files)
    shares = [Verifier(manifest, folder, rank, 3) for rank in range(3)]
    assert [one.wait(60) for one in shares] == [""] * 3 and sorted(f.name for one in shares for f in one.files) == names
    path = folder / manifest.sets["train"].files[0].name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1  # one bit, which no size and no index shows
    path.write_bytes(content)
    found = [Verifier(manifest, folder, rank, 3).wait(60) for rank in range(3)]
    assert sum(map(bool, found)) == 1 and f"{path} was altered" in "".join(found)
    path.unlink()
    assert "cannot be read" in "".join(Verifier(manifest, folder, rank, 3).wait(60) for rank in range(3))
