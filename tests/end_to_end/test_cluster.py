"""The templates for clusters: their fields, and the scripts run with commands that stand in for the cluster's."""
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tests.conftest import metrics
from tests.end_to_end.test_scripts import Project
from train.config import load_config

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "run_scripts" / "cluster"
# As `srun` starts its command: on each node, with its number; the result is the largest exit code.
FAKE_SRUN = r"""#!/usr/bin/env bash
[[ "$1 $2" == "--kill-on-bad-exit=0 --wait=600" ]] || exit 99
shift 2
pids=() code=0
for ((node = 0; node < SLURM_JOB_NUM_NODES; node++)); do SLURM_NODEID=$node $ENTER${ENTER:+$node} "$@" & pids+=($!); done
for pid in "${pids[@]}"; do wait "$pid" || { c=$?; ((c > code)) && code=$c; }; done
exit "${FAKE_CODE:-$code}"
"""
FAKE_SCONTROL = r"""#!/usr/bin/env bash
case "$1 $2" in
"show hostnames") [[ "$3" == "node[07-08]" ]] && printf '%s\n' $HOSTS ;;
"show job") echo "JobId=$3 JobName=mindgpt JobState=${STATE-RUNNING} Reason=None" ;;
requeue*) echo "$2" >>"$REQUEUED" ;;
*) exit 99 ;;
esac
"""


