"""Rows by the short way are those by MindRecord's own."""
import numpy as np

from data import records
from data.packing import SampleSet, Span
from data.row_writer import RowWriter


def test_files_are_those_of_mindrecords_writer(tmp_path):
    from mindspore.mindrecord import FileWriter

    rows = [{"tokens": np.arange(i, i + 9, dtype=np.int32), "sample_id": 2**40 + i} for i in range(300)]
    for kind in (FileWriter, RowWriter):
        (tmp_path / kind.__name__).mkdir()
        writer = kind(str(tmp_path / kind.__name__ / "a.mindrecord"), shard_num=1)
        writer.set_header_size(256 << 10)
        writer.set_page_size(1 << 20)
        writer.add_schema({"tokens": {"type": "int32", "shape": [9]}, "sample_id": {"type": "int64"}}, "samples")
        for part in (rows[:100], rows[100:]):
            writer.write_raw_data(part)
        writer.commit()
    for name in ("a.mindrecord", "a.mindrecord.db"):
        theirs, ours = ((tmp_path / kind.__name__ / name).read_bytes() for kind in (FileWriter, RowWriter))
        assert theirs == ours and len(ours) > 4096


def test_pages_stay_small_whatever_the_size_of_the_file(tmp_path, monkeypatch):
    """While the index is made, memory is taken by the page."""
    (tmp_path / "train").mkdir()
    np.arange(200 * 2048 + 1, dtype=np.int32).tofile(tmp_path / "row")
    samples = SampleSet((Span(tmp_path / "row", 0, 200),), 2048)
    sizes = {}
    for limit in (records.SMALL_FILE, 0):  # as a small file, and as a large one
        monkeypatch.setattr(records, "SMALL_FILE", limit)
        sizes[limit] = records.Job(tmp_path, f"train/{limit}.mindrecord", samples, 0, 200).run(lambda count: None)[0].size
    small, large = sizes.values()
    assert large - small == (16 << 20) - (256 << 10) and small < 5 << 20
