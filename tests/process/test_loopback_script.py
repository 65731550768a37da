"""Tests what leads from a unix socket to a server that listens on TCP, in a network of its own."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from waiting import PATIENCE_S, until

from slicewise.launcher.scripts import loopback

PORT = 30000
FILES = 64
SERVER = """
import os, resource, socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("started", os.getpid(), flush=True)
while True:
    client, _ = listener.accept()
    with client:
        if (said := client.recv(100)) == b"more":
            client.sendall(b"x" * 1_000_000)
        elif said == b"files":
            client.sendall(str(resource.getrlimit(resource.RLIMIT_NOFILE)[0]).encode())
        elif said:
            client.sendall(said.upper())
            print("left" if not client.recv(100) else "stays", flush=True)
"""
OWN_NETWORK = ("unshare", "--user", "--map-root-user", "--net")


def can_have_one() -> bool:
    return subprocess.run((*OWN_NETWORK, "true"), capture_output=True, check=False).returncode == 0


pytestmark = pytest.mark.skipif(not can_have_one(), reason="no user namespaces here")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    command = (sys.executable, "-c", SERVER, str(PORT))
    words = (sys.executable, loopback.__file__, str(tmp_path / "http.sock"), str(PORT), *command)
    files = ("prlimit", f"--nofile={FILES}:{10 * FILES}")
    started = subprocess.Popen(
        (*files, *OWN_NETWORK, *words), stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    yield started
    with suppress(ProcessLookupError):
        os.killpg(started.pid, signal.SIGKILL)
    started.wait()


def line(server: subprocess.Popen[str]) -> str:
    assert server.stdout is not None
    return server.stdout.readline().strip()


def connected(path: Path) -> socket.socket:
    """Connected as the door is: the socket appears once the server listens."""

    def connect() -> socket.socket | None:
        client = socket.socket(socket.AF_UNIX)
        client.settimeout(PATIENCE_S)
        try:
            client.connect(str(path))
        except OSError:
            client.close()
            return None
        return client

    client = until(connect)
    assert client is not None
    return client


def test_the_server_is_reached_by_the_socket_alone(
    server: subprocess.Popen[str], tmp_path: Path
) -> None:
    # It is the process that was started: the batch script signals it by its id.
    assert line(server) == f"started {server.pid}"
    with connected(tmp_path / "http.sock") as client:
        client.sendall(b"hello")
        assert client.recv(100) == b"HELLO"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", PORT))
    # Whoever leaves has left the server, too: a stream ends, and its place is free.
    assert line(server) == "left"
    with connected(tmp_path / "http.sock") as client:
        client.sendall(b"more")
        assert sum(len(part) for part in iter(lambda: client.recv(1 << 16), b"")) == 1_000_000


def test_it_is_no_child_of_the_server(server: subprocess.Popen[str], tmp_path: Path) -> None:
    """SGLang kills its children at its end, and may wait for them."""
    line(server)
    connected(tmp_path / "http.sock").close()
    pid = server.pid
    assert Path(f"/proc/{pid}/task/{pid}/children").read_text() == ""


def test_it_has_more_clients_at_a_time_than_the_server_has_files(
    server: subprocess.Popen[str], tmp_path: Path
) -> None:
    """Slurm passes on the limit of the user's shell; only what leads to the server raises it."""
    line(server)
    with ExitStack() as stack:
        first, *others = (
            stack.enter_context(connected(tmp_path / "http.sock")) for _ in range(FILES)
        )
        # The server takes one client after the other: all others wait, connected, before it.
        for client in others:
            client.sendall(b"hello")
        first.sendall(b"files")
        assert first.recv(100) == str(FILES).encode()
        for client in others:
            assert client.recv(100) == b"HELLO"
            client.close()
