"""The scripts' set-up and start, with an interpreter that only writes down how it was called."""
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ("bench.sh", "doctor.sh", "run_distributed.sh", "run_standalone.sh", "run_tests.sh", "tensorboard.sh")

FAKE_PYTHON = r"""#!/usr/bin/env bash
case "$1 $2" in
  "-c "*version_info*) echo "$FAKE_VERSION" ;;
  "-c "*prefix*) dirname "$(dirname "$0")" ;;
  "-c "*pip._vendor*) exit "${FAKE_LACKS-1}" ;;
  "-m venv") mkdir -p "${@: -1}/bin"; cp "$0" "${@: -1}/bin/python"; echo "venv" >>"$CALLS" ;;
  "-m pip")
    sleep "${FAKE_PIP_SECONDS-0}"; echo "pip ${*:3} in $PWD" >>"$CALLS"
    echo "pip's last words"; exit "${FAKE_PIP-0}" ;;
  *) { echo "start in $PWD"; printf '<%s>\n' "$@"; } >>"$CALLS" ;;
esac
"""


class Project:
    """A copy of the scripts, in a path with spaces, and a way to call them from elsewhere."""

    def __init__(self, folder: Path):
        self.root = (folder / "my project").resolve()
        self.elsewhere, self.calls = (folder / "some where").resolve(), folder / "calls"
        self.elsewhere.mkdir()
        shutil.copytree(ROOT / "run_scripts", self.root / "run_scripts")
        shutil.copy(ROOT / "pyproject.toml", self.root)
        self.python = folder / "active env" / "bin" / "python"
        self.python.parent.mkdir(parents=True)
        self.python.write_text(FAKE_PYTHON)
        self.python.chmod(0o755)
        self.default = str(self.root / "run_scripts/configs/smoke.yaml")

    def start(self, script: str, *arguments: str, **env: str) -> subprocess.Popen:
        inherited = {k: v for k, v in os.environ.items() if k not in ("MINDGPT_NO_VENV", "PYTHON")}
        return subprocess.Popen(
            ["bash", str(self.root / "run_scripts" / script), *arguments], cwd=self.elsewhere, text=True,
            env={**inherited, "PYTHON": str(self.python), "FAKE_VERSION": "3.11", "CALLS": str(self.calls), **env},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def run(self, script: str, *arguments: str, **env: str) -> tuple[int, str, str]:
        process = self.start(script, *arguments, **env)
        out, err = process.communicate(timeout=30)
        return process.returncode, out, err

    def called(self) -> list[str]:
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        self.calls.unlink(missing_ok=True)
        return lines


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_prints_the_usage_and_installs_nothing(project, script):
    code, out, err = project.run(script, "--help", PYTHON="/no/such/python")
    assert code == 0 and out.startswith(f"Usage: bash run_scripts/{script}") and "set -euo" not in out and not err
    assert not project.called()


@pytest.mark.parametrize("version", ["2.7", "3.10", "3.13", "4.11"])
def test_a_wrong_python_is_refused_in_one_line(project, version):
    code, out, err = project.run("run_distributed.sh", FAKE_VERSION=version)
    assert code == 2 and not out
    assert err == f"setup: PYTHON={project.python} is Python {version}: MindSpore needs >=3.11,<3.13\n"
    assert not project.called() and not (project.root / ".venv").exists()


def test_no_python_is_refused_in_one_line(project):
    code, _, err = project.run("run_tests.sh", PYTHON="/no/such/python")
    assert code == 2
    assert err == "setup: PYTHON=/no/such/python does not run: give the path of a Python >=3.11,<3.13\n"
    tools = project.root.parent / "tools"
    tools.mkdir()
    for name in ("bash", "dirname", "sed", "flock"):
        (tools / name).symlink_to(shutil.which(name))
    code, _, err = project.run("run_tests.sh", PYTHON="", PATH=str(tools))
    assert code == 2 and err.startswith("setup: no Python >=3.11,<3.13 found (tried python3.12 ")
    assert err.count("\n") == 1


def test_the_set_up_happens_once(project):
    code, _, err = project.run("run_distributed.sh")
    assert code == 0, err
    assert project.called() == ["venv", f"pip install -e . in {project.root}", f"start in {project.elsewhere}",
                                "<-m>", "<train.launch>", "<--config>", f"<{project.default}>"]
    assert [line.split(":")[0] for line in err.splitlines()] == ["setup"] * 3
    assert project.run("run_distributed.sh") == (0, "", "")
    assert project.called()[0].startswith("start")


def test_extras_add_up_and_a_changed_project_is_installed_again(project):
    project.run("run_distributed.sh")
    project.called()
    assert project.run("run_tests.sh", "-k", "a b", "tests/model")[0] == 0
    assert project.called() == [f"pip install -e .[test] in {project.root}", f"start in {project.root}",
                                "<-m>", "<pytest>", "<-k>", "<a b>", "<tests/model>"]
    for script in ("run_distributed.sh", "run_tests.sh"):
        assert project.run(script)[0] == 0
        assert not [line for line in project.called() if line.startswith("pip")]
    with (project.root / "pyproject.toml").open("a") as file:
        file.write("\n# changed\n")
    assert project.run("run_standalone.sh")[0] == 0
    assert project.called()[0].startswith("pip install")


@pytest.mark.parametrize("script, extra", [("run_distributed.sh", []), ("run_standalone.sh", ["<--standalone>"])])
def test_arguments_are_passed_on(project, script, extra):
    head = [f"start in {project.elsewhere}", "<-m>", "<train.launch>", *extra, "<--config>"]
    for arguments, config in [(["my config.yaml", "--set", "run.name=a b", "train.lr=1"], "<my config.yaml>"),
                              (["--set", "run.name=a b", "train.lr=1"], f"<{project.default}>")]:
        assert project.run(script, *arguments)[0] == 0
        assert project.called()[-len(head) - 4:] == [*head, config, "<--set>", "<run.name=a b>", "<train.lr=1>"]


def test_a_supervised_run_and_one_on_many_hosts(project):
    assert project.run("run_distributed.sh", "my.yaml", "--supervise", "--set", "run.name=a b")[0] == 0
    assert project.called()[-6:] == ["<-m>", "<train.supervise>", "<--config>", "<my.yaml>", "<--set>", "<run.name=a b>"]
    assert project.run("run_distributed.sh", "--hostfile", "my hosts", "my.yaml", "--supervise")[0] == 0
    script = f"<{project.root}/run_scripts/run_distributed.sh>"
    assert project.called()[-7:] == ["<-m>", "<train.hosts>", "<my hosts>", "<bash>", script, "<my.yaml>", "<--supervise>"]
    code, _, err = project.run("run_distributed.sh", "--hostfile")
    assert code == 2 and err == "setup: --hostfile needs a file\n"


def test_the_active_environment_can_be_used(project):
    code, _, err = project.run("run_distributed.sh", MINDGPT_NO_VENV="1", PYTHON="",
                               PATH=f"{project.python.parent}:{os.environ['PATH']}")
    assert code == 0, err
    assert project.called()[0] == f"pip install -e . in {project.root}"
    assert not (project.root / ".venv").exists() and (project.python.parents[1] / ".mindgpt-setup").exists()


def test_an_environment_that_has_all_fetches_nothing(project):
    path = f"{project.python.parent}:{os.environ['PATH']}"
    code, _, err = project.run("run_distributed.sh", MINDGPT_NO_VENV="1", PYTHON="", PATH=path, FAKE_LACKS="0",
                               CDPATH=".:/tmp")
    assert code == 0, err
    assert project.called()[0] == f"pip install --no-deps --no-build-isolation -e . in {project.root}"


def test_a_failed_installation_is_shown_and_tried_again(project):
    code, _, err = project.run("run_distributed.sh", FAKE_PIP="1")
    assert code == 1 and "pip's last words\nsetup: the installation failed" in err
    assert not [line for line in project.called() if line.startswith("start")]
    assert project.run("run_distributed.sh")[0] == 0
    assert project.called()[0].startswith("pip install")


def test_two_scripts_started_at_once_install_once(project):
    first = project.start("run_distributed.sh", FAKE_PIP_SECONDS="1")
    second = project.start("run_distributed.sh", FAKE_PIP_SECONDS="1")
    errors = first.communicate(timeout=30)[1] + second.communicate(timeout=30)[1]
    assert (first.returncode, second.returncode) == (0, 0)
    called = project.called()
    assert called.count("venv") == 1 and len([line for line in called if line.startswith("pip")]) == 1
    assert len([line for line in called if line.startswith("start")]) == 2
    assert "another set-up is at work" in errors


def test_another_python_than_the_one_of_the_environment_is_refused(project):
    project.run("run_distributed.sh")
    inside = project.root / ".venv/bin/python"
    inside.write_text(inside.read_text().replace("$FAKE_VERSION", "3.12"))
    code, _, err = project.run("run_distributed.sh")
    assert code == 2 and "is not the Python 3.12 of" in err and err.count("\n") == 1


def test_tensorboard_finds_the_run(project):
    code, _, err = project.run("tensorboard.sh", "nope")
    assert code == 2 and f"there is no run in {project.root}/runs/nope yet" in err
    (project.root / "runs/smoke").mkdir(parents=True)
    assert project.run("tensorboard.sh", "smoke", "--port", "1")[0] == 0
    folder = f"<{project.root}/runs/smoke>"
    assert project.called()[-5:] == ["<tensorboard.main>", "<--logdir>", folder, "<--port>", "<1>"]


def test_the_benchmark_has_its_extra(project):
    assert project.run("bench.sh", "--quick")[0] == 0
    assert project.called() == ["venv", f"pip install -e .[bench] in {project.root}", f"start in {project.elsewhere}",
                                f"<{project.root}/tests/bench/bench.py>", "<--quick>"]
