"""What every machine needs: Python, packages, a compiler, ports, disk, memory, limits, a clock."""
from __future__ import annotations  # for Python 3.8

import importlib.metadata
import importlib.util
import os
import re
import resource
import shlex
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

from parallel.doctor.result import FAILED, OK, WARNING, Result

GB = 1e9
WARN_SECONDS = 5.0  # that clocks may be apart
SET_CLOCKS = "set the clocks by one server (chrony, ntpd); training does not go by them, but times in logs will mislead"
ROOT = Path(__file__).resolve().parents[2]


def numbers(version: str) -> tuple[int, ...]:
    """"2.10.0rc1" -> (2, 10, 0), to compare by."""
    return tuple(int(n) for n in re.findall(r"\d+", re.split(r"rc|[ab+]", version)[0]))


def meets(version: str, wanted: str) -> bool:
    """Whether a version is within ">=1.26,<2" or "==2.10.0"."""
    have = numbers(version)
    for sign, limit in re.findall(r"(==|>=|<)\s*([\w.]+)", wanted):
        low = numbers(limit)
        size = max(len(have), len(low))
        a, b = (tuple(n) + (0,) * (size - len(n)) for n in (have, low))
        if not {"==": a == b, ">=": a >= b, "<": a < b}[sign]:
            return False
    return True


def project() -> tuple[str, Mapping[str, str]]:
    """What pyproject.toml asks for: of Python, and of each package. Read without tomllib, which Python 3.10 has not."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    python = re.search(r'^requires-python\s*=\s*"(.*?)"', text, re.M)[1]
    block = re.search(r"^dependencies\s*=\s*\[(.*?)^\]", text, re.M | re.S)[1]
    return python, dict(re.findall(r'"([A-Za-z0-9_-]+)([^"]*)"', block))


def python(env: Mapping[str, str]) -> Result:
    """The interpreter that runs this: it is the one that the scripts would take."""
    version, wanted = "{}.{}.{}".format(*sys.version_info[:3]), project()[0]
    found = f"{version} ({sys.executable})"
    if not meets(version, wanted):
        return Result("python", FAILED, found, f"MindSpore needs {wanted}: install one, and name it by PYTHON=/path/to/python")
    makes_venv = env.get("MINDGPT_NO_VENV") != "1" and sys.prefix == sys.base_prefix
    if makes_venv and not importlib.util.find_spec("ensurepip"):
        return Result("python", FAILED, f"{found} without ensurepip",
                      "the scripts cannot make a .venv: install the package python3-venv, "
                      "or set MINDGPT_NO_VENV=1")
    return Result("python", OK, found)


def packages(wanted: Mapping[str, str]) -> list[Result]:
    """MindSpore and numpy by themselves, the others together."""
    found, others, absent = [], [], []
    for name, limits in wanted.items():
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            absent.append(name)
            continue
        if not meets(version, limits):
            found.append(Result(name, FAILED, f"{version}, where {limits} is needed", f"pip install '{name}{limits}'"))
        elif name in ("mindspore", "numpy"):
            found.append(Result(name, OK, f"{version} (needed: {limits})"))
        else:
            others.append(f"{name} {version}")
    if absent:
        found.append(Result("packages", WARNING, f"not installed: {', '.join(absent)}",
                            "run_standalone.sh and run_distributed.sh install them at their first start"))
    elif others:
        found.append(Result("packages", OK, ", ".join(others)))
    return found


def compiler(env: Mapping[str, str]) -> Result:
    """g++, or CXX, which makes the fast operators for CPU."""
    command = shlex.split(env.get("CXX") or "g++")
    try:
        said = subprocess.run([*command, "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return Result("compiler", WARNING, f"{command[0]} does not run ({error})",
                      "install g++ or name one by CXX; without it training on CPU takes MindSpore's slower operators")
    return Result("compiler", OK, (said.stdout.decode(errors="replace").splitlines() or [command[0]])[0])


def port(env: Mapping[str, str]) -> Result:
    """Where MindSpore's scheduler is to listen: on the node of NODE_RANK=0."""
    text = env.get("MASTER_PORT", "").strip()
    if not text:
        return Result("port", OK, "MASTER_PORT is not set: on one node a free one is taken")
    if not text.isdigit() or not 1 <= int(text) <= 65535:
        return Result("port", FAILED, f"MASTER_PORT={text}", "expected a whole number from 1 to 65535")
    if env.get("NODE_RANK", "0").strip() not in ("", "0"):
        return Result("port", OK, f"{text}: listened on by the node of NODE_RANK=0")
    try:
        socket.create_server(("", int(text))).close()
    except OSError as error:
        return Result("port", FAILED, f"MASTER_PORT={text} cannot be used ({error.strerror})",
                      "choose another, on all nodes, or end what listens there (ss -ltnp)")
    return Result("port", OK, f"{text} is free")


def existing(folder: Path) -> Path:
    """The folder, or the nearest one above that is there and can be looked at."""
    folder = folder.absolute()
    while not _is_dir(folder):
        folder = folder.parent
    return folder


