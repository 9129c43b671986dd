import errno
import io

import numpy as np
import pytest

from data import packing
from data.packing import SampleSet, Span, encode_files, num_samples
from data.prepare import load_tokenizer
from data.text import TextFile
from data.tokenizer import EOS_ID
from parallel.errors import UserError


@pytest.mark.parametrize("document", ["file", "line"])
@pytest.mark.parametrize("num_threads", [1, 4])
def test_encoding_equals_the_tokenizer_on_whole_documents(config, manifest, text_folder, monkeypatch, document, num_threads):
    monkeypatch.setattr(packing, "CHUNK_CHARS", 100)
    monkeypatch.setattr(packing, "BATCH_CHARS", 5000)
    tokenizer = load_tokenizer(config)
    paths = [text_folder / "valid_en.txt", text_folder / "valid_zh.txt"]
    out, told = io.BytesIO(), []
    count = encode_files([TextFile(path, document, "error") for path in paths], tokenizer, out, num_threads, told.append)

    documents = [path.read_text() for path in paths]
    if document == "line":
        documents = [line for text in documents for line in text.split("\n") if line.strip()]
    expected = [token for text in documents for token in [*tokenizer.encode(text), EOS_ID]]
    assert np.frombuffer(out.getvalue(), np.int32).tolist() == expected
    assert count == len(expected)
    assert sum(told) == sum(len(text.encode()) for text in documents)


@pytest.mark.parametrize("num_threads", [1, 3])
def test_text_is_read_no_further_than_a_batch_ahead_of_the_threads(config, manifest, text_folder, monkeypatch, num_threads):
    monkeypatch.setattr(packing, "BATCH_CHARS", 1)  # each piece is a batch
    read, ahead = [0], []

    class Counted(TextFile):
        def pieces(self):
            for piece in super().pieces():
                read[0] += 1
                yield piece

    class Out(io.BytesIO):
        def write(self, row):
            ahead.append(read[0] - len(ahead))
            return super().write(row)

    encode_files([Counted(text_folder / "valid_zh.txt", "line", "error")], load_tokenizer(config), Out(), num_threads,
                 lambda size: None)
    assert len(ahead) == read[0] > 20
    assert max(ahead) == num_threads + 1


@pytest.mark.parametrize("num_tokens, expected", [(0, 0), (1, 0), (2, 1), (5, 1), (6, 2), (9, 2), (10, 3)])
def test_number_of_samples(num_tokens, expected):
    assert num_samples(num_tokens, 4) == expected


def test_samples_overlap_by_one_token_and_the_last_is_padded(tmp_path):
    row = np.arange(100, 111, dtype=np.int32)
    row.tofile(tmp_path / "a")
    np.arange(200, 205, dtype=np.int32).tofile(tmp_path / "b")
    samples = SampleSet((Span(tmp_path / "a", 1, 2), Span(tmp_path / "b", 0, 1)), 4)
    expected = [[104, 105, 106, 107, 108], [108, 109, 110, 0, 0], [200, 201, 202, 203, 204]]
    for start in range(4):
        for stop in range(start, 4):
            rows = [row for block in samples.blocks(start, stop) for row in block.tolist()]
            assert rows == expected[start:stop]


def test_blocks_do_not_change_samples(tmp_path, monkeypatch):
    np.arange(1, 1000, dtype=np.int32).tofile(tmp_path / "a")
    samples = SampleSet((Span(tmp_path / "a", 3, 100),), 7)
    whole = np.concatenate(list(samples.blocks(0, 100)))
    monkeypatch.setattr(packing, "BLOCK_SAMPLES", 9)
    assert np.array_equal(np.concatenate(list(samples.blocks(0, 100))), whole)


def test_a_disk_that_fills_up_is_named(config, manifest, text_folder):
    class Full(io.BytesIO):
        name = "there/train.tokens"

        def flush(self):
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(UserError, match="there/train.tokens cannot be written .No space left on device.: free some space"):
        encode_files([TextFile(text_folder / "valid_zh.txt", "line", "error")], load_tokenizer(config), Full(), 1, print)
