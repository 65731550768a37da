from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from slicewise.sandbox.cli import _node_table, _server_table
from slicewise.sandbox.host.inventory import NODES
from slicewise.sandbox.host.layout import Layout
from slicewise.sandbox.host.process import Process
from slicewise.sandbox.host.state import Program, State
from slicewise.sandbox.host.status import node_rows, server_places, server_rows

LAYOUT = Layout(Path("/tmp/sandbox"), 250)
CUT = {node.name: node.slices for node in NODES}
NAMES = (*server_places(LAYOUT), "launcher")


@pytest.fixture
def lines() -> list[str]:
    place = Path("/")
    processes = {name: Process(name, "slicewise", 4194303, 1, 0.0) for name in NAMES}
    state = State(LAYOUT, {}, Program(place, place, place), device_nodes=True, processes=processes)
    servers = server_rows(state, lambda process: process.name != "launcher")
    file = StringIO()
    tables = (_server_table(servers), _node_table(node_rows(LAYOUT, {"gpu01": "idle"}, CUT)))
    Console(file=file, width=80).print(*tables)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_in_80_columns_each_server_and_node_has_one_whole_line(lines: list[str]):
    servers = [line for line in lines if "slicewise" in line]
    assert [line.split()[0] for line in servers] == list(NAMES)
    assert "run/mariadb/mariadb.sock" in "".join(servers)
    assert f"127.0.0.1:{LAYOUT.port('gateway')}" in "".join(servers)
    nodes = [line for line in lines if line.startswith("gpu0")]
    assert [line.split()[-1] for line in nodes] == ["idle", "unknown", "unknown", "unknown"]
    assert not any("…" in line for line in lines)


def test_what_has_ended_says_so(lines: list[str]):
    assert [line.split()[0] for line in lines if line.endswith("ended")] == ["launcher"]
