"""Tests which TLS groups a replica's server can choose, given etc/haproxy-openssl.cnf."""

import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from builders.replica_keys import replica_keys
from free_ports import free_port

GROUPS = Path(__file__).resolve().parents[2] / "etc" / "haproxy-openssl.cnf"
CONFIGURATION = """\
defaults
    mode http
    timeout connect 5s
    timeout client 30s
    timeout server 30s
    retries 0
frontend gateway
    bind 127.0.0.1:{port}
    default_backend replica
backend replica
    server r1 127.0.0.1:{to} ssl verify none ssl-min-ver TLSv1.3
"""


@contextmanager
def running(*argv: str) -> Iterator[None]:
    environment = {**os.environ, "OPENSSL_CONF": str(GROUPS)} if argv[0] == "haproxy" else None
    process = subprocess.Popen(
        argv, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()


def status_by(group: str, folder: Path) -> int:
    """Of a request through HAProxy to a server with that group alone."""
    port, to, pem = free_port(), free_port(), str(replica_keys().pem)
    configuration = folder / f"{group}.cfg"
    configuration.write_text(CONFIGURATION.format(port=port, to=to))
    server = ("openssl", "s_server", "-accept", f"127.0.0.1:{to}", "-www", "-cert", pem)
    with (
        running(*server, "-key", pem, "-groups", group),
        running("haproxy", "-f", str(configuration)),
    ):
        for listener in (to, port):
            wait_for(listener)
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code


def wait_for(port: int) -> None:
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise TimeoutError(port)


def test_a_tenant_s_server_does_not_choose_with_what_haproxy_reckons(tmp_path: Path) -> None:
    assert status_by("P-256", tmp_path) == 200
    assert status_by("ffdhe8192", tmp_path) == 503
