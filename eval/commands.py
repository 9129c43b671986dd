"""python -m eval compare | export-human | import-human: what works on reports, without a model."""
import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from eval.answers import Answer
from eval.comparison.compare import compare
from eval.comparison.reports import read_report, series
from eval.comparison.trends import plot
from eval.judges.human import export_human, import_human
from parallel.errors import UserError
from parallel.files import check_file

NAMES = ("compare", "export-human", "import-human")


def main(arguments: list[str]) -> int:
    """One of the commands. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m eval")
    commands = parser.add_subparsers(required=True, dest="command")
    one = commands.add_parser("compare", help="two runs, or two reports, metric by metric")
    one.add_argument("a", type=Path, help="a run's folder, one of its checkpoints, or one report")
    one.add_argument("b", type=Path, help="what is held against it")
    one.add_argument("--all", action="store_true", help="every figure, also those that are equal, with why one has no interval")
    one.add_argument("--plot", type=Path, metavar="PNG", help="draw every metric over both runs (needs the extra `plot`)")
    one.add_argument("--report", type=Path, metavar="FILE", help="write the comparison as JSON")
    one = commands.add_parser("export-human", help="a sheet with the samples of reports, for people to rate")
    one.add_argument("folder", type=Path, help="where the sheet goes")
    one.add_argument("reports", type=Path, nargs="+", help="reports of the tier deep, one for each model")
    one.add_argument("--seed", type=int, default=0, help="of the order of the samples")
    one = commands.add_parser("import-human", help="the ratings of a sheet")
    one.add_argument("folder", type=Path, help="where the sheet was exported to")
    one.add_argument("ratings", type=Path, nargs="+", help="files that raters saved")
    options = parser.parse_args(arguments)
    try:
        {"compare": run_compare, "export-human": run_export, "import-human": run_import}[options.command](options)
        return 0
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def run_compare(options: argparse.Namespace) -> None:
    """A table, and what the figures of a run say against one another."""
    runs = [path for path in (options.a, options.b) if (path / "eval").is_dir()]
    if options.plot and len(runs) < 2:
        raise UserError("--plot draws runs over their steps: give two runs' folders")
    check_file("--plot", options.plot)
    check_file("--report", options.report)
    found = compare(options.a, options.b)
    print(found.text(everything=options.all))
    if options.plot:
        runs = [(path, series(path)) for path in runs]
        plot(runs[0][1], runs[1][1], options.plot, (options.a.name, options.b.name))
    if options.report:
        options.report.write_text(json.dumps(asdict(found), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def run_export(options: argparse.Namespace) -> None:
    """Writes the sheet."""
    export_human({str(path): answers_in(path) for path in options.reports}, options.folder, options.seed)
    print(f"rate {options.folder / 'sheet.html'} in a browser, then: python -m eval import-human {options.folder} RATINGS ...")


def answers_in(path: Path) -> list[Answer]:
    """The samples of a report. Raises UserError if it has none."""
    try:
        return [Answer(**text) for text in read_report(path)["deep"]["samples"]["texts"]]
    except (KeyError, TypeError):
        raise UserError(f"{path}: a report without texts; give one of the tier deep") from None


def run_import(options: argparse.Namespace) -> None:
    """Prints the ratings as JSON."""
    print(json.dumps(import_human(options.folder, options.ratings), indent=1, ensure_ascii=False))