class Cluster(Project):
    """The project's copy, with the cluster's commands, and a Python that writes down its part of the environment."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.bin, self.requeued = folder / "bin", folder / "requeued"
        self.bin.mkdir()
        for name, text in (("srun", FAKE_SRUN), ("scontrol", FAKE_SCONTROL), ("getent", '#!/bin/sh\ntest "$2" != unknown\n')):
            (self.bin / name).write_text(text)
            (self.bin / name).chmod(0o755)
        names = "^(NNODES|NODE_RANK|MASTER|MINDGPT_GRACE|ASCEND_HOME)"
        said = f'printf "%s\\n" "$(env | grep -E "{names}" | sort | tr "\\n" " ")$*" >>"$CALLS"'
        calls = '{ echo "start in $PWD"; printf \'<%s>\\n\' "$@"; } >>"$CALLS"'
        self.python.write_text(self.python.read_text().replace(calls, said))
        self.env = {"PATH": f"{self.bin}:{os.environ['PATH']}", "REQUEUED": str(self.requeued), "ENTER": "",
                    "ASCEND_ROOT": str(folder), "ASCEND_HOME_PATH": "/cann"}

    def starts(self) -> list[str]:
        return sorted(line for line in self.called() if "train." in line)


@pytest.fixture
def cluster(tmp_path):
    made = Cluster(tmp_path)
    assert made.run("run_standalone.sh")[0] == 0  # set up
    made.called()
    return made


def slurm(cluster, *arguments, **env):
    copy = cluster.root.parent / "spool" / "slurm_script"  # Slurm runs a copy
    copy.parent.mkdir(exist_ok=True)
    shutil.copy(cluster.root / "run_scripts/cluster/slurm.sbatch", copy)
    given = {"SLURM_SUBMIT_DIR": str(cluster.root), "SLURM_JOB_ID": "12345", "SLURM_JOB_NUM_NODES": "2", "HOSTS": "node07 node08",
             "SLURM_JOB_NODELIST": "node[07-08]", **cluster.env, **env}
    return cluster.run(os.path.relpath(copy, cluster.root / "run_scripts"), *arguments, **given)


def test_all_shell_files_parse():
    for path in [*CLUSTER.iterdir(), *(ROOT / "run_scripts").glob("*.sh")]:
        if path.suffix != ".yaml":
            assert subprocess.run(["bash", "-n", str(path)], capture_output=True).returncode == 0, path


GRACE = "MINDGPT_GRACE_SECONDS=540"


def test_slurm_starts_a_supervisor_on_each_node(cluster):
    code, _, err = slurm(cluster, "my config.yaml", "--set", "run.name=a b")
    assert code == 0, err
    assert cluster.starts() == [
        f"ASCEND_HOME_PATH=/cann MASTER_ADDR=node07 MASTER_PORT=22345 {GRACE} NNODES=2 NODE_RANK={node} "
        "-m train.supervise --config my config.yaml --set run.name=a b" for node in (0, 1)]
    assert not cluster.requeued.exists()


@pytest.mark.parametrize("code, env, again", [
    (4, {}, True), (4, {"SLURM_RESTART_COUNT": "99"}, True), (4, {"STATE": "CANCELLED"}, False), (1, {}, True),
    (1, {"SLURM_RESTART_COUNT": "3"}, False), (2, {}, False), (3, {}, False), (0, {}, False)])
def test_slurm_requeues_what_has_use_in_it(cluster, code, env, again):
    assert slurm(cluster, FAKE_CODE=str(code), **env)[0] == code
    assert cluster.requeued.exists() == again and (not again or cluster.requeued.read_text() == "12345\n")


def test_slurm_elsewhere_than_in_the_projects_folder(cluster):
    code, _, err = slurm(cluster, SLURM_SUBMIT_DIR=str(cluster.elsewhere))
    assert code == 2 and err.count("\n") == 1 and "is not the project's folder" in err and not cluster.starts()


def test_slurms_directives():
    lines = [line.split()[1:] for line in (CLUSTER / "slurm.sbatch").read_text().splitlines() if line.startswith("#SBATCH")]
    options = dict(word[0].removeprefix("--").partition("=")[::2] for word in lines)
    assert options["signal"] == "TERM@600" and options["ntasks-per-node"] == "1" and options["open-mode"] == "append"
    assert "requeue" in options and all(len(word) == 1 for word in lines)  # a comment behind a directive would be a part of it
    text = (CLUSTER / "slurm.sbatch").read_text()
    assert text.rindex("#SBATCH") < text.index("set -euo")  # after the first command Slurm reads no more of them


def boot(cluster, *arguments, **env):
    return cluster.run("cluster/boot.sh", *arguments, **{**cluster.env, "MINDGPT_WAIT_SECONDS": "1", **env})


def test_containers_of_volcano_and_of_modelarts(cluster):
    volcano = {"VC_WORKER_NUM": "2", "VC_WORKER_HOSTS": "a-worker-0.a,a-worker-1.a", "VC_TASK_INDEX": "1"}
    assert boot(cluster, "c.yaml", **volcano)[0] == 0
    assert boot(cluster, "c.yaml", **volcano, MA_NUM_HOSTS="2", MASTER_PORT="7")[0] == 0
    assert boot(cluster, "c.yaml", MA_NUM_HOSTS="1", VC_TASK_INDEX="0", VC_WORKER_HOSTS="a")[0] == 0
    lines = cluster.starts()
    tail = "-m train.supervise --config c.yaml"
    assert lines == [
        f"ASCEND_HOME_PATH=/cann MASTER_ADDR=a-worker-0.a MASTER_PORT=7 {GRACE} NNODES=2 NODE_RANK=1 {tail}",
        f"ASCEND_HOME_PATH=/cann MASTER_ADDR=a-worker-0.a MASTER_PORT=8118 {GRACE} NNODES=2 NODE_RANK=1 {tail}",
        f"ASCEND_HOME_PATH=/cann {GRACE} NNODES=1 {tail}"]


@pytest.mark.parametrize("env, said", [
    ({"VC_WORKER_NUM": "2"}, "VC_WORKER_HOSTS and VC_TASK_INDEX are not set"),
    ({"VC_WORKER_NUM": "2", "VC_WORKER_HOSTS": "unknown,b", "VC_TASK_INDEX": "1"}, "the name unknown is not known, after 1 s"),
    ({"RANK_TABLE_FILE": "/no/such.json"}, "the status of RANK_TABLE_FILE=/no/such.json is not completed")])
def test_what_a_container_refuses(cluster, env, said):
    code, _, err = boot(cluster, **env)
    assert code == 2 and said in err and err.count("\n") == 1 and not cluster.starts()


def test_a_container_waits_for_its_rank_table_and_sets_canns_environment(cluster, tmp_path):
    (tmp_path / "table.json").write_text('{"status": "initializing"}')
    (tmp_path / "ascend-toolkit").mkdir()
    (tmp_path / "ascend-toolkit" / "set_env.sh").write_text('export ASCEND_HOME_PATH=/found; : "$UNSET"\n')
    env = {**cluster.env, "RANK_TABLE_FILE": str(tmp_path / "table.json"), "ASCEND_HOME_PATH": ""}
    process = cluster.start("cluster/boot.sh", **env)
    time.sleep(0.5)
    assert process.poll() is None
    (tmp_path / "table.json").write_text('{"status":"completed"}')
    assert process.wait(20) == 0, process.stderr.read()
    assert cluster.starts()[0].startswith("ASCEND_HOME_PATH=/found ")


def test_a_rank_table_of_the_old_form_is_done_without(cluster, tmp_path):
    """ModelArts' jobstart_hccl.json has groups of instances; the new form lies beside it."""
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text('{"status" : "completed", "group_count": "1", "group_list": [{"instance_list": []}]}')
    new.write_text('{"status": "completed", "server_list": []}')
    for env, given in (({}, None), ({"RANK_TABLE_FILE_V_1_0": str(new)}, new)):
        command = f'source "{CLUSTER / "boot.sh"}"'
        done = subprocess.run(["bash", "-c", 'exec() { echo "table ${RANK_TABLE_FILE-none}"; }; ' + command], text=True,
                              env={**os.environ, **cluster.env, "RANK_TABLE_FILE": str(old), **env}, capture_output=True)
        assert done.returncode == 0 and done.stdout == f"table {given or 'none'}\n", done.stderr


