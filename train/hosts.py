"""python -m train.hosts HOSTFILE COMMAND ...: the same command on each host of a file, by ssh; run_distributed.sh --hostfile.

A line of the file is `host` or `host slots=N`; # begins a comment. Each host gets NNODES, NODE_RANK (its place in the file),
MASTER_ADDR (the first host) and MASTER_PORT (8118), the latter two unless they are set here, and of the environment here what
FORWARDED names. It must be reached without a password, and have this folder under this path. slots=N becomes --workers N, which
must be the same on all hosts.

SIGTERM, SIGINT and SIGHUP here are SIGTERM there; SIGUSR1 goes to the first. When one host fails, the others have some time to
end by themselves, are then asked to, and then killed. Exit code: the one that all agree on, else that of the first that failed
(for ssh's own: 1). Limit: SIGKILL of this process leaves the hosts at work.
"""
import argparse
import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from parallel.errors import UserError
from train.workers import AGREED

FORWARDED = re.compile(r"(MINDGPT|MS|MINDSPORE|HCCL|ASCEND|GLOG)_\w+|PATH|LD_LIBRARY_PATH|PYTHON|PYTHONPATH|CXX|"
                       r"XDG_CACHE_HOME|RANK_TABLE_FILE")
# No question for a password: it would be asked on all hosts at once. A connection that gives no sign for 3 minutes is lost.
SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=30", "-o", "ServerAliveCountMax=6")
LOST = 255  # ssh's own exit code
PORT = "8118"  # msrun's


class Host(NamedTuple):
    """A line of the file. slots: workers on it, None if it does not say."""

    name: str
    slots: int | None


@dataclass
class Limits:
    """Seconds. `finish`: for the others to end by themselves, once one has failed; `grace`: to save, and after SIGTERM."""

    finish: float = 30.0
    grace: float = 90.0


@dataclass
class Remote:
    """A command on a host."""

    host: str
    ssh: subprocess.Popen
    pid: int = 0

    def copy(self) -> None:
        """What it writes, to our output, each line with the host's name; the first that is ours says the process's number."""
        for line in self.ssh.stdout:
            if not self.pid and (found := re.fullmatch(r"mindgpt-pid (\d+)\n", line)):
                self.pid = int(found[1])
            else:
                with contextlib.suppress(BrokenPipeError):
                    print(f"[{self.host}] {line}", end="", flush=True)

    def send(self, number: int) -> None:
        """A signal to the command; to ssh while it has not come so far, or if the host does not answer."""
        if self.ssh.poll() not in (None, LOST):
            return
        if self.pid:
            command = [*SSH, self.host, f"kill -{signal.Signals(number).name[3:]} {self.pid}"]
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                if not subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=20).returncode:
                    return
        if self.ssh.poll() is None and number != signal.SIGUSR1:
            self.ssh.send_signal(number)


