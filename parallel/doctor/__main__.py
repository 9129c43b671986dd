"""The command: bash run_scripts/doctor.sh. Exit code 1 if a check has failed, else 0."""
from __future__ import annotations  # for Python 3.8

import argparse
import importlib.metadata
import json
import os
import sys
from pathlib import Path

from parallel.doctor import ascend, machine, nodes
from parallel.doctor.result import FAILED, OK, WARNING, Result


def main(arguments: list[str] | None = None) -> int:
    """Run all checks and print a line for each."""
    parser = argparse.ArgumentParser("doctor.sh", description="Is this machine fit to train? One line for each check.")
    parser.add_argument("--runs", type=Path, default=machine.ROOT / "runs", metavar="DIR",
                        help="run.dir of the run; all nodes see it")
    parser.add_argument("--data", type=Path, default=machine.ROOT / "data" / "prepared", metavar="DIR",
                        help="data.prepared_dir of the run")
    parser.add_argument("--min-free-gb", type=float, default=5.0, metavar="GB", help="less free disk than this is a failure (5)")
    parser.add_argument("--wait", type=float, default=60.0, metavar="S", help="seconds to wait for the other nodes (60)")
    parser.add_argument("--json", action="store_true", help="print a list of {check, state, found, advice}")
    options = parser.parse_args(arguments)
    results = look(options)
    counts = {state: sum(result.state == state for result in results) for state in (OK, WARNING, FAILED)}
    if options.json:
        print(json.dumps([result._asdict() for result in results], indent=1, ensure_ascii=False))
    else:
        print(*results, sep="\n")
        print(f"{counts[OK]} ok, {counts[WARNING]} warning(s), {counts[FAILED]} failed")
    return 1 if counts[FAILED] else 0


def look(options: argparse.Namespace) -> list[Result]:
    """All checks, in the order in which to mend what they find."""
    env, wanted = os.environ, machine.project()[1]
    results = [machine.python(env), machine.compiler(env), *machine.packages(wanted), *ascend.checks(env),
               machine.disk("runs", options.runs, options.min_free_gb), machine.disk("data", options.data, options.min_free_gb),
               machine.memory(), machine.shared_memory(), machine.limits(), machine.clock(options.runs), machine.port(env)]
    same = {"Python": "{}.{}".format(*sys.version_info[:2]), "mindspore": _installed("mindspore"), "numpy": _installed("numpy")}
    same.update((r.check, r.found if r.state == OK else r.state) for r in results if r.check in ("cards", "driver", "cann"))
    return results + nodes.checks(env, options.runs, options.wait, same)


def _installed(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


if __name__ == "__main__":
    sys.exit(main())
