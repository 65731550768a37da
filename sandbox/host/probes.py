"""Finds out whether a server is there, or a port free."""

import socket
from pathlib import Path

_TIMEOUT_S = 1.0


def unix_socket_answers(path: Path) -> bool:
    """Whether something accepts connections on that socket."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(_TIMEOUT_S)
        return client.connect_ex(str(path)) == 0


def port_answers(address: str, port: int) -> bool:
    """Whether something accepts connections at that TCP port."""
    with socket.socket() as client:
        client.settimeout(_TIMEOUT_S)
        return client.connect_ex((address, port)) == 0


def port_is_free(address: str, port: int) -> bool:
    """Whether a server could listen there."""
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind((address, port))
        except OSError:
            return False
        return True
