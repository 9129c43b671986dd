import gzip
import json

import pytest

from data import text
from data.text import TextFile, find_files
from parallel.errors import UserError


def read(path, document="file", on_bad_text="error"):
    """All documents of a file as strings, and the counts."""
    file = TextFile(path, document, on_bad_text)
    documents, current = [], ""
    for piece in file.pieces():
        current += piece.text
        if piece.ends_document:
            documents.append(current)
            current = ""
    assert current == ""
    return documents, file.counts


def write(folder, data, name="a.txt"):
    path = folder / name
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("data, expected, changes", [
    (b"\xef\xbb\xbfcaf\xc3\xa9\n", "café\n", {"byte_order_marks_removed": 1}),
    (b"a\r\nb\r\n", "a\nb\n", {"carriage_returns_removed": 2}),
    (b"a\rb\rc", "a\nb\nc", {"carriage_returns_removed": 2}),
    (b"no final newline", "no final newline", {}),
    (b"\n\n  a  \n\n", "\n\n  a  \n\n", {}),
    ("，（世界）１２３\u2028\x0b\x0c\u00a0\u3000\n".encode(), "，（世界）１２３\u2028\x0b\x0c\u00a0\u3000\n", {}),
])
def test_text_is_cleaned_and_otherwise_kept(tmp_path, data, expected, changes):
    documents, counts = read(write(tmp_path, data))
    assert documents == [expected]
    assert counts.changes() == changes
    assert (counts.documents, counts.text_bytes) == (1, len(expected.encode()))


@pytest.mark.parametrize("data", [b"", b" \n\t\r\n \n", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("document", ["file", "line"])
def test_blank_files_hold_no_document(tmp_path, data, document):
    documents, counts = read(write(tmp_path, data), document)
    assert documents == []
    assert counts.documents == 0
    assert counts.blank_documents >= (data != b"" or document == "file")


BAD = [
    (b"fine\ncaf\xe9 au lait\n", "invalid UTF-8 (byte 0xe9) at byte 8", "fine\ncaf\ufffd au lait\n"),
    (b"a\x00b\n", "NUL at byte 1", "ab\n"),
    (b"\xef\xbb\xbf\xc3\xa9a\x00b\n", "NUL at byte 6", "éab\n"),
    (b"ends inside \xe4\xbd", "invalid UTF-8 (byte 0xe4) at byte 12", "ends inside \ufffd"),
]


@pytest.mark.parametrize("data, message, replaced", BAD)
def test_policies_on_bad_text(tmp_path, data, message, replaced):
    path = write(tmp_path, data)
    with pytest.raises(UserError, match="on_bad_text=replace or =skip") as error:
        read(path)
    assert str(error.value).startswith(f"{path}: {message}")

    documents, counts = read(path, on_bad_text="replace")
    assert documents == [replaced]
    assert counts.invalid_characters_replaced + counts.nul_removed == 1

    documents, counts = read(path, on_bad_text="skip")
    assert (documents, counts.bad_documents_skipped, counts.documents) == ([], 1, 0)


def test_skip_leaves_out_one_line_where_lines_are_documents(tmp_path):
    documents, counts = read(write(tmp_path, b"one\r\n\xff\r\n\r\nthree"), "line", "skip")
    assert documents == ["one", "three"]
    assert (counts.bad_documents_skipped, counts.blank_documents, counts.documents) == (1, 1, 2)


def test_bad_byte_far_into_a_file_is_found_before_any_text_is_used(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "BLOCK_BYTES", 64)
    path = write(tmp_path, b"x" * 50 + b"\n" + b"y" * 500 + b"\n\xffz\n")
    with pytest.raises(UserError, match="at byte 552"):
        next(TextFile(path, "file", "error").pieces())
    assert read(path, on_bad_text="skip")[0] == []


def test_utf16_is_refused_with_a_hint(tmp_path):
    for encoding in ("utf-16", "utf-16-le"):
        with pytest.raises(UserError, match="looks like UTF-16"):
            read(write(tmp_path, "hello world".encode(encoding)))


def test_gzip_is_known_by_its_content(tmp_path):
    packed = gzip.compress("héllo\n".encode())
    for name in ("a.txt", "b.txt.gz"):
        assert read(write(tmp_path, packed, name))[0] == ["héllo\n"]
    assert read(write(tmp_path, b"plain\n", "c.txt.gz"))[0] == ["plain\n"]
    with pytest.raises(UserError, match="d.txt.*cannot be read"):
        read(write(tmp_path, packed[:-9], "d.txt"))


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16, 1000])
def test_blocks_of_any_size_give_the_same_text(tmp_path, monkeypatch, size):
    content = "“你好”，𝒳 ab cd\r\n\r\nlong" + "词" * 30 + "\rx\r\r\n" + "é" * 40 + " "
    path = write(tmp_path, content.encode())
    monkeypatch.setattr(text, "BLOCK_BYTES", size)
    documents, counts = read(path)
    assert documents == [content.replace("\r\n", "\n").replace("\r", "\n")]
    assert counts.carriage_returns_removed == content.count("\r")


