"""python -m train.report RUN [--output FILE]: report.html of a run, one file that works offline; also while the run goes on.

Reads the run's folder, wherever it was written; needs neither MindSpore's devices nor the data.
"""
import argparse
import sys
from pathlib import Path

from parallel.errors import UserError
from parallel.files import replace_text
from train.console import say, shown
from train.reporting.page import page
from train.reporting.reading import read

FILE = "report.html"


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m train.report", description=__doc__.partition(": ")[2].partition("\n")[0])
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's folder, runs/<name>")
    parser.add_argument("--output", type=Path, metavar="FILE", help=f"where to write it; default: RUN/{FILE}")
    options = parser.parse_args(arguments)
    try:
        target = options.output or options.run / FILE
        if target.is_dir() or not target.parent.is_dir():
            raise UserError(f"--output {target}: give a file in a folder that exists" if options.output else
                            f"{options.run}: no such folder: give the folder of a run, such as runs/smoke")
        found = read(options.run)
        try:
            replace_text(target, page(found))
        except OSError as error:
            raise UserError(f"{target}: cannot be written ({error.strerror}): give another place by --output") from None
        for problem in found.problems:
            print(f"not used: {problem}", file=sys.stderr)
        print(f"written to {shown(target)}")
        return 0
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def write_page(run: Path) -> None:
    """The page beside the run's report.json. Whatever goes wrong with it is said in a line, and ends no run."""
    try:
        replace_text(run / FILE, page(read(run)))
    except Exception as error:  # a run of days must not fail by a picture of it
        say(f"  note         {FILE} could not be written ({type(error).__name__}: {error}); later: python -m train.report "
            f"{shown(run)}")


if __name__ == "__main__":
    sys.exit(main())
