"""Tests which TLS groups a replica's server can choose, given etc/haproxy-openssl.cnf."""

import os
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from builders.replica_keys import replica_keys
from free_ports import free_port
from waiting import PATIENCE_S, until

GROUPS = Path(__file__).resolve().parents[2] / "etc" / "haproxy-openssl.cnf"
CONFIGURATION = """\
defaults
    mode http
    timeout connect 120s
    timeout client 120s
    timeout server 120s
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
            until(partial(listens, listener))
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=PATIENCE_S) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code


def listens(port: int) -> bool:
    with suppress(OSError):
        socket.create_connection(("127.0.0.1", port)).close()
        return True
    return False


def test_a_tenant_s_server_does_not_choose_with_what_haproxy_reckons(tmp_path: Path) -> None:
    assert status_by("P-256", tmp_path) == 200
    assert status_by("ffdhe8192", tmp_path) == 503
