"""A project of your own, made from this one: the same tree under another name.

    python -m train.new_project DIR --name NAME

Of a clone what git tracks is copied, and what it neither tracks nor ignores is told; of a copy without history what .gitignore
does not name. Runs and prepared data stay behind. train/CUSTOMIZE.md tells what to change then. Exit codes: 0 it is there, 2 the
name or the folder cannot be, and nothing was written.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from parallel.errors import UserError
from train.sources import ROOT

NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*([-_][A-Za-z0-9]+)*")
SHOWN = 5  # files left behind that are named
LONGEST_NAME = 24  # characters; lines with the name in them stay within the linter's length
LEFTOVERS = ("metrics.jsonl", "manifest.json")  # what a run's folder holds, and a folder of prepared data, wherever it lies
AS_THEY_ARE = ("LICENSE", "NOTICE", "data/corpus", "eval/items")  # the work of others, and what says so
CODE = (".py", ".sh", ".toml", ".yaml")


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m train.new_project", description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, metavar="DIR", help="where it goes; empty, or not there yet")
    parser.add_argument("--name", required=True, help=f"its name: letters, digits, - and _, {LONGEST_NAME} characters at most")
    args = parser.parse_args(arguments)
    try:
        count, left = new_project(ROOT, args.folder, args.name), files_of(ROOT)[1]
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if left:
        shown = ", ".join(map(str, left[:SHOWN])) + (f" and {len(left) - SHOWN} more" if len(left) > SHOWN else "")
        print(f"left behind, since git does not track them: {shown}")
    print(f"{args.name}: {count} files in {args.folder}\n\n  cd {args.folder}\n"
          "  git init && git add -A && git commit -m 'First'\n  bash run_scripts/run_tests.sh\n"
          "  bash run_scripts/run_distributed.sh\n\nWhat to change where: train/CUSTOMIZE.md")
    return 0


def new_project(source: Path, target: Path, name: str) -> int:
    """Copy a project's tree under another name. Returns the number of files.

    Raises UserError, with nothing left behind, where the name or the target cannot be.
    """
    if not (source / "pyproject.toml").exists():
        raise UserError(f"{source} is no project's tree, but an installed copy: start this from a clone of the repository")
    project = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    target = target.expanduser()
    refuse_name(name, project)
    refuse_target(source, target)
    there, files = target.exists(), files_of(source)[0]
    title = title_of(source / "README.md") or project["name"]
    names = {old.encode(): new.encode() for old, new in zip(forms(title, project["name"]), forms(name, plain(name)), strict=True)}
    refuse_words(source, files, list(names.values()), name)
    try:
        for path in files:
            copy(source / path, target / path, {} if any(map(path.is_relative_to, AS_THEY_ARE)) else names)
        (target / "CHANGELOG.md").write_text(f"# Changelog\n\n## {project['version']} (unreleased)\n\n- Made from {title} "
                                             f"{project['version']}.\n", encoding="utf-8")
    except OSError as error:
        for path in list(target.iterdir()) if there else [target]:
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        raise UserError(f"{target}: cannot be written: {error.strerror}") from None
    return len(files)


def files_of(root: Path) -> tuple[list[PurePosixPath], list[PurePosixPath]]:
    """The files of a project, relative to it; and in a clone those that git neither tracks nor ignores."""
    known, tracked = list(tree(root)), tracked_by_git(root)
    return [p for p in known if tracked is None or p in tracked], [p for p in known if tracked is not None and p not in tracked]


def title_of(readme: Path) -> str:
    """Its first heading; "" if there is none."""
    lines = readme.read_text(encoding="utf-8").splitlines() if readme.is_file() else []
    return next((line.removeprefix("# ").strip() for line in lines if line.startswith("# ")), "")


def tracked_by_git(root: Path) -> set[PurePosixPath] | None:
    """The files of a clone; None where this is none, or git cannot say."""
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(["git", "-C", str(root), "ls-files", "-z"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return {PurePosixPath(os.fsdecode(name)) for name in done.stdout.split(b"\0") if name} or None


def refuse_name(name: str, project: dict) -> None:
    """Raise UserError for what cannot be the name of a project, or is that of a package which it needs."""
    if not NAME.fullmatch(name) or len(name) > LONGEST_NAME:
        raise UserError(f"--name {name}: allowed are letters, digits, and - or _ between them, a letter first, "
                        f"{LONGEST_NAME} characters at most")
    extras = project.get("optional-dependencies", {}).values()
    needed = {plain(re.match(r"[\w.-]+", one)[0]) for one in [*project["dependencies"], *(one for of in extras for one in of)]}
    if plain(name) in needed:
        raise UserError(f"--name {name}: this is a package that the project needs: choose another name")


def refuse_target(source: Path, target: Path) -> None:
    """Raise UserError for a target that is in use, or inside the source."""
    path = target.resolve()
    if target.is_symlink() and not target.exists():
        raise UserError(f"{target} is a link to nothing: name a folder that is empty or not there yet")
    if path.is_relative_to(source.resolve()):
        raise UserError(f"{target} lies in the project that is to be copied: name a folder outside of it")
    for place in (path, *path.parents):
        if place.exists():
            if not place.is_dir():
                raise UserError(f"{target}: {place} is a file: name a folder that is empty or not there yet")
            if not os.access(place, os.W_OK):
                raise UserError(f"{target}: {place} cannot be written to: name another folder")
            break
    if path.exists() and any(path.iterdir()):
        raise UserError(f"{target} is not empty: name a folder that is empty or not there yet")


def plain(name: str) -> str:
    """As packages' names are compared: small letters, - for _ and dots."""
    return re.sub(r"[-_.]+", "-", name).lower()


