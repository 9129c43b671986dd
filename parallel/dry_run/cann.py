"""The environment in which a new process can import MindSpore with its Ascend plugin and compile, with or without CANN."""
import contextlib
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from parallel.dry_run import stand_ins
from parallel.errors import UserError
from parallel.files import cache_folder

DRY_RUN = {"MS_SIMULATION_LEVEL": "0"}  # MindSpore's DryRun: compile, and touch no device


def environment() -> dict[str, str]:
    """Variables to add to os.environ for a *new* process, which can then import MindSpore's Ascend plugin and compile.

    With CANN: only the switch to a dry run. Without: also paths to stand-ins for its libraries, which are built once (some
    seconds) and kept in the cache (see parallel.files.cache_folder). What the user has in LD_LIBRARY_PATH and PYTHONPATH stays,
    after them. MindSpore is not imported here.

    Raises UserError, with nothing written, where a tool is missing, the cache cannot be written or MindSpore is not installed.
    """
    mindspore = _mindspore_folder()
    plugin = mindspore / "lib" / "plugin" / "libmindspore_ascend.so.2"
    if not plugin.is_file():
        raise UserError(f"the installed mindspore has no Ascend plugin ({plugin}): install mindspore==2.10.0 for Linux from PyPI")
    if _load_error(plugin, DRY_RUN) is None:
        return dict(DRY_RUN)
    return _with_stand_ins(_cached(mindspore, plugin), plugin)


def target_ascend() -> None:
    """Make Ascend the device target of this process, which was started under `environment()`."""
    from mindspore import context
    from mindspore._c_expression import ms_ctx_param

    # mindspore.set_device would ask for CANN's compiler of operators (te), which a dry run does not need
    context._context()._context_handle.set_param(ms_ctx_param.device_target, "Ascend")


def _mindspore_folder() -> Path:
    spec = importlib.util.find_spec("mindspore")
    if spec is None or spec.origin is None:
        raise UserError("mindspore is not installed for this Python: pip install mindspore==2.10.0")
    return Path(spec.origin).parent


def _load_error(plugin: Path, variables: dict[str, str]) -> str | None:
    """Why the plugin cannot be loaded under these variables, or None; tried in another process, where it does not stay."""
    program = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"
    result = subprocess.run([sys.executable, "-c", program, str(plugin)], env={**os.environ, "GLOG_v": "4", **variables},
                            capture_output=True, text=True)
    if result.returncode == 0:
        return None
    return (result.stderr.strip() or f"ended with code {result.returncode}").splitlines()[-1]


def _with_stand_ins(folder: Path, plugin: Path) -> dict[str, str]:
    def first(variable: str, *paths: Path) -> str:  # an empty entry would mean the current folder
        return os.pathsep.join([*map(str, paths), *filter(None, os.environ.get(variable, "").split(os.pathsep))])

    return {**DRY_RUN, "LD_LIBRARY_PATH": first("LD_LIBRARY_PATH", folder / "cann", plugin.parent / "ascend"),
            "PYTHONPATH": first("PYTHONPATH", folder / "python")}


def _cached(mindspore: Path, plugin: Path) -> Path:
    """The folder of the stand-ins, complete; built if it is not there."""
    machine = platform.machine()
    folder = cache_folder() / f"cann-stub-{_key(plugin, machine)}"
    if _is_complete(folder):
        return folder
    stand_ins.check_tools(machine)
    with _locked(folder.parent):
        if not _is_complete(folder):  # another process may have built it while this one waited
            _build(folder, mindspore, plugin, machine)
    return folder


def _key(plugin: Path, machine: str) -> str:
    """Changes with the plugin (version, place, time, size), the processor, and the source that builds the stand-ins."""
    status = plugin.stat()
    parts = (importlib.metadata.version("mindspore"), plugin, status.st_mtime_ns, status.st_size, machine)
    source = Path(stand_ins.__file__).read_bytes() + Path(__file__).read_bytes()
    return hashlib.sha256("\0".join(map(str, parts)).encode() + source).hexdigest()[:16]


@contextlib.contextmanager
def _locked(cache: Path) -> Iterator[None]:
    """One builder at a time; an unwritable cache is a UserError."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        lock = open(cache / "cann-stub.lock", "w")  # noqa: SIM115 (closed below; the body's errors are not this one's)
        fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError as error:
        raise UserError(f"cannot keep stand-ins for CANN's libraries in {cache} ({error.strerror}): set XDG_CACHE_HOME to a "
                        f"folder on a local disk that you can write") from error
    with lock:
        yield


def _build(folder: Path, mindspore: Path, plugin: Path, machine: str) -> None:
    """Build beside the folder, see that the plugin loads, then rename. What a killed builder left is removed."""
    building = folder.with_name("cann-stub.building")
    for old in (building, folder):
        shutil.rmtree(old, ignore_errors=True)
    try:
        building.mkdir()
        stand_ins.build(building, mindspore, machine)
        error = _load_error(plugin, _with_stand_ins(building, plugin))
        if error:
            raise UserError(f"MindSpore's Ascend plugin does not load with stand-ins for CANN's libraries: {error}; install CANN")
        (building / "complete").write_text(_fingerprint(building), encoding="utf-8")
        building.rename(folder)
    except OSError as error:
        raise UserError(f"cannot keep stand-ins for CANN's libraries in {folder.parent} ({error.strerror}): free some space, or "
                        f"set XDG_CACHE_HOME to another folder") from error
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _is_complete(folder: Path) -> bool:
    """Whether all that was built is there, to the byte: after a crash a file's name may be there without its content."""
    try:
        return (folder / "complete").read_text(encoding="utf-8") == _fingerprint(folder)
    except OSError:
        return False


def _fingerprint(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.suffix in (".so", ".py")):
        digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