def main(arguments: list[str] | None = None) -> int:
    """The command. Returns the exit code."""
    parser = argparse.ArgumentParser("python -m train.hosts", description="The same command on each host of a file, by ssh.")
    parser.add_argument("hostfile", type=Path)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what to start on each host")
    options = parser.parse_args(arguments)
    try:
        if not options.command:
            raise UserError(f"{options.hostfile}: say what to start on each host, such as bash run_scripts/doctor.sh")
        hosts = read(options.hostfile)
        return run(hosts, options.command, os.environ)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def read(path: Path) -> list[Host]:
    """The hosts of a file, in order. Raises UserError."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--hostfile {path} cannot be read ({error})") from None
    hosts = []
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        slots = re.fullmatch(r"slots=([1-9]\d{0,3})", words[1]) if len(words) == 2 else None
        if words[0].startswith("-") or "=" in words[0] or len(words) > 2 or len(words) == 2 and not slots:
            raise UserError(f"{path}:{number}: {line.strip()}: expected `host` or `host slots=N`")
        hosts.append(Host(words[0], int(slots[1]) if slots else None))
    if not hosts:
        raise UserError(f"{path} names no host: one a line, `host` or `host slots=N`")
    if len({host.name for host in hosts}) < len(hosts):
        raise UserError(f"{path} names a host twice: several workers on a host are `host slots=N`")
    if len({host.slots for host in hosts}) > 1:
        raise UserError(f"{path}: slots differ ({', '.join(f'{h.name} {h.slots}' for h in hosts)}): give all hosts as many")
    return hosts


def remote_command(hosts: list[Host], rank: int, command: list[str], env: Mapping[str, str]) -> str:
    """What the shell of host `rank` is to do: say its number, and become the command."""
    given = {name: value for name, value in sorted(env.items()) if FORWARDED.fullmatch(name)}
    if len(hosts) > 1:
        address = env.get("MASTER_ADDR") or hosts[0].name.rpartition("@")[2]
        if re.fullmatch(r"localhost|127\.[\d.]+|::1", address):
            raise UserError(f"MASTER_ADDR={address} is another machine on each host: name the first host as the others reach it")
        given |= {"NNODES": str(len(hosts)), "NODE_RANK": str(rank), "MASTER_ADDR": address,
                  "MASTER_PORT": env.get("MASTER_PORT") or PORT}
    trains = any(Path(word).name == "run_distributed.sh" for word in command)  # others know nothing of workers
    workers = ["--workers", str(hosts[rank].slots)] if hosts[rank].slots and trains else []
    words = ["env", *(f"{name}={value}" for name, value in given.items()), *command, *workers]
    return f"echo mindgpt-pid $$; cd {shlex.quote(os.getcwd())} && exec {shlex.join(words)}"


def run(hosts: list[Host], command: list[str], env: Mapping[str, str], limits: Limits | None = None) -> int:
    """Start the command on all hosts, and watch it until it has ended everywhere. Returns the exit code. Raises UserError."""
    seconds = env.get("MINDGPT_GRACE_SECONDS", "")
    limits = limits or (Limits(grace=int(seconds) + 60) if seconds.isdecimal() else Limits())  # each host refuses a wrong one
    texts = [remote_command(hosts, rank, command, env) for rank in range(len(hosts))]
    with _signals() as received:
        try:
            remotes = [Remote(host.name, subprocess.Popen([*SSH, host.name, text], stdin=subprocess.DEVNULL, text=True,
                                                          errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                                          start_new_session=True))
                       for host, text in zip(hosts, texts, strict=True)]
        except FileNotFoundError:
            raise UserError("--hostfile needs ssh, and there is none in PATH: install an OpenSSH client") from None
        readers = [threading.Thread(target=remote.copy, daemon=True) for remote in remotes]
        for reader in readers:
            reader.start()
        failed = _watch(remotes, received, limits)
        lost = [remote for remote in remotes if remote.ssh.returncode == LOST and remote.pid]
        _send(lost, signal.SIGTERM)  # the command may be at work yet
        for reader in readers:
            reader.join(timeout=5)
    codes = [remote.ssh.returncode for remote in remotes]
    if len(set(codes)) > 1 or codes[0] in (1, LOST):
        _say("exit codes: " + ", ".join(f"{remote.host} {remote.ssh.returncode}" for remote in remotes))
    code = codes[0] if len(set(codes)) == 1 else failed.ssh.returncode
    return 1 if code == LOST or code < 0 else code


def _watch(remotes: list[Remote], received: list[int], limits: Limits) -> Remote | None:
    """Until all have ended. Returns the first that failed."""
    failed, told, asked, end = None, 0, False, None
    while any([remote.ssh.poll() is None for remote in remotes]):  # noqa: C419  a list: all are asked
        while len(received) > told:
            told += 1
            number = received[told - 1]
            if number == signal.SIGUSR1:
                remotes[0].send(number)
            else:
                asked = True
                _send(remotes, signal.SIGTERM)
        if failed is None and (failed := next((r for r in remotes if r.ssh.returncode), None)):
            _say(_reason(failed))
            # The others may be saving; a second SIGTERM would end that.
            end = time.monotonic() + (limits.grace if asked or failed.ssh.returncode in AGREED else limits.finish)
        if end and time.monotonic() > end:
            _send(remotes, signal.SIGKILL if asked else signal.SIGTERM)
            asked, end = True, time.monotonic() + limits.grace
        time.sleep(0.1)
    if failed is None and (failed := next((r for r in remotes if r.ssh.returncode), None)):
        _say(_reason(failed))
    return failed


def _send(remotes: list[Remote], number: int) -> None:
    """To all at once: a host that does not answer keeps none waiting."""
    senders = [threading.Thread(target=remote.send, args=(number,)) for remote in remotes]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()


def _reason(remote: Remote) -> str:
    code = remote.ssh.returncode
    if code == LOST:
        return f"host {remote.host} failed first: " + ("the connection was lost" if remote.pid else "ssh does not reach it")
    return f"host {remote.host} ended first (exit code {code})"


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    received: list[int] = []
    numbers = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
    old = {n: signal.signal(n, lambda number, _: received.append(number)) for n in (*numbers, signal.SIGUSR1)}
    try:
        yield received
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _say(text: str) -> None:
    print(f"train.hosts: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
