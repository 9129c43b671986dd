"""Ascend cards: what npu-smi says of them, the driver, CANN and its environment.

By the documented form of `npu-smi info`, and by what MindSpore 2.10.0 itself looks at when it starts
(mindspore/run_check/_check_version.py); on a machine with cards none of it has been run yet.
"""
from __future__ import annotations  # for Python 3.8

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from parallel.doctor.result import FAILED, OK, WARNING, Result

CANN = ("8.2", "8.3", "8.5", "9.0", "9.1")  # that MindSpore 2.10.0 accepts
HOME = Path("/usr/local/Ascend")
# Two rows for each chip, the second with the number of its device where that is not the NPU's, then the processes:
CHIP = re.compile(r"^\|\s*(\d+)\s+(\S*[A-Za-z]\S*)\s*\|\s*([A-Za-z]+)\s*\|")  # | 0     910B3  | OK            | 93.2 ...
BUS = re.compile(r"^\|\s*(\d+)(?:\s+(\d+))?\s*\|\s*(?:NA|[0-9A-F]+:[0-9A-F:.]+)\s*\|")  # | 0  | 0000:C1:00.0  | 0 ...
PROCESS = re.compile(r"^\|\s*(\d+)\s+(\d+)\s*\|\s*(\d+)\s*\|\s*(.*?)\s*\|")  # | 0       0     | 4711   | python  | 107 |


def checks(env: Mapping[str, str], dev: Path = Path("/dev"), home: Path = HOME) -> list[Result]:
    """All that concerns cards; one line where there is none."""
    devices = sorted(int(p.name[7:]) for p in dev.iterdir() if re.fullmatch(r"davinci\d+", p.name))
    tool = shutil.which("npu-smi", path=env.get("PATH"))
    if not devices and not tool:
        return [Result("cards", OK, "no Ascend card here (no /dev/davinci*, no npu-smi): training takes the CPU")]
    return [cards(env, devices, tool), driver(home), cann(env, home), environment(env, home)]


def parse(text: str) -> tuple[dict[int, tuple[str, str]], dict[int, str]]:
    """Of `npu-smi info`: device -> (name, health), and device -> a process that uses it."""
    found, used, devices, chip = {}, {}, {}, None
    for line in text.splitlines():
        first, bus, process = CHIP.match(line), BUS.match(line), PROCESS.match(line)
        if first:
            chip = first
        elif bus and chip:
            device = int(bus[2] or chip[1])
            devices[chip[1], bus[1]] = device
            found[device], chip = (chip[2], chip[3]), None
        elif process and (process[1], process[2]) in devices:
            used[devices[process[1], process[2]]] = f"process {process[3]} ({process[4]})"
    return found, used


def cards(env: Mapping[str, str], devices: list[int], tool: str | None) -> Result:
    """Whether the cards that training would take are there, healthy and free. devices: numbers of /dev/davinci*."""
    if not tool:
        return Result("cards", FAILED, f"{len(devices)} device(s), but no npu-smi in PATH",
                      "install the driver, or in a container mount npu-smi and the driver's libraries")
    try:
        said = subprocess.run([tool, "info"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        return Result("cards", FAILED, f"npu-smi info does not answer ({error})", "look at dmesg; the driver may hang")
    text = said.stdout.decode(errors="replace")
    found, used = parse(text)
    if said.returncode or not found:
        return Result("cards", FAILED, f"npu-smi info: {(text.strip().splitlines() or ['nothing'])[-1].strip()}",
                      "as root: is the driver loaded (lsmod | grep drv)? In a container: are the devices handed in?")
    if not devices:
        return Result("cards", FAILED, f"npu-smi shows {len(found)} card(s), but there is no /dev/davinci*",
                      "in a container hand in the devices (Ascend Docker Runtime, --device=/dev/davinci0 ...)")
    visible = env.get("ASCEND_RT_VISIBLE_DEVICES")
    wanted = devices if visible is None else [int(n) for n in re.findall(r"\d+", visible)]
    absent = [n for n in wanted if n not in devices] if visible is not None else []
    if absent:
        return Result("cards", FAILED, f"ASCEND_RT_VISIBLE_DEVICES={visible}, and there is no card {absent[0]} among "
                                       f"{', '.join(map(str, devices))}", "name cards that are there")
    sick = {n: health for n, (_, health) in found.items() if n in wanted and health != "OK"}
    names = ", ".join(sorted({name for name, _ in found.values()}))
    if sick:
        state = WARNING if set(sick.values()) == {"Warning"} else FAILED
        return Result("cards", state, ", ".join(f"card {n} is in state {health}" for n, health in sick.items()),
                      "npu-smi info -t health -i N; leave it out by ASCEND_RT_VISIBLE_DEVICES, or reset or replace it")
    busy = [n for n in wanted if n in used]
    if busy:
        return Result("cards", WARNING, ", ".join(f"card {n} is used by {used[n]}" for n in busy),
                      "end it, or leave the card out by ASCEND_RT_VISIBLE_DEVICES")
    return Result("cards", OK, f"{len(wanted)} of {len(devices)} card(s) ({names}), all healthy and free")


def _version(path: Path) -> str:
    try:
        return re.search(r"^Version=(\S+)", path.read_text(errors="replace"), re.M)[1]
    except (OSError, TypeError):
        return ""


def driver(home: Path) -> Result:
    """The driver's version, as its own file says it."""
    version = _version(home / "driver" / "version.info")
    if version:
        return Result("driver", OK, f"{version} (must fit the CANN version: see CANN's release notes)")
    return Result("driver", WARNING, f"no {home}/driver/version.info", "install it; in a container mount it from the host")


def _set_env(home: Path) -> str:
    """The command that sets CANN's environment here."""
    places = [home / name / "set_env.sh" for name in ("cann", "ascend-toolkit")]
    return f"source {next((p for p in places if p.exists()), places[-1])}"


def cann(env: Mapping[str, str], home: Path) -> Result:
    """CANN's version against those that MindSpore accepts."""
    at = env.get("ASCEND_HOME_PATH")
    if not at:
        return Result("cann", FAILED, "ASCEND_HOME_PATH is not set", f"install CANN {' or '.join(CANN)}, then {_set_env(home)}")
    version = _version(Path(at) / "compiler" / "version.info")
    if not version:
        return Result("cann", WARNING, f"{at}/compiler/version.info does not say a version",
                      f"make sure that it is one of {', '.join(CANN)}")
    if ".".join(version.split(".")[:2]) not in CANN:
        return Result("cann", FAILED, f"{version} in {at}", f"MindSpore 2.10.0 accepts {', '.join(CANN)}: install one of them")
    return Result("cann", OK, f"{version} in {at}")


def environment(env: Mapping[str, str], home: Path) -> Result:
    """What CANN's set_env.sh sets, and the Python packages that come with CANN."""
    wanted = {"ASCEND_OPP_PATH": "/opp", "LD_LIBRARY_PATH": "/lib64", "PYTHONPATH": "opp/built-in/op_impl/ai_core/tbe"}
    absent = [name for name, part in wanted.items() if part not in env.get(name, "")]
    if absent:
        return Result("env", FAILED, f"{', '.join(absent)} do(es) not lead to CANN",
                      f"{_set_env(home)}, in the shell that starts training")
    if not importlib.util.find_spec("te"):
        return Result("env", FAILED, "this Python does not find CANN's package te",
                      f"{_set_env(home)}; CANN's wheels te and hccl must be there for this Python")
    return Result("env", OK, "CANN's environment is set")
