"""The rooms' floors: no import goes up (see CONTRIBUTING.md)."""
import ast
import importlib
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAY_IMPORT = {
    "parallel": set(),
    "model": {"parallel"},
    "data": {"parallel"},
    "ckpt": {"parallel"},
    "eval": {"parallel", "model", "data"},
    "train": {"parallel", "model", "data", "ckpt", "eval"},
}
# Commands that need a checkpoint are named for what they do, and hand over to train.
COMMANDS = ("eval/__main__.py", "eval/lm_eval_adapter.py", "model/generate.py")


def imported_rooms(source: str) -> set[str]:
    """The rooms that a module imports, anywhere in it."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.append(node.module)
    return {name.split(".")[0] for name in names} & set(MAY_IMPORT)


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_no_import_goes_up(room):
    modules = sorted(p for p in (ROOT / room).rglob("*.py") if str(p.relative_to(ROOT)) not in COMMANDS)
    assert modules, f"{room}/ has no modules"
    wrong = [f"{path.relative_to(ROOT)} imports {up}" for path in modules
             for up in imported_rooms(path.read_text(encoding="utf-8")) - MAY_IMPORT[room] - {room}]
    assert not wrong


def test_the_check_can_fail():
    assert imported_rooms("def f():\n    from train.step import TrainStep\n") == {"train"}


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_each_room_says_what_lives_there_and_what_does_not(room):
    doc = importlib.import_module(room).__doc__
    assert "Lives here:" in doc and "Does not live here:" in doc


def test_every_package_is_installed():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"]
    found = {".".join(p.parent.relative_to(ROOT).parts) for room in MAY_IMPORT for p in (ROOT / room).rglob("__init__.py")}
    assert sorted(listed) == sorted(found)


def test_files_stay_small():
    long = {str(p.relative_to(ROOT)): n for room in (*MAY_IMPORT, "tests") for p in (ROOT / room).rglob("*.py")
            if (n := len(p.read_text(encoding="utf-8").splitlines())) > 400}
    assert not long, f"over 400 lines: {long}"
