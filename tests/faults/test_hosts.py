"""The same command on each host, with an ssh that stays on this machine."""
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from parallel.errors import UserError
from train.hosts import Host, main, read, remote_command

ROOT = Path(__file__).parents[2]

FAKE_SSH = r"""#!/usr/bin/env bash
[[ "$1 $2" == "-o BatchMode=yes" ]] || exit 99
while [[ "$1" == -o ]]; do shift 2; done
host="$1"; shift
[[ "$host" != unknown ]] || { echo "ssh: Could not resolve hostname unknown" >&2; exit 255; }
echo "$host $*" >>"$CALLS"
if [[ "$host" == drop && "$*" == *mindgpt-pid* ]]; then  # the connection breaks, and what was started goes on
    HOST=drop setsid bash -c "$*" &
    sleep 1.5
    exit 255
fi
HOST="$host" exec env -u MS_SECRET -u OTHER bash -c "$*"  # the far side has its own environment
"""

# What argv says for its host, `host=what`; the others go on.
COMMAND = """
import os, signal, sys, time
what = dict(word.split("=") for word in sys.argv[1:] if "=" in word).get(os.environ["HOST"], "wait")
def save(*_):
    if what == "slow":
        signal.signal(signal.SIGTERM, lambda *_: os._exit(1))
        time.sleep(2.0)
    print("saved", flush=True); sys.exit(4)
if what != "stubborn":
    signal.signal(signal.SIGTERM, save)
else:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGUSR1, lambda *_: print("usr1", flush=True))
names = ("NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "MS_SECRET", "OTHER")
print("ready", *(f"{n}={os.environ.get(n)}" for n in names), os.getcwd(), *sys.argv[1:], flush=True)
if what.isdigit():
    time.sleep(0.5)
    sys.exit(int(what))
if what == "lose":
    os.kill(os.getpid(), signal.SIGKILL)
end = time.monotonic() + 60
while time.monotonic() < end:
    time.sleep(0.1)
"""

LAUNCHER = """
import os, sys
from pathlib import Path
from train.hosts import Limits, read, run
os.chdir(sys.argv[2])
sys.exit(run(read(Path(sys.argv[1])), sys.argv[3:], os.environ, Limits(finish=1.0, grace=4.0)))
"""


class Hosts:
    """`run` in a process of its own, in a folder with a space."""

    def __init__(self, folder: Path):
        self.folder = folder / "a folder"
        (self.folder / "bin").mkdir(parents=True)
        self.ssh = self.folder / "bin" / "ssh"
        self.ssh.write_text(FAKE_SSH)
        self.ssh.chmod(0o755)
        (self.folder / "run_distributed.sh").write_text(COMMAND)  # by its name it is given --workers
        self.file, self.calls = self.folder / "hosts", self.folder / "calls"
        self.file.write_text("alpha  # the first\n\nbeta\n")

    def start(self, *words: str, **env: str) -> None:
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        env = {**os.environ, "PATH": path, "CALLS": str(self.calls), "PYTHONPATH": str(ROOT), **env}
        self.process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, str(self.file), str(self.folder), sys.executable, "run_distributed.sh", *words],
            env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))

    def ready(self) -> None:
        self.said = ""
        while self.said.count("ready") < 2:  # the commands end by themselves after a minute
            self.said += self.process.stdout.readline()
            assert self.process.poll() is None, self.said

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=30)
        return self.process.returncode, getattr(self, "said", "") + out, err


@pytest.fixture
def hosts(tmp_path):
    made = Hosts(tmp_path)
    yield made
    if made.process.poll() is None:
        made.process.kill()


def test_each_host_gets_its_place_and_the_environment_of_the_framework(hosts):
    hosts.start("alpha=0", "beta=0", "it's a word", MS_SECRET="a b", OTHER="x")
    code, out, err = hosts.end()
    assert code == 0 and not err
    for rank, host in enumerate(("alpha", "beta")):
        assert (f"[{host}] ready NNODES=2 NODE_RANK={rank} MASTER_ADDR=alpha MASTER_PORT=8118 MS_SECRET=a b OTHER=None "
                f"{hosts.folder} alpha=0 beta=0 it's a word\n") in out
    assert "mindgpt-pid" not in out


