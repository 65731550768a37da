"""The page on a port that is held open for it, as systemd does for slicewise-web.service."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest
from free_ports import free_port
from stand_ins.doctors_slurm import SETTINGS
from waiting import PATIENCE_S

from slicewise.cluster.runtime.user_names import user_name

_PROGRAM = Path(sys.executable).with_name("slicewise")


@pytest.fixture
def held() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


@contextmanager
def page(folder: Path, held: socket.socket, port: int) -> Iterator[subprocess.Popen[str]]:
    """The page's own program, which gets the port as its file descriptor 3."""
    file = folder / "slicewise.toml"
    web = f'[web]\nlisten = "127.0.0.1:{port}"\nuser = "{user_name(os.geteuid())}"\n'
    file.write_text(f"{SETTINGS}\n{web}")
    started = subprocess.Popen(
        ["bash", "-c", f'LISTEN_PID=$$ exec "$0" web serve 3<&{held.fileno()}', _PROGRAM],
        pass_fds=[held.fileno()],
        env=os.environ | {"LISTEN_FDS": "1", "SLICEWISE_CONFIG": str(file)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


def test_the_port_is_nobody_elses_while_the_page_is_down(tmp_path: Path, held: socket.socket):
    port = held.getsockname()[1]
    for _ in range(2):
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        # Who asks before it has started waits.
        asking = HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        asking.request("GET", "/login")
        with page(tmp_path, held, port):
            answer = asking.getresponse()
            assert (answer.status, answer.headers["Server"]) == (200, "slicewise")


def test_a_port_that_the_settings_do_not_name_is_refused(tmp_path: Path, held: socket.socket):
    with page(tmp_path, held, free_port()) as started:
        said, _ = started.communicate(timeout=PATIENCE_S)
        assert "SW-SETTINGS" in said
        assert "slicewise-web.socket" in said
        assert started.returncode != 0
