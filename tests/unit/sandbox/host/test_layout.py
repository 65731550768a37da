from pathlib import Path

from slicewise.sandbox.host.layout import Layout

SERVERS = ("slurmctld", "slurmdbd", "slurmd", "gateway", "daemon")


def test_sandboxes_in_two_slots_share_no_port_and_no_address():
    one, two = Layout(Path("/a"), 1), Layout(Path("/b"), 2)
    assert {one.port(s) for s in SERVERS}.isdisjoint({two.port(s) for s in SERVERS})
    assert set(one.node_addresses.values()).isdisjoint(two.node_addresses.values())


def test_server_ports_never_meet_the_ports_of_steps():
    layouts = [Layout(Path("/a"), slot) for slot in range(1, 251)]
    servers = {layout.port(server) for layout in layouts for server in SERVERS}
    reserved = {port for layout in layouts for port in layout.reserved_ports}
    assert servers.isdisjoint(reserved)
    assert max(servers | reserved) < 32768


def test_database_url_quotes_the_directory():
    url = Layout(Path("/tmp/a+b"), 1).database_url("slurm")
    assert url == "postgresql://slurm@/slicewise?host=/tmp/a%2Bb/run/postgresql"


def test_longest_socket_is_in_the_directory():
    layout = Layout(Path("/tmp/x"), 1)
    assert layout.longest_socket.is_relative_to(layout.directory)
    assert len(str(layout.longest_socket)) > len(str(layout.mariadb_socket))