def forms(title: str, package: str) -> tuple[str, str, str]:
    """A name as a title, as a package, and as names of environment variables begin."""
    return title, package, plain(package).replace("-", "_").upper()


def words(names: Iterable[bytes]) -> re.Pattern[bytes]:
    """Finds these where they are words, or parts of one between - and _."""
    return re.compile(rb"(?<![A-Za-z0-9])(" + b"|".join(map(re.escape, names)) + rb")(?![A-Za-z0-9])")


def refuse_words(source: Path, files: list[PurePosixPath], names: list[bytes], name: str) -> None:
    """Raise UserError where a new name stands in the code already: nobody could tell it from the project's later."""
    for path in files:
        if path.suffix in CODE and path.parts[0] != "tests" and words(names).search((source / path).read_bytes()):
            raise UserError(f"--name {name}: this is a word of {path}, from which the project's name could not be told: choose "
                            "another name")


def copy(source: Path, target: Path, names: dict[bytes, bytes]) -> None:
    """A file with its mode; text (no byte of it is 0) with the names replaced."""
    target.parent.mkdir(parents=True, exist_ok=True)
    content = source.read_bytes()
    if names and b"\0" not in content:
        content = words(names).sub(lambda found: names[found[0]], content)
    target.write_bytes(content)
    shutil.copymode(source, target)


def tree(root: Path) -> Iterator[PurePosixPath]:
    """The files of a project, relative to it, by its .gitignore; symbolic links are left out."""
    rules = ignore_rules(root / ".gitignore")
    for folder, folders, files in os.walk(root):
        here = PurePosixPath(Path(folder).relative_to(root).as_posix())
        folders[:] = sorted(name for name in folders if name != ".git" and not Path(folder, name).is_symlink()
                            and not ignored(here / name, True, rules)
                            and not any(Path(folder, name, left).exists() for left in LEFTOVERS))
        for name in sorted(files):
            if name != ".git" and plain_file(Path(folder, name)) and not ignored(here / name, False, rules):
                yield here / name


def plain_file(path: Path) -> bool:
    """No link, pipe or device."""
    return path.is_file() and not path.is_symlink()


def ignore_rules(path: Path) -> list[str]:
    """The patterns of a .gitignore."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [line.rstrip() for line in lines if line.strip() and not line.startswith("#")]


def ignored(path: PurePosixPath, is_folder: bool, rules: list[str]) -> bool:
    """Whether git would ignore a path whose folders it does not. Of .gitignore's language all but `**` is known."""
    last = False
    for rule in rules:
        pattern = rule.removeprefix("!")
        if pattern.endswith("/") and not is_folder:
            continue
        parts = pattern.strip("/").split("/")
        against = path.parts if "/" in pattern.rstrip("/") else path.parts[-1:]
        if len(parts) == len(against) and all(map(fnmatchcase, against, parts)):
            last = not rule.startswith("!")
    return last


if __name__ == "__main__":
    sys.exit(main())