def test_the_job_of_volcano():
    job = yaml.safe_load((CLUSTER / "volcano.yaml").read_text())
    (task,), spec = job["spec"]["tasks"], job["spec"]
    assert (job["apiVersion"], job["kind"], spec["schedulerName"]) == ("batch.volcano.sh/v1alpha1", "Job", "volcano")
    assert spec["minAvailable"] == task["replicas"] and set(spec["plugins"]) == {"svc", "env"} and task["name"] == "worker"
    events = [p.get("event") for p in spec["policies"]]
    assert events.index("PodFailed") > [p.get("exitCode") for p in spec["policies"]].index(2)  # the first that matches counts
    pod, (container,) = task["template"]["spec"], task["template"]["spec"]["containers"]
    assert pod["terminationGracePeriodSeconds"] > 540 and pod["restartPolicy"] == "Never"
    assert container["resources"]["limits"] == container["resources"]["requests"]
    assert container["resources"]["limits"]["huawei.com/Ascend910"] == "8"
    assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in pod["volumes"]}
    assert (ROOT / container["command"][1].removeprefix("/workspace/mindgpt/")).exists()
    assert (ROOT / container["args"][0].removeprefix("/workspace/mindgpt/")).exists()


def test_the_readme_names_what_is_there():
    text = (ROOT / "run_scripts" / "README.md").read_text(encoding="utf-8")
    named = {name for name in re.findall(r"`(\w+\.sh)`", text) if name not in ("boot.sh", "set_env.sh")}
    paths = set(re.findall(r"run_scripts/[\w./]*\w", text)) | {f"run_scripts/{name}" for name in named}
    assert len(paths) > 8 and all((ROOT / path).exists() for path in paths), paths
    settings = set(re.findall(r"\b((?:train|parallel|eval|supervise|profile|data|run|ckpt)(?:\.[a-z]\w*)+)(?![\w.(/])", text))
    known = load_config(ROOT / "run_scripts/configs/smoke.yaml").model_dump()
    commands = {f"train.{path.stem}" for path in (ROOT / "train").glob("*.py")}
    for setting in settings - commands:
        assert functools.reduce(lambda tree, key: tree[key], setting.split(".")[:-1], known).keys() >= {setting.split(".")[-1]}
    assert len(settings) > 8
    modules = set(re.findall(r"python -m ([\w.]+)", text))
    assert modules and all((ROOT / f"{module.replace('.', '/')}.py").exists() for module in modules)


NETWORK = """
ip netns add machine0 && ip netns add machine1 &&
ip link add machine0 netns machine0 type veth peer name machine1 netns machine1 &&
for n in 0 1; do ip -n machine$n addr add 10.78.0.$((n + 1))/24 dev machine$n &&
ip -n machine$n link set machine$n up && ip -n machine$n link set lo up || exit 1; done
"""


