"""Writing that survives a crash: data reaches the disk before its name does; and where the cache is."""
import hashlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from parallel.errors import UserError


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


def cache_folder() -> Path:
    """Where what can be made again is kept, in $XDG_CACHE_HOME, or `~/.cache/mindgpt`. Raises UserError."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "mindgpt"
    except RuntimeError as error:  # no HOME and no such user
        raise UserError(f"no folder for a cache ({error}): set XDG_CACHE_HOME") from error


def keep_newest(folders: Iterable[Path], count: int) -> None:
    """Remove all but so many of some folders of a cache, those that were used longest ago."""
    def used(folder: Path) -> float:
        try:
            return folder.stat().st_mtime
        except FileNotFoundError:  # another process has just removed it
            return 0.0

    for old in sorted(folders, key=used)[:-count]:
        shutil.rmtree(old, ignore_errors=True)


def check_file(option: str, path: Path | None) -> None:
    """Raise UserError, before the work begins, where a file that an option names could not be made."""
    if path and (path.is_dir() or not path.parent.is_dir()):
        raise UserError(f"{option} {path}: give a file in a folder that exists")


def sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()