def test_slots_are_workers_and_the_environment_may_name_the_master(hosts):
    hosts.file.write_text("alpha slots=4\nbeta slots=4\n")
    hosts.start("alpha=0", "beta=0", MASTER_ADDR="192.0.2.7", MASTER_PORT="1234")
    code, out, _ = hosts.end()
    assert code == 0 and out.count("MASTER_ADDR=192.0.2.7 MASTER_PORT=1234") == 2 and out.count("--workers 4\n") == 2


@pytest.mark.parametrize("what, code, said", [
    ("beta=3", 3, "host beta ended first (exit code 3)"), ("beta=lose", 1, "host beta "), ("alpha=1", 1, "host alpha ended")])
def test_the_first_host_that_fails_is_named_and_the_others_are_ended(hosts, what, code, said):
    hosts.start(what)
    began = time.monotonic()
    got, out, err = hosts.end()
    other = "alpha" if what.startswith("beta") else "beta"
    assert got == code and said in err and f"[{other}] saved" in out and f"{other} 4" in err
    assert time.monotonic() - began < 15


def test_a_host_that_ssh_does_not_reach(hosts):
    hosts.file.write_text("alpha\nunknown\n")
    hosts.start()
    code, out, err = hosts.end()
    assert code == 1 and "host unknown failed first: ssh does not reach it" in err
    assert "[unknown] ssh: Could not resolve hostname" in out and "[alpha] saved" in out


def test_a_connection_that_breaks(hosts):
    """What was started there is ended by another connection."""
    hosts.file.write_text("alpha\ndrop\n")
    hosts.start()
    code, out, err = hosts.end()
    assert code == 1 and "host drop failed first: the connection was lost" in err
    assert "[drop] saved" in out and "[alpha] saved" in out


def test_one_that_does_not_listen_is_killed(hosts):
    hosts.start("alpha=stubborn", "beta=1")
    code, _, err = hosts.end()
    assert code == 1 and "host beta ended first" in err
    assert "kill -KILL" in hosts.calls.read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_reach_all_hosts(hosts, number):
    hosts.start()
    hosts.ready()
    hosts.process.send_signal(signal.SIGUSR1)
    time.sleep(0.7)
    hosts.process.send_signal(number)
    code, out, _ = hosts.end()
    assert code == 4 and "[alpha] saved" in out and "[beta] saved" in out
    assert "[alpha] usr1" in out and "[beta] usr1" not in out  # ranks agree to save: one is enough


def test_a_host_that_takes_longer_to_save_is_not_disturbed(hosts):
    hosts.start("beta=slow")
    hosts.ready()
    hosts.process.send_signal(signal.SIGTERM)
    code, out, _ = hosts.end()
    assert code == 4 and "[alpha] saved" in out and "[beta] saved" in out


@pytest.mark.parametrize("text, said", [
    ("", "names no host"), ("# none\n", "names no host"), ("a\na\n", "names a host twice"),
    ("a slot=2\n", ":1: a slot=2: expected"), ("a\n\nb slots=0\n", ":3: b slots=0: expected"),
    ("-oProxyCommand=x\n", ":1: -oProxyCommand=x: expected"),
    ("a slots=2\nb slots=4\n", "slots differ"), ("a slots=2\nb\n", "slots differ")])
def test_a_file_that_is_wrong(tmp_path, text, said):
    (tmp_path / "hosts").write_text(text)
    with pytest.raises(UserError) as error:
        read(tmp_path / "hosts")
    assert said in str(error.value) and "\n" not in str(error.value)


def test_what_is_refused_before_anything_starts(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        read(tmp_path / "none")
    with pytest.raises(UserError, match="MASTER_ADDR=localhost is another machine on each host"):
        remote_command([Host("localhost", None), Host("b", None)], 0, ["true"], {})
    assert "NNODES" not in remote_command([Host("localhost", None)], 0, ["true"], {})  # one node needs none of it
    assert "--workers" not in remote_command([Host("a", 2)], 0, ["bash", "run_scripts/doctor.sh"], {})  # which knows none
    (tmp_path / "hosts").write_text("a\n", encoding="utf-8-sig")
    assert read(tmp_path / "hosts") == [Host("a", None)]
    assert main([str(tmp_path / "hosts")]) == 2
    assert "MASTER_ADDR=a " in remote_command([Host("me@a", None), Host("b", None)], 0, ["true"], {})
