"""RANK_TABLE_FILE: where a cluster gives one, it must say what the launcher does.

MindSpore 2.10.0, started by msrun, gives each worker the rank that the table has for its host (`pod_ip`) and device. A table
without `pod_ip`, with another number of devices, or that cannot be read, is passed over without an error. (Both tried on CPU.)
The launcher's logs and signs of life go by its own ranks: a table is refused unless it gives each worker the same.
"""
import json
from collections.abc import Callable, Mapping
from pathlib import Path

from parallel.errors import UserError
from train.workers import Topology


def check(env: Mapping[str, str], topology: Topology, is_here: Callable[[str], bool]) -> None:
    """Raise UserError unless the table, if there is one, agrees with nodes and workers. is_here(address): is it this node's."""
    path = env.get("RANK_TABLE_FILE")
    if not path:
        return
    try:
        table = json.loads(Path(path).read_text(encoding="utf-8"))
        servers = [(server.get("pod_ip") or server["server_id"],
                    {int(device["device_id"]): int(device["rank_id"]) for device in server["device"]}, len(server["device"]))
                   for server in table["server_list"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _refused(path, f"it cannot be read as a rank table ({type(error).__name__}: {error})") from None
    if table.get("status", "completed") != "completed":
        raise _refused(path, f"its status is {table['status']}: it is not filled in yet")
    if len(servers) != topology.nodes:
        raise _refused(path, f"it has {len(servers)} server(s), and NNODES={topology.nodes}")
    for address, ranks, devices in servers:
        if devices != topology.local or len(ranks) != devices:
            raise _refused(path, f"server {address} has {devices} device(s), and there are {topology.local} workers on each node")
    ranks = sorted(rank for _, ranks, _ in servers for rank in ranks.values())
    if ranks != list(range(topology.local * topology.nodes)):
        raise _refused(path, f"its rank_id are {ranks}: expected each of 0 to {topology.local * topology.nodes - 1} once")
    for address, ranks, _ in servers:
        in_order = [rank for _, rank in sorted(ranks.items())]
        if in_order != list(range(in_order[0], in_order[0] + topology.local)) or in_order[0] % topology.local:
            raise _refused(path, f"server {address} has the ranks {in_order}, by device_id: expected {topology.local} in a row")
        if _known(address, is_here) and in_order != list(topology.ranks):
            raise _refused(path, f"this node, {address}, has the ranks {in_order}, and NODE_RANK={topology.node_rank} has "
                                 f"{list(topology.ranks)}")


def _known(address: str, is_here: Callable[[str], bool]) -> bool:
    try:
        return is_here(address)
    except UserError:  # a name that is no address: nothing to compare
        return False


def _refused(path: str, why: str) -> UserError:
    return UserError(f"RANK_TABLE_FILE={path}: {why}; correct it, or unset RANK_TABLE_FILE: ranks then go by NODE_RANK")
