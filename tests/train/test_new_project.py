"""A project made from this one: what is copied, under which name, what is refused; and that the copy works."""
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest

from parallel.errors import UserError
from train.new_project import AS_THEY_ARE, LONGEST_NAME, files_of, ignored, main, new_project, tree

ROOT = Path(__file__).parents[2]
LONGEST, PACKAGE = "Very-Long_Project-Name42", "very-long-project-name42"


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A copy, in a path with a space, under the longest name."""
    assert len(LONGEST) == LONGEST_NAME
    folder = tmp_path_factory.mktemp("new project") / "a" / "b"
    assert main([str(folder), "--name", LONGEST]) == 0
    return folder


def run(folder: Path, *command: str, **env: str) -> str:
    """A command in a project's folder, with this environment's packages and the project's own rooms; it must succeed."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "PYTHON"))}
    done = subprocess.run(command, cwd=folder, env={**inherited, "GLOG_v": "3", **env}, capture_output=True, text=True,
                          timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_nothing_of_the_old_name_is_left(project):
    name = re.compile(rb"(?<![a-z0-9])mindgpt(?![a-z0-9])", re.I)
    old = {path for path in files(project) if name.search((project / path).read_bytes())}
    assert {path for path in old if not path.startswith(AS_THEY_ARE)} <= {"CHANGELOG.md"}  # it says where this comes from
    title = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
    assert (project / "CHANGELOG.md").read_text() == f"# Changelog\n\n## 0.1.0 (unreleased)\n\n- Made from {title} 0.1.0.\n"
    for name, text in {"README.md": f"# {LONGEST}\n", "README_zh.md": f"# {LONGEST}\n", "pyproject.toml": f'name = "{PACKAGE}"\n',
                       "run_scripts/setup.sh": f"{PACKAGE.replace('-', '_').upper()}_NO_VENV=1"}.items():
        assert text in (project / name).read_text(encoding="utf-8")
    for name in ("NOTICE", "data/corpus/train_zh.txt", ".github/images/console.png"):
        assert (project / name).read_bytes() == (ROOT / name).read_bytes()


@pytest.mark.skipif(not (ROOT / ".git").exists() or not shutil.which("git"), reason="no git here")
def test_the_copy_has_what_git_has(project):
    known = run(ROOT, "git", "ls-files", "--cached", "--others", "--exclude-standard", "-z").split("\0")
    assert files(project) == {name for name in known if name and (ROOT / name).exists()}


def test_the_copy_passes_its_own_quick_tests(project):
    readme = [f"tests/end_to_end/test_readme.py::{name}" for name in (
        "test_the_readmes_say_the_same", "test_pictures_and_links_exist", "test_every_command_is_run_below")]
    run(project, sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", "tests/test_floors.py",
        "tests/test_style.py", *readme)
    out = run(project, sys.executable, "-m", "train", "--config", "run_scripts/configs/gpt_13b.yaml", "--print-config")
    assert f"dir: {project / 'runs'}" in out


def test_the_copy_trains(project, tiny_yaml, tmp_path):
    out = run(project, sys.executable, "-m", "train", "--config", str(tiny_yaml), "--set", f"run.dir={tmp_path}",
              "train.total_steps=2", "train.warmup_steps=0", "model.num_layers=1", "health.enabled=false",
              "eval.stage.enabled=false", "eval.deep.enabled=false",
              CXX="/no/such/compiler")  # its cache of compiled operators is a new one
    assert "done: 2 of 2 steps" in out and (tmp_path / "tiny" / "checkpoints" / "step_00000002").is_dir()


@pytest.mark.long
def test_the_copys_own_two_commands(tmp_path):
    """As its README tells, in a .venv of its own, which sees this environment's packages, so that little is installed."""
    folder = tmp_path / "copy"
    new_project(ROOT, folder, LONGEST)
    run(folder, sys.executable, "-m", "venv", ".venv")
    site = next((folder / ".venv" / "lib").glob("python*/site-packages"))
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    (site / "shared.pth").write_text(packages + "\n", encoding="utf-8")
    out = run(folder, "bash", "run_scripts/run_distributed.sh", "--set", "train.total_steps=8", "train.warmup_steps=0")
    assert "done: 8 of 8 steps" in out and (folder / "runs" / "smoke" / "report.json").exists()
    out = run(folder, "bash", "run_scripts/run_tests.sh", "-n", "0", "tests/test_floors.py", "tests/test_style.py", "tests/data")
    assert re.search(r"\d+ passed", out)
    again = folder.parent / "again"
    run(folder, ".venv/bin/python", "-m", "train.new_project", str(again), "--name", "Grandchild")  # a copy of the copy
    assert files(again) == files(project_files(folder)) and (again / "README.md").read_text().startswith("# Grandchild\n")


def project_files(folder: Path) -> Path:
    """The folder without what its commands have made."""
    for made in (".venv", "runs", "data/prepared", ".pytest_cache", ".ruff_cache"):
        shutil.rmtree(folder / made, ignore_errors=True)
    for path in [*folder.rglob("__pycache__"), *folder.glob("*.egg-info")]:
        shutil.rmtree(path)
    (folder / ".setup.lock").unlink(missing_ok=True)
    return folder


@pytest.fixture
def small(tmp_path):
    """A tree of a few files, some of which are nobody's: enough of a project, and without git."""
    for name, text in {
        "pyproject.toml": '[project]\nname = "mini"\nversion = "1.2"\ndependencies = ["numpy<2"]\n',
        "README.md": "# Mini\n\nMini.\n", "train/a.py": "MINI_X = 'mini-x', 'minimum'\n",
        ".gitignore": "# ours\nruns/\n*.log\nrank_*/\n/build\ndata/prepared/\n__pycache__/\n!kept.log\n",
        "runs/smoke/x.txt": "", "a/b.log": "", "kept.log": "", "rank_0/y": "", "build/z": "", "a/build/z": "", "a/rank_1": "",
        "data/prepared/t": "", "mine/metrics.jsonl": "", "out/manifest.json": "", ".git/config": "",
        "train/__pycache__/a.pyc": "",
    }.items():
        path = tmp_path / "mini" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "mini" / "link").symlink_to("/etc")
    (tmp_path / "mini" / "train" / "a.py").chmod(0o755)
    return tmp_path / "mini"


