"""A rank table must give each worker the rank that the launcher gives it."""
import json

import pytest

from parallel.errors import UserError
from train.launch import main, read_topology
from train.rank_table import check
from train.workers import Topology


def table(tmp_path, *servers, **more) -> dict[str, str]:
    """servers: (address, [rank of device 0, of device 1, ...])."""
    path = tmp_path / "table.json"
    listed = [{"server_id": address, "host_nic_ip": "reserve", "device": [
        {"device_id": str(device), "device_ip": f"192.0.2.{rank}", "rank_id": str(rank)} for device, rank in enumerate(ranks)]}
        for address, ranks in servers]
    path.write_text(json.dumps({"version": "1.0", "server_count": str(len(listed)), "server_list": listed, "status": "completed",
                                **more}))
    return {"RANK_TABLE_FILE": str(path)}


def checked(env, nodes=2, node_rank=0, here="10.0.0.0"):
    check(env, Topology(2, 8118, "10.0.0.0", nodes, node_rank), lambda address: address == here)


def test_tables_that_agree(tmp_path):
    checked({})
    both = table(tmp_path, ("10.0.0.0", [0, 1]), ("10.0.0.1", [2, 3]))
    checked(both)
    checked(both, node_rank=1, here="10.0.0.1")
    checked(both, node_rank=1, here="10.9.9.9")  # as a pod sees the addresses of hosts
    checked(table(tmp_path, ("10.0.0.1", [2, 3]), ("10.0.0.0", [0, 1])))  # in any order
    checked(table(tmp_path, ("10.0.0.0", [0, 1])), nodes=1)


@pytest.mark.parametrize("servers, said", [
    ([("10.0.0.0", [0, 1])], "it has 1 server(s), and NNODES=2"),
    ([("10.0.0.0", [0, 1]), ("10.0.0.1", [2, 3, 4])], "server 10.0.0.1 has 3 device(s), and there are 2 workers on each node"),
    ([("10.0.0.0", [0, 1]), ("10.0.0.1", [2, 2])], "its rank_id are [0, 1, 2, 2]: expected each of 0 to 3 once"),
    ([("10.0.0.0", [0, 1]), ("10.0.0.1", [3, 2])], "server 10.0.0.1 has the ranks [3, 2], by device_id: expected 2 in a row"),
    ([("10.0.0.0", [2, 3]), ("10.0.0.1", [0, 1])], "this node, 10.0.0.0, has the ranks [2, 3], and NODE_RANK=0 has [0, 1]"),
    ([("10.0.0.0", [3, 0]), ("10.0.0.1", [1, 2])], "server 10.0.0.0 has the ranks [3, 0], by device_id: expected 2 in a row"),
])
def test_contradictions_are_refused_in_one_line(tmp_path, servers, said):
    with pytest.raises(UserError) as error:
        checked(table(tmp_path, *servers))
    assert said in str(error.value) and "\n" not in str(error.value) and "unset RANK_TABLE_FILE" in str(error.value)


def test_what_is_no_table(tmp_path):
    with pytest.raises(UserError, match="status is initializing"):
        checked(table(tmp_path, ("10.0.0.0", [0, 1]), ("10.0.0.1", [2, 3]), status="initializing"))
    bad = ("{", "[]", '{"server_list": [{}]}', '{"server_list": 3}', '{"server_list": [{"server_id": "a", "device": [{}]}]}',
           "[" * 100_000)
    for text in bad:
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(UserError, match="cannot be read as a rank table"):
            checked({"RANK_TABLE_FILE": str(tmp_path / "bad.json")})
    with pytest.raises(UserError, match="FileNotFoundError"):
        checked({"RANK_TABLE_FILE": str(tmp_path / "none.json")})


def test_the_launcher_asks(tmp_path, tiny_yaml, monkeypatch, capsys):
    env = table(tmp_path, ("127.0.0.1", [1, 0]))
    with pytest.raises(UserError, match=r"server 127.0.0.1 has the ranks \[1, 0\]"):
        read_topology(env, 2)
    assert read_topology(table(tmp_path, ("127.0.0.1", [0, 1])), 2).local == 2
    for name, value in table(tmp_path, ("127.0.0.1", [1, 0])).items():
        monkeypatch.setenv(name, value)
    assert main(["--config", str(tiny_yaml), "--set", f"run.dir={tmp_path / 'runs'}"]) == 2
    assert "RANK_TABLE_FILE" in capsys.readouterr().err and not (tmp_path / "runs").exists()