def _is_dir(folder: Path) -> bool:
    try:
        return folder.is_dir()
    except OSError:  # one above it keeps others out
        return False


def disk(name: str, folder: Path, need_gb: float, megabytes: int = 16) -> Result:
    """Free space, and whether what is written there reaches the disk and comes back. need_gb (1e9 bytes): less is too little."""
    place = existing(folder)
    change = f"choose another place (run.dir, data.prepared_dir), or free some of {place}"
    try:
        free, files = shutil.disk_usage(str(place)).free / GB, os.statvfs(str(place))
        if free < need_gb:
            return Result(name, FAILED, f"{place} has {free:.1f} GB free, under the {need_gb:g} GB of --min-free-gb", change)
        if files.f_files and files.f_favail < 1000:
            return Result(name, FAILED, f"{place} has room for {files.f_favail} more files", change)
        seconds = _write(place / f".doctor-{uuid.uuid4().hex}", os.urandom(2 ** 20) * megabytes)
    except OSError as error:
        return Result(name, FAILED, f"{place} cannot be written to ({error.strerror or error})",
                      f"give yourself the right to write there, or {change}")
    found = f"{place}: {free:,.0f} GB free, {megabytes} MB written, synced and read in {seconds:.2f} s"
    if seconds > megabytes / 10:
        return Result(name, WARNING, found, "under 10 MB/s: checkpoints will take long; see what else uses this disk")
    return Result(name, OK, found)


def _write(path: Path, content: bytes) -> float:
    began = time.monotonic()
    try:
        with path.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if path.read_bytes() != content:
            raise OSError("what was read is not what was written")
    finally:
        if path.exists():
            path.unlink()
    return time.monotonic() - began


def memory(need_gb: float = 4.0, meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> Result:
    """What is free for new processes, by the system and by the container's limit."""
    lines = dict(re.findall(r"^(\w+):\s+(\d+) kB", meminfo.read_text(), re.M))
    free, total = (int(lines[key]) * 1024 / GB for key in ("MemAvailable", "MemTotal"))
    found = f"{free:.1f} GB available of {total:.1f} GB"
    try:
        limit, used = (int((cgroup / name).read_text()) / GB for name in ("memory.max", "memory.current"))
        stat = cgroup / "memory.stat"
        cache = re.search(r"^inactive_file (\d+)$", stat.read_text() if stat.exists() else "", re.M)
        used -= int(cache[1]) / GB if cache else 0.0  # files that were read, which give way
        if limit - used < free:
            free, found = limit - used, f"{limit - used:.1f} GB available of the {limit:.1f} GB that the container may use"
    except (OSError, ValueError):
        pass  # no such file, or "max": no limit
    if free < need_gb:
        return Result("memory", WARNING, found, "little for MindSpore's compiler and several workers: see what else runs, or "
                                                "give the container more")
    return Result("memory", OK, found)


def shared_memory(folder: Path = Path("/dev/shm"), need_gb: float = 1.0) -> Result:
    """Through which the data pipeline's processes and HCCL hand over what they have."""
    more = "start the container with --shm-size=16g (docker), or an emptyDir of medium Memory at /dev/shm (Kubernetes)"
    if not folder.is_dir():
        return Result("shm", FAILED, f"there is no {folder}", more)
    usage = shutil.disk_usage(str(folder))
    found = f"{folder}: {usage.free / GB:.1f} GB free of {usage.total / GB:.1f} GB"
    return Result("shm", OK, found) if usage.free / GB >= need_gb else Result("shm", WARNING, found, more)


def limits(need: int = 4096) -> Result:
    """Open files: MindRecord shards, sockets between ranks, libraries."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    infinite = soft == resource.RLIM_INFINITY
    if not infinite and soft < need:
        return Result("limits", WARNING, f"{soft} open files (hard limit {hard})",
                      f"ulimit -n {max(65536, need)}, for good in /etc/security/limits.conf; large jobs fail with "
                      "\"Too many open files\"")
    return Result("limits", OK, f"{'any number of' if infinite else soft} open files")


def clock(folder: Path, warn_seconds: float = WARN_SECONDS) -> Result:
    """This machine's clock against that of the file system, which on a shared folder is the server's."""
    now, path = time.time(), existing(folder) / f".doctor-{uuid.uuid4().hex}"
    if time.gmtime(now).tm_year < 2025:
        return Result("clock", FAILED, time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now)), "set the clock (chrony, ntpd)")
    try:
        path.touch()
        skew = path.stat().st_mtime - time.time()
        path.unlink()
    except OSError as error:
        return Result("clock", WARNING, f"cannot be compared: {error.strerror}")
    found = f"{abs(skew):.1f} s {'behind' if skew > 0 else 'ahead of'} the file system of {existing(folder)}"
    if abs(skew) > warn_seconds:
        return Result("clock", WARNING, found, SET_CLOCKS)
    return Result("clock", OK, found)
