"""`python -m train.launch --config C`: prepare the data if needed, then train with all cards of this node.

Cards: on Ascend those visible (ASCEND_RT_VISIBLE_DEVICES, else /dev/davinci*); without one, 2 CPU workers. One node of
many: NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT in the environment, with the same number of workers on each node. A
RANK_TABLE_FILE must agree with them (see train/rank_table.py).
MINDGPT_GRACE_SECONDS: to save in, after a signal (30).
Exit codes: 0 done, 2 wrong input, 128 + n ended by signal n, 3 and 4 as the workers agree on them, 1 anything else.

Limits: a node learns of another node's failure by MindSpore's time-outs only; SIGKILL of both the launcher and its
guard leaves the workers.
"""
import argparse
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from ckpt import store
from parallel import config_file
from parallel.errors import UserError
from train.checks import plan, refuse_busy, refuse_to_replace_data
from train.config import load_config
from train.nodes import NUMBER
from train.rank_table import check as check_rank_table
from train.workers import Limits, Topology, environment, run_workers


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m train.launch", description="Train with all cards of this node.")
    config_file.add_arguments(parser)
    parser.add_argument("--standalone", action="store_true",
                        help="one process without msrun; run.name gets the suffix -standalone unless --set names it")
    parser.add_argument("--workers", type=int, metavar="N", help="processes on this node (default: all cards; CPU: 2)")
    options = parser.parse_args(arguments)
    try:
        config = load_config(options.config, options.overrides)
        topology = None if options.standalone else read_topology(os.environ, options.workers)
        limits = Limits(grace=_whole_number(os.environ, "MINDGPT_GRACE_SECONDS", 30, 1, 86_400))
        plan(config, topology.local * topology.nodes if topology else 1, 0)
        refuse_to_replace_data(config)
        if topology and topology.node_rank == 0:  # the rank that holds it trains there
            refuse_busy(config.run.folder)
    except UserError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    if topology is None:
        named = any(assignment.partition("=")[0].strip() == "run.name" for assignment in options.overrides)
        _run_alone(options.config, options.overrides + ([] if named else [f"run.name={config.run.name}-standalone"]))
    if topology.local * topology.nodes == 1:  # msrun's scheduler would take one worker for itself
        _run_alone(options.config, options.overrides)
    if code := _prepare_data(options):
        return code
    topology = replace(topology, port=topology.port or free_port())  # chosen late: preparing may have taken long
    print(f"train.launch: {topology.local} workers here, scheduler at {topology.address}:{topology.port}, logs in "
          f"{config.run.folder / 'logs'}", flush=True)
    command = ["-m", "train", *_options(options.config, options.overrides)]
    code = run_workers(command, topology, config.run.folder / "logs", limits)
    if code == 1 and NUMBER not in os.environ and (kept := store.steps(config.run.folder / "checkpoints")):
        print(f"train.launch: the same command goes on from the newest whole checkpoint: {kept[-1].name}, or one before it",
              file=sys.stderr, flush=True)
    return code


def _run_alone(config: str, overrides: list[str]) -> NoReturn:
    """Become `python -m train`, which prepares the data itself."""
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-m", "train", *_options(config, overrides)], environment(1))


def read_topology(env: Mapping[str, str], workers: int | None = None) -> Topology:
    """Workers, nodes and the scheduler's place, from the environment; port 0: any free one. Raises UserError."""
    topology = _read_topology(env, count_workers(env, workers))
    check_rank_table(env, topology, _is_here)
    return topology


def _read_topology(env: Mapping[str, str], local: int) -> Topology:
    names = ("NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
    nodes = _whole_number(env, "NNODES", 1, 1, 100_000)
    node_rank = _whole_number(env, "NODE_RANK", 0, 0, nodes - 1)
    port = _whole_number(env, "MASTER_PORT", 0, 1, 65535)
    if nodes == 1:
        return Topology(local, _checked_port("127.0.0.1", port) if port else 0)
    if missing := [name for name in names if not env.get(name)]:
        raise UserError(f"NNODES={nodes} needs all of {', '.join(names)}; missing: {', '.join(missing)}")
    address = env["MASTER_ADDR"]
    if _is_here(address) != (node_rank == 0):
        raise UserError(f"MASTER_ADDR={address} is {'' if node_rank else 'not '}an address of this machine, but "
                        f"NODE_RANK={node_rank}: it is the address by which all nodes reach the node of NODE_RANK=0")
    return Topology(local, port if node_rank else _checked_port(address, port), address, nodes, node_rank)


def count_workers(env: Mapping[str, str], workers: int | None = None, dev: Path = Path("/dev")) -> int:
    """Processes on this node: one for each visible Ascend device; 2 on a CPU. `workers` may ask for fewer devices."""
    if (visible := env.get("ASCEND_RT_VISIBLE_DEVICES")) is not None:
        if not re.fullmatch(r"\s*(\d+(\s*,\s*\d+)*)?\s*", visible):
            raise UserError(f"ASCEND_RT_VISIBLE_DEVICES={visible}: expected device numbers such as 0,1,2,3")
        devices = len(re.findall(r"\d+", visible))
    else:
        devices = sum(bool(re.fullmatch(r"davinci\d+", entry.name)) for entry in dev.iterdir())
    if workers is not None and (workers < 1 or 0 < devices < workers):
        raise UserError(f"--workers {workers}: expected a number from 1" + (f" to {devices}" if devices else " on"))
    return workers or devices or 2


def _whole_number(env: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    text = env.get(name, "").strip()
    if not text:
        return default
    if not re.fullmatch(r"[0-9]{1,9}", text) or not low <= int(text) <= high:
        raise UserError(f"{name}={text}: expected a whole number from {low} to {high}")
    return int(text)


def free_port() -> int:
    """A TCP port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _checked_port(address: str, port: int) -> int:
    try:
        with socket.create_server(("", port)):
            return port
    except OSError as e:
        raise UserError(f"MASTER_PORT={port} cannot be used at {address} ({e.strerror}): choose another port"
                        ", or on a single node leave it out") from None


def _is_here(address: str) -> bool:
    try:
        family, kind, *_, place = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
    except OSError as e:
        raise UserError(f"MASTER_ADDR={address}: unknown host ({e.strerror})") from None
    try:
        with socket.socket(family, kind) as probe:
            probe.bind(place)
        return True
    except OSError:
        return False


def _prepare_data(options: argparse.Namespace) -> int:
    """`python -m data prepare`, in a process of its own: it loads MindSpore, which this one must not hold for days."""
    ours = [assignment for assignment in options.overrides if assignment.strip().startswith("data.")]
    # Ignored signals stay so: nohup does that to SIGHUP.
    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]
    old = {number: signal.signal(number, lambda n, _: sys.exit(128 + n)) for number in numbers}
    with subprocess.Popen([sys.executable, "-m", "data", "prepare", *_options(options.config, ours)]) as prepare:
        try:
            return prepare.wait()
        except KeyboardInterrupt:
            return 130
        finally:
            prepare.terminate()
            for number, handler in old.items():
                signal.signal(number, handler)


def _options(config: str, overrides: list[str]) -> list[str]:
    return ["--config", config, *(["--set", *overrides] if overrides else [])]


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until there is something to save
    sys.exit(main())
