"""Every command of the README runs, and the Chinese one has the same headings, commands and pictures."""
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from train.launch import free_port

ROOT = Path(__file__).parents[2]
SMOKE = "run_scripts/configs/smoke.yaml"
# Enough of a run to use every part; the size of the run itself is not what a reader's command depends on.
SHORT = "train.total_steps=4 train.warmup_steps=0 eval.stage.every=0.5 eval.stage.num_batches=1 eval.deep.max_new_tokens=2 " \
        "eval.stage.max_questions=4 eval.deep.samples=1 eval.deep.instructions=false eval.deep.safety=false"


def blocks(name: str) -> list[str]:
    return re.findall(r"```bash\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), re.S)


def commands(name: str) -> list[str]:
    return [line for block in blocks(name) for line in block.splitlines() if line]


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    """Runs a command in this environment and in the project's folder, its runs in a folder of the test."""
    folder = tmp_path_factory.mktemp("read me")  # with a space
    (folder / "my_text").mkdir()
    text = (ROOT / "data" / "corpus" / "valid_en.txt").read_text(encoding="utf-8")
    (folder / "my_text" / "a.txt").write_text(text, encoding="utf-8")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "MINDGPT_NO_VENV": "1", "PATH": path, "GLOG_v": "3", "PYTHONPATH": str(ROOT)}

    def run(command: str) -> str:
        done = subprocess.run(["bash", "-c", command], cwd=folder, env=env, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    run.folder, run.env = folder, env
    return run


def here(command: str) -> str:
    """The command with the project's files named from elsewhere."""
    return command.replace("run_scripts/", f"'{ROOT}'/run_scripts/")


def test_the_readmes_say_the_same():
    for pattern in (r"```bash\n(.*?)```", r"^(#+) ", r"!\[\w+\]\((.*?)\)", r"^      (\S+)  +", r"^\| \[`(\w+)/`\]"):
        found = [re.findall(pattern, (ROOT / name).read_text(encoding="utf-8"), re.S | re.M)
                 for name in ("README.md", "README_zh.md")]
        assert found[0] == found[1] and found[0], pattern


def test_pictures_and_links_exist():
    for name in ("README.md", "README_zh.md"):
        for target in re.findall(r"\]\((?!http|#)(.*?)\)", (ROOT / name).read_text(encoding="utf-8")):
            assert (ROOT / target).exists(), f"{name}: {target}"


def test_every_command_is_run_below():
    tested = Path(__file__).read_text(encoding="utf-8")
    untested = [c for c in commands("README.md") if f'"{c}"' not in tested]
    assert not untested


def short_run(shell, command):
    extra = f"run.dir='{shell.folder}/runs' data.prepared_dir='{shell.folder}/prepared' {SHORT}"
    return shell(here(command) + (f" {extra}" if "--set" in command else f" --set {extra}"))


def test_distributed(shell):
    out = short_run(shell, "bash run_scripts/run_distributed.sh")
    assert "done: 4 of 4 steps" in out and (shell.folder / "runs" / "smoke" / "report.json").exists()
    for command in ("python -m ckpt list runs/smoke", "python -m ckpt verify runs/smoke/checkpoints",
                    "python -m ckpt export-hf runs/smoke/checkpoints smoke-hf",
                    "python -m ckpt import-hf smoke-hf smoke-weights"):
        shell(command)
    assert (shell.folder / "smoke-hf" / "config.json").exists()
    assert "whole: whole\n" in shell("\n".join(commands("ckpt/README.md")))
    assert shell("python -m ckpt diff runs/smoke/checkpoints whole || true") == "state: mesh.dp 2 -> 1\n"
    example, = re.findall(r"```python\n(.*?)```", (ROOT / "ckpt" / "README.md").read_text(encoding="utf-8"), re.S)
    (shell.folder / "example.py").write_text(example, encoding="utf-8")
    assert shell("python example.py") == "4 32 (2000, 128)\n"
    assert "written to runs/smoke/report.html" in shell("python -m train.report runs/smoke")
    out = shell("python -m eval --checkpoint runs/smoke" + " --set eval.deep.safety=true")
    assert "step 4" in out and "perplexity" in out and "safety" in out
    out = shell("python -m eval --checkpoint runs/smoke --full" + " --tiers stage")
    assert "mmlu" in out
    shell("python -m eval export-human sheet runs/smoke/eval/step_00000760.json".replace("760", "004"))
    assert (shell.folder / "sheet" / "sheet.html").exists()
    out = shell("python -m model.generate --checkpoint runs/smoke --prompt 'It is a truth universally acknowledged, that'")
    assert "It is a truth universally acknowledged, that" in out
    follow = f"'ckpt.init_from={shell.folder}/smoke-weights' run.name=next"
    short_run(shell, f"bash run_scripts/run_standalone.sh --set {follow}")


def test_standalone(shell):
    out = short_run(shell, "bash run_scripts/run_standalone.sh --set train.total_steps=40")
    assert "done: 4 of 4 steps" in out and (shell.folder / "runs" / "smoke-standalone" / "report.json").exists()


def test_own_text(shell):
    command = ("bash run_scripts/run_standalone.sh --set run.name=mine data.path=my_text data.valid_path=null "
               "data.prepared_dir=data/prepared/mine")
    assert command == "bash run_scripts/run_standalone.sh --set run.name=mine data.path=my_text data.valid_path=null data.prepared_dir=data/prepared/mine"  # noqa: E501
    out = shell(here(command) + f" run.dir='{shell.folder}/runs' {SHORT}")
    assert "done: 4 of 4 steps" in out
    out = shell("python -m eval compare runs/smoke runs/mine")
    assert "stage/all/perplexity" in out


def test_profile(shell):
    few = " profile.skip_first=1 profile.warmup=0 profile.active=2 eval.stage.enabled=false eval.deep.enabled=false"
    short_run(shell, "bash run_scripts/run_standalone.sh --set run.name=profiled profile.enabled=true" + few)
    out = shell("python -m train.profile_report runs/profiled")
    assert "computation : communication : data : host" in out and "steps 2-3 on rank 0" in out and "MatMul" in out


def test_inspect_and_print_config(shell):
    prepared = f" --set data.prepared_dir='{shell.folder}/inspected'"
    shell(f"python -m data prepare --config '{ROOT}'/{SMOKE}{prepared}")
    out = shell(here("python -m data inspect --config run_scripts/configs/smoke.yaml --count 2") + prepared)
    assert out.count("tokens") >= 2
    out = shell(here("python -m train --config run_scripts/configs/smoke.yaml --print-config"))
    assert "global_batch_size" in out and "growth_interval" in out
    out = shell("python -m train --help")
    assert "global_batch_size" in out and "growth_interval" in out
    out = shell(here("python -m train --config run_scripts/configs/smoke.yaml --list-casts --set precision.level=O2 'precision.black_list=[Residual]'"))  # noqa: E501
    assert re.search(r"blocks\.0\.mlp\.up +Linear +float16", out) and re.search(r"add1 +Residual +float32 +black_list", out)


def test_parallel_plans(shell):
    # Of a repeated key the last value counts. One rank and two are compiled instead of two and eight, some 15 s each.
    small = " parallel.pp=1 train.global_batch_size=2"
    out = shell(here("python -m train.preflight --config run_scripts/configs/smoke.yaml --set parallel.dp=2 parallel.tp=2 parallel.pp=2 train.micro_batch_size=1") + small)  # noqa: E501
    assert "cut as planned" in out
    out = shell(here("python -m train.rehearse --config run_scripts/configs/smoke.yaml --set parallel.dp=2 parallel.tp=2 parallel.pp=2 train.micro_batch_size=1") + small + " parallel.tp=1")  # noqa: E501
    assert "every rank agrees with one card" in out
    out = shell(here("python -m train.preflight --config run_scripts/configs/gpt_13b.yaml --world-size 128 --advise"))
    assert "plans fit" in out and "without tensor parallelism" in out
    out = shell(here("python -m train.weak_scaling --config run_scripts/configs/gpt_1b3.yaml"))
    assert "cluster (parallel.topology)" in out and "1024 x 1 x 1" in out


def test_doctor(shell):
    assert "memory" in shell(here("bash run_scripts/doctor.sh"))


def test_new_project(shell):
    shell("python -m train.new_project ../mygpt --name MyGPT")
    assert (shell.folder.parent / "mygpt" / "README.md").read_text(encoding="utf-8").startswith("# MyGPT\n")


def test_run_tests(shell):
    out = shell(here("bash run_scripts/run_tests.sh") + " --collect-only tests/test_floors.py")
    assert "test_no_import_goes_up" in out


def test_tensorboard(shell, tmp_path):
    (tmp_path / "events").mkdir()
    port, page = free_port(), b""
    command = here("bash run_scripts/tensorboard.sh") + f" '{tmp_path}/events' --port {port}"
    server = subprocess.Popen(["bash", "-c", command], env=shell.env, start_new_session=True)
    try:
        for _ in range(120):
            try:
                page = urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=1).read()
                break
            except OSError:
                assert server.poll() is None
                time.sleep(0.5)
        assert b"TensorBoard" in page
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(20)


def test_activating_the_environment():
    # "source .venv/bin/activate": the folder that setup.sh makes
    assert "/.venv" in (ROOT / "run_scripts" / "setup.sh").read_text(encoding="utf-8")