def test_what_stays_behind(small, tmp_path):
    count = new_project(small, tmp_path / "new", "Big-One")
    assert files(tmp_path / "new") == {"pyproject.toml", "README.md", ".gitignore", "CHANGELOG.md", "train/a.py", "kept.log",
                                       "a/build/z", "a/rank_1"} and count == 7
    assert (tmp_path / "new/train/a.py").read_text() == "BIG_ONE_X = 'big-one-x', 'minimum'\n"
    assert (tmp_path / "new/train/a.py").stat().st_mode & 0o111 == 0o111
    assert (tmp_path / "new/README.md").read_text() == "# Big-One\n\nBig-One.\n"


@pytest.mark.parametrize(("path", "folder", "rules", "expected"), [
    ("a/x.pyc", False, ["*.pyc"], True), ("runs", False, ["runs/"], False), ("runs", True, ["runs/"], True),
    ("a/runs", True, ["runs/"], True), ("a/runs", True, ["/runs"], False), ("data/prepared", True, ["data/prepared/"], True),
    ("x/data/prepared", True, ["data/prepared/"], False), ("a.log", False, ["*.log", "!a.log"], False),
    ("Runs", True, ["runs"], False),
])
def test_gitignore(path, folder, rules, expected):
    assert ignored(PurePosixPath(path), folder, rules) is expected


