"""Compiles the operators in C++ once for this machine, and keeps what comes of it in the cache."""
import ctypes
import functools
import hashlib
import os
import platform
import shlex
import subprocess
import tempfile
from pathlib import Path

from parallel.errors import UserError
from parallel.files import cache_folder, fsync_file

SOURCES = [Path(__file__).with_name(name) for name in ("kernels.cc", "attention.cc", "matmul.cc")]
HEADERS = [Path(__file__).with_name(name) for name in ("kernels.h", "tiles.h")]
# What -ffast-math is made of, less -ffinite-math-only: a NaN must come out where one went in.
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-fassociative-math",
         "-freciprocal-math", "-shared", "-fPIC", "-pthread")


def problem() -> str:
    """Why there are no compiled operators here; "": there are."""
    return _made()[1]


def operator(name: str) -> str:
    """What ops.Custom is to call for an operator of these sources."""
    return f"{_made()[0]}:{name}"


@functools.cache
def _made() -> tuple[Path | None, str]:
    """The library, with threads for this process's share of the cores, or why there is none."""
    try:
        path = _compiled()
        try:
            library = ctypes.CDLL(str(path))
        except OSError:  # left empty, by a machine that lost power
            path.unlink(missing_ok=True)
            library = ctypes.CDLL(str(_compiled()))
    except (OSError, UserError, ValueError) as error:
        return None, str(error)
    except subprocess.CalledProcessError as error:
        return None, f"{error.cmd[0]}: {(error.stderr.strip() or 'it failed').splitlines()[0]}"
    workers = int(os.environ.get("MINDGPT_LOCAL_WORKERS", "1"))
    library.set_threads(max(1, len(os.sched_getaffinity(0)) // workers))
    return path, ""


def _compiled() -> Path:
    """From the cache, by what it was made of. Raises OSError, UserError, CalledProcessError."""
    compiler = shlex.split(os.environ.get("CXX") or "g++")
    version = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=True).stdout
    sources = b"".join(path.read_bytes() for path in (*SOURCES, *HEADERS))
    made_of = "\0".join((version, " ".join(FLAGS), _processor())).encode() + sources
    path = cache_folder() / f"cpu-kernels-{hashlib.sha256(made_of).hexdigest()[:16]}.so"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / path.name
            subprocess.run([*compiler, *FLAGS, *map(str, SOURCES), "-o", str(made)], capture_output=True, text=True, check=True)
            fsync_file(made)
            made.replace(path)  # several ranks may be at it, and the last one's is as good
    return path


def _processor() -> str:
    """What -march=native depends on: a home folder may be shared by machines of several kinds."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return platform.machine() + next((line for line in lines if line.startswith(("flags", "Features"))), "")
