"""Writing that survives a crash: data reaches the disk before its name does."""
import hashlib
import os
from pathlib import Path


def fsync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_file(path: Path) -> None:
    """Make a file's content durable."""
    with open(path, "rb") as f:
        os.fsync(f.fileno())


def write_text(path: Path, text: str) -> dict:
    """Write a small text file and make its content durable; {"bytes", "sha256"} of it."""
    content = text.encode()
    with open(path, "wb") as f:
        f.write(content)
        f.flush()
        os.fsync(f.fileno())
    return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def replace_text(path: Path, text: str) -> None:
    """Write a small text file such that a reader, now or after a crash, finds the old content or the new, never a part."""
    temporary = path.with_name(f".tmp-{path.name}")
    write_text(temporary, text)
    os.replace(temporary, path)
    fsync_folder(path.parent)


def sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
