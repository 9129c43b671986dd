"""The worked examples of the rooms' READMEs: each is made in a copy of the project, held against the linter, and run."""
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from train.config import load_config
from train.new_project import tree

ROOT = Path(__file__).parents[1]
ROOMS = ("model", "data", "eval", "ckpt", "train", "parallel", "run_scripts", "pyproject.toml")


def examples() -> dict[str, str]:
    """What each is about -> its section."""
    found = {}
    for page in sorted(ROOT.glob("*/README.md")):
        for section in re.split(r"^#+ ", page.read_text(encoding="utf-8"), flags=re.M):
            if section.startswith("Example: "):
                found[section.partition("\n")[0].removeprefix("Example: ")] = section
    return found


def blocks(section: str, language: str) -> list[str]:
    """Its fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", section, re.S | re.M)


def change(folder: Path, diff: str) -> list[str]:
    """Make the changes of a diff without line numbers: what it takes away or goes by must stand in the file exactly once.

    Lines may be cut short at the end of what stands there. Returns the changed files.
    """
    changed = []
    for part in re.split(r"^(?=--- )", diff, flags=re.M)[1:]:
        head, *hunks = re.split(r"^@@\n", part, flags=re.M)
        old, new = re.fullmatch(r"--- (\S+)\n\+\+\+ (\S+)\n", head).groups()
        text = "" if old == "/dev/null" else (folder / new).read_text(encoding="utf-8")
        for hunk in hunks:
            before, after = ("".join(f"\n{line[1:]}" for line in hunk.splitlines() if line[0] in kind) for kind in (" -", " +"))
            assert f"\n{text}".count(before) == 1 or not text, f"{new}: not once there:{before}"
            text = f"\n{text}".replace(before, after, 1)[1:] if text else f"{after[1:]}\n"
        (folder / new).write_text(text, encoding="utf-8")
        changed.append(new)
    return changed


def test_there_is_an_example_of_everything_that_a_fork_adds():
    assert set(examples()) == {"a metric", "a task", "a model block", "a health rule", "a dataset"}


@pytest.mark.parametrize("name", examples())
def test_example(name, tmp_path):
    section, changed = examples()[name], []
    for path in tree(ROOT):
        if path.parts[0] in ROOMS:
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, tmp_path / path)
    for diff in blocks(section, "diff"):
        changed += change(tmp_path, diff)
    code, = blocks(section, "python")
    for command in (["-m", "ruff", "check", "--no-cache", *changed], ["-c", code]):
        env = {**{key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}, "GLOG_v": "3"}
        done = subprocess.run([sys.executable, *command], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_config_of_the_page_for_forks_loads(tmp_path):
    text, = blocks((ROOT / "train" / "CUSTOMIZE.md").read_text(encoding="utf-8"), "yaml")
    shutil.copytree(ROOT / "run_scripts" / "configs", tmp_path / "run_scripts" / "configs")
    path = tmp_path / "run_scripts" / "configs" / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    config, smoke = load_config(path), load_config(path.parent / "smoke.yaml")
    assert config.run.name == "mine" and config.data.path == tmp_path / "my_text" and config.data.valid_path is None
    assert config.train.lr == 6e-4 and config.train.warmup_steps == smoke.train.warmup_steps and config.model == smoke.model


def test_the_page_for_forks_names_what_there_is():
    text = (ROOT / "train" / "CUSTOMIZE.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:\w+/)+[\w.]*)`", text)
    assert [name for name in named if not (ROOT / name).exists()] == ["run_scripts/configs/mine.yaml"] and len(named) > 15
    for page, heading in re.findall(r"\]\(\.\./([\w/.]+)#([\w-]+)\)", text):
        titles = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(encoding="utf-8"), re.M)
        assert heading in [re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles]