@pytest.mark.parametrize(("name", "says"), [
    ("", "allowed are letters"), ("a b", "allowed are letters"), ("9x", "allowed are letters"), ("x-", "allowed are letters"),
    ("../x", "allowed are letters"), ("x" * 25, "24 characters at most"), ("数", "allowed are letters"),
    ("NumPy", "a package that the project needs"), ("train", "a word of "), ("GPT", "a word of "), ("Model", "a word of "),
])
def test_a_name_that_cannot_be_is_refused_in_one_line(name, says, tmp_path, capsys):
    assert main([str(tmp_path / "x"), f"--name={name}"]) == 2
    out, error = capsys.readouterr()
    assert error.startswith("error: --name ") and says in error and error.count("\n") == 1 and not out
    assert not list(tmp_path.iterdir())


def test_of_a_clone_what_git_does_not_track_stays_behind(small, tmp_path):
    shutil.rmtree(small / ".git")
    for command in (["init", "-q"], ["add", "pyproject.toml", "README.md", ".gitignore", "train/a.py"]):
        subprocess.run(["git", "-C", str(small), *command], check=True)
    copied, left = files_of(small)
    assert set(map(str, copied)) == {"pyproject.toml", "README.md", ".gitignore", "train/a.py"}
    assert set(map(str, left)) == {"kept.log", "a/build/z", "a/rank_1"}
    os.mkfifo(small / "pipe")  # which nobody could read to its end
    assert new_project(small, tmp_path / "new", "Big") == 4


def test_the_name_is_the_first_heading(small, tmp_path):
    (small / "README.md").write_text("\n[badge](x)\n\n# Mini\n\nMini.\n")
    new_project(small, tmp_path / "new", "Big")
    assert (tmp_path / "new/README.md").read_text() == "\n[badge](x)\n\n# Big\n\nBig.\n"
    (small / "README.md").unlink()
    new_project(small, tmp_path / "newer", "Big")
    assert (tmp_path / "newer/pyproject.toml").read_text().startswith('[project]\nname = "big"')


def test_a_target_is_taken_as_the_shell_would_have_it(small, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(small)
    new_project(small, Path("~/new"), "Big")
    assert (tmp_path / "new" / "README.md").exists() and not (small / "~").exists()
    (tmp_path / "nothing").symlink_to(tmp_path / "absent")
    with pytest.raises(UserError, match="a link to nothing"):
        new_project(small, tmp_path / "nothing", "Big")
    assert (tmp_path / "nothing").is_symlink()


def test_a_target_in_use_is_refused(small, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "file").touch()
    for target, says in ((tmp_path / "full", "is not empty"), (tmp_path / "file", "is a file"), (small, "lies in the project"),
                         (tmp_path / "file" / "x", "is a file"), (small / "new", "lies in the project")):
        with pytest.raises(UserError, match=says):
            new_project(small, target, "Big")
    (tmp_path / "empty").mkdir()
    assert new_project(small, tmp_path / "empty", "Big") == 7
    shutil.rmtree(tmp_path / "empty")
    (small / "pyproject.toml").unlink()
    with pytest.raises(UserError, match="an installed copy"):
        new_project(small, tmp_path / "empty", "Big")


def test_a_copy_that_fails_leaves_nothing(small, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    for target in (tmp_path / "empty", tmp_path / "new"):
        with monkeypatch.context() as patch:
            patch.setattr(shutil, "copymode", full_at_the_fourth())
            with pytest.raises(UserError, match="No space left"):
                new_project(small, target, "Big")
    assert not list((tmp_path / "empty").iterdir()) and not (tmp_path / "new").exists()


def full_at_the_fourth():
    calls = iter(range(100))

    def copymode(*_):
        if next(calls) == 3:
            raise OSError(28, "No space left on device")
    return copymode


def test_the_tree_is_told_in_one_order():
    assert list(tree(ROOT)) == list(tree(ROOT)) and PurePosixPath("train/new_project.py") in tree(ROOT)