def test_a_file_is_read_in_blocks(tmp_path):
    path = write(tmp_path, b"0123456789 abcdef\n" * 300_000)
    sizes = [len(piece.text) for piece in TextFile(path, "file", "error").pieces()]
    assert len(sizes) > 4
    assert max(sizes) <= 2 * text.BLOCK_BYTES


def test_long_lines_of_the_shipped_file_survive():
    from tests.data.conftest import CORPUS
    path = CORPUS / "long_lines_en.txt"
    documents, _ = read(path)
    assert documents == [path.read_text()]
    lines, _ = read(path, "line")
    assert lines == [line for line in path.read_text().split("\n") if line.strip()]


def test_json_lines(tmp_path):
    records = [{"text": "one\r\ntwo", "id": 1}, {"text": "  "}, {"text": "é"}]
    data = "\n".join(map(json.dumps, records)).encode() + b"\n\n"
    documents, counts = read(write(tmp_path, data, "a.jsonl"))
    assert documents == ["one\ntwo", "é"]
    assert counts.blank_documents == 2


@pytest.mark.parametrize("line, message", [
    (b'{"text": "a', "not valid JSON"),
    (b'{"txt": "a"}', 'no key "text"'),
    (b'["a"]', "not an object"),
    (b'{"text": 3}', "not an object with a string"),
    (b'{"text": "a\\u0000"}', "NUL"),
    (b'{"text": "\\ud800"}', "invalid UTF-8"),
    (b"[" * 100_000, "not valid JSON"),
])
def test_broken_json_line_is_named_or_skipped(tmp_path, line, message):
    path = write(tmp_path, b'{"text": "fine"}\n' + line + b'\n{"text": "also"}\n', "a.jsonl")
    with pytest.raises(UserError) as error:
        read(path)
    assert str(error.value).startswith(f"{path}:2: ") and message in str(error.value)
    documents, counts = read(path, on_bad_text="skip")
    assert (documents, counts.bad_documents_skipped) == (["fine", "also"], 1)


def test_files_of_a_folder(tmp_path):
    for name in ("b.txt", "a.jsonl", "sub/c.TXT.gz", "sub/.hidden.txt", ".git/x.txt", "notes.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [file.relative_to(tmp_path).as_posix() for file in find_files(tmp_path, "data.path")] == \
        ["a.jsonl", "b.txt", "sub/c.TXT.gz"]


def test_what_is_no_text_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.pdf").touch()
    for name, message in (("empty", "holds no .txt"), ("a.pdf", "neither .txt nor .jsonl"), ("none.txt", "does not exist")):
        with pytest.raises(UserError, match=message):
            find_files(tmp_path / name, "data.path")
