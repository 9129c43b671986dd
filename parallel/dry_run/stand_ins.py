"""Stand-ins for CANN's libraries: enough that MindSpore's Ascend plugin loads where CANN is not installed.

The plugin links against CANN at load time, and compiling a graph in a dry run needs nothing of it: so each function that CANN
would provide is one that returns 0. (It wants no data of CANN: no vtable, no typeinfo.)
"""
import shutil
import subprocess
from pathlib import Path

from parallel.errors import UserError

# What the plugin, and the libraries of the wheel that it brings along, name in DT_NEEDED and neither the wheel nor Linux has.
LIBRARIES = ("ascendcl", "ge_runner", "graph", "hccl", "msprofiler", "runtime", "platform", "nnopbase", "c_sec", "ascend_hal",
             "acl_dvpp", "acl_dvpp_op", "acl_dvpp_mpi")
RETURN_ZERO = {"x86_64": "xorl %eax, %eax\n ret", "aarch64": "mov x0, #0\n ret"}
# The interpreter's, the tool chain's own, and initialisers of thread-local variables: weak, and rightly absent.
NOT_CANN = ("Py", "_Py", "_ITM_", "__gmon_", "__gcov_", "_ZTH")
SYSTEM = ("libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "libgomp.so.1", "libpthread.so.0", "libdl.so.2")
STATUS_FACTORY = "_ZN2ge13StatusFactory8InstanceEv"
# The plugin's static initialisers write error texts into the one object of this class: it must be real.
STATUS_FACTORY_SOURCE = """\
#include <cstdint>
#include <map>
#include <string>
namespace ge {
struct StatusFactory {
  static StatusFactory *Instance();
  std::map<uint32_t, std::string> texts;
};
StatusFactory *StatusFactory::Instance() {
  static StatusFactory factory;
  return &factory;
}
}  // namespace ge
"""


def check_tools(machine: str) -> None:
    """UserError unless the stand-ins can be built here: a known processor, a C++ compiler, nm."""
    if machine not in RETURN_ZERO:
        raise UserError(f"a dry run without CANN is possible on {' and '.join(RETURN_ZERO)}, not on {machine}: "
                        f"run it on such a machine, or install CANN")
    missing = [tool for tool in ("g++", "nm") if shutil.which(tool) is None]
    if missing:
        raise UserError(f"a dry run without CANN needs {' and '.join(missing)} to build stand-ins for its libraries: "
                        f"`apt install g++ binutils` (or `dnf install gcc-c++ binutils`), or install CANN")


def build(folder: Path, mindspore: Path, machine: str) -> None:
    """Write libraries (`cann/`) and a Python package (`python/`) into an empty folder; `mindspore` is the wheel's package."""
    libraries = folder / "cann"  # the plugin looks for this name in the path of a library, and throws if it is not there
    libraries.mkdir()
    (libraries / "zero.s").write_text(assembly(wanted_symbols(mindspore), machine), encoding="utf-8")
    (libraries / "status.cc").write_text(STATUS_FACTORY_SOURCE, encoding="utf-8")
    # the plugin was built with the old ABI of std::string
    _run("g++", "-D_GLIBCXX_USE_CXX11_ABI=0", "-fPIC", "-shared", "-o", "libcann.so", "zero.s", "status.cc", cwd=libraries)
    for name in LIBRARIES:
        (libraries / f"lib{name}.so").symlink_to("libcann.so")
    package = folder / "python" / "hccl"  # communication.init() imports it to read its version, and nothing else
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from . import sys_version\n", encoding="utf-8")
    (package / "sys_version.py").write_text("__sys_version__ = '8.5.0'\n", encoding="utf-8")


def wanted_symbols(mindspore: Path) -> list[str]:
    """Names that the wheel's Ascend libraries want and that neither the wheel nor the system defines: CANN's."""
    plugin = mindspore / "lib" / "plugin"
    # custom_* and *cpu_kernels.so run on the device's own processor; op_kernels are loaded onto the device
    ascend = [*plugin.glob("libmindspore*ascend.so*"), *(path for path in (plugin / "ascend").rglob("*.so") if not
              any(part.startswith("custom_") or part.endswith(("op_kernels", "cpu_kernels.so")) for part in path.parts))]
    # where the compiler finds the system's libraries; libpthread and libdl are empty or absent since glibc 2.34
    system = [path for name in SYSTEM if (path := Path(_run("g++", f"-print-file-name={name}").strip())).is_absolute()]
    wanted, defined = _symbols(ascend)
    defined |= _symbols([*mindspore.glob("*.so"), *mindspore.glob("lib/*.so*"), *system])[1]
    # a name with a version (@GLIBC_2.17) is one of the system's
    return sorted(name for name in wanted - defined if "@" not in name and not name.startswith(NOT_CANN))


def assembly(symbols: list[str], machine: str) -> str:
    """Assembler source (GNU as) in which all the symbols are names of one function that returns 0."""
    names = [f".globl {s}\n.type {s}, %function\n{s}:" for s in symbols if s != STATUS_FACTORY]
    return "\n".join([".text", ".balign 16", *names, f" {RETURN_ZERO[machine]}", '.section .note.GNU-stack, "", %progbits', ""])


def _symbols(libraries: list[Path]) -> tuple[set[str], set[str]]:
    """(wanted, defined) dynamic symbols of all the libraries together."""
    wanted, defined = set(), set()
    for line in _run("nm", "-D", "--no-demangle", *map(str, libraries)).splitlines():
        match line.split():
            case ["U" | "w" | "v", name]:  # the last two are weak: nobody says that they are not called
                wanted.add(name)
            case [_, _, name]:
                defined.add(name.partition("@")[0])
    return wanted, defined


def _run(*command: str, cwd: Path | None = None) -> str:
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if result.returncode:
        reason = (result.stderr.strip() or f"exit code {result.returncode}").splitlines()[-1]
        raise UserError(f"a dry run without CANN: stand-ins for its libraries cannot be built, {command[0]} failed: {reason}")
    return result.stdout