@pytest.fixture
def two_machines():
    """Network namespaces with an address each."""
    clear = "ip netns del machine0; ip netns del machine1"
    if not shutil.which("ip") or subprocess.run(f"{clear}; {NETWORK}", shell=True, capture_output=True).returncode:
        pytest.skip("it takes root and the command ip (iproute2) to make network namespaces")
    yield
    subprocess.run(clear, shell=True, capture_output=True)


def installed(folder: Path) -> dict[str, str]:
    """The environment in which the scripts take this Python, as if they had installed the project for it."""
    python = folder / "python3"
    python.write_text(f"""#!/usr/bin/env bash
case "$1 $2" in
"-c "*prefix*) echo "{folder}" ;;
"-m pip") ;;
*) exec "{sys.executable}" "$@" ;;
esac
""")
    python.chmod(0o755)
    return {"MINDGPT_NO_VENV": "1", "PYTHON": str(python), "PYTHONPATH": str(ROOT)}


@pytest.mark.long
def test_a_hostfile_trains_on_two_nodes(two_machines, tiny_yaml, tmp_path):
    (tmp_path / "bin").mkdir()
    ssh = tmp_path / "bin" / "ssh"
    ssh.write_text('#!/usr/bin/env bash\nwhile [[ "$1" == -o ]]; do shift 2; done\n'
                   'exec ip netns exec "machine$((${1##*.} - 1))" bash -c "${*:2}"\n')
    ssh.chmod(0o755)
    (tmp_path / "hosts").write_text("10.78.0.1 slots=1\n10.78.0.2 slots=1\n")
    env = {**os.environ, **installed(tmp_path), "PATH": f"{ssh.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "run_scripts/run_distributed.sh", str(tiny_yaml), "--hostfile", str(tmp_path / "hosts"), "--set",
         f"run.dir={tmp_path}", "train.total_steps=6", "eval.stage.enabled=false", "eval.deep.enabled=false"],
        cwd=ROOT, env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0 and "[10.78.0.1] done: 6 of 6 steps" in done.stdout, done.stdout + done.stderr
    assert json.loads((tmp_path / "tiny" / "report.json").read_text())["world_size"] == 2
    assert {f"rank_{n}.log" for n in (0, 1)} <= {path.name for path in (tmp_path / "tiny" / "logs").iterdir()}


@pytest.mark.long
def test_slurm_trains_on_two_nodes(two_machines, cluster, tiny_yaml, tmp_path):
    """The file as it is, real workers; interrupted, requeued, and finished."""
    env = {**os.environ, **cluster.env, **installed(tmp_path), "SLURM_SUBMIT_DIR": str(ROOT), "SLURM_JOB_ID": "7",
           "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "node[07-08]", "HOSTS": "10.78.0.1 10.78.0.2",
           "ENTER": "ip netns exec machine"}
    command = ["bash", str(CLUSTER / "slurm.sbatch"), str(tiny_yaml), "--workers", "1", "--set", f"run.dir={tmp_path}",
               "train.total_steps=60", "ckpt.every_steps=5", "eval.stage.enabled=false", "eval.deep.enabled=false"]
    folder = tmp_path / "tiny"
    job = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    end = time.monotonic() + 150
    while not (folder / "metrics.jsonl").exists() or len(metrics(folder)) < 5:
        assert time.monotonic() < end and job.poll() is None, job.communicate()[0]
        time.sleep(0.2)
    # As --signal=TERM@600 does: the tasks of the step get it, not this file's own shell.
    supervisors = subprocess.run(["pgrep", "-f", f"train.supervise --config {tiny_yaml}"], capture_output=True, text=True)
    for pid in supervisors.stdout.split():
        os.kill(int(pid), 15)
    said = job.communicate(timeout=120)[0]
    assert job.returncode == 4 and cluster.requeued.read_text() == "7\n", said
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0 and "done: 60 of 60 steps" in done.stdout, done.stdout + done.stderr
    assert [row["step"] for row in metrics(folder)] == list(range(1, 61))
    assert json.loads((folder / "report.json").read_text())["world_size"] == 2
