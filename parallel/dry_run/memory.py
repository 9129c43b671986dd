"""How much memory there is, and how much a process uses."""
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


def available() -> int:
    """Bytes that can still be used: what the kernel calls available, or what the limit of a container or job leaves, if less."""
    return max(0, min([_fields(Path("/proc/meminfo"))["MemAvailable"] * 1024, *_left_by_limits()]))


def resident(pid: int) -> tuple[int, int]:
    """(now, peak) bytes of a process in memory, shared pages included; zeros when it has ended. See proc_pid_status(5)."""
    try:
        fields = _fields(Path(f"/proc/{pid}/status"))
    except OSError:
        return 0, 0
    return fields.get("VmRSS", 0) * 1024, fields.get("VmHWM", 0) * 1024


def _left_by_limits() -> Iterator[int]:
    """What each control group that this process is in leaves of its limit. See cgroups(7)."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2
            root, names = CGROUPS, ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            root, names = CGROUPS / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        group = Path(path.lstrip("/"))
        for folder in (root / group, *(root / parent for parent in group.parents)):
            try:
                limit, used = int((folder / names[0]).read_text()), int((folder / names[1]).read_text())
                cache = _fields(folder / "memory.stat").get(names[2], 0)  # files read before: given back when needed
            except (OSError, ValueError):  # no such file in a container's view, or the word "max"
                continue
            yield limit - used + cache


def _fields(path: Path) -> dict[str, int]:
    """Lines "name: number ..." or "name number" of a file; others are left out."""
    lines = (line.replace(":", " ").split() for line in path.read_text().splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdigit()}
