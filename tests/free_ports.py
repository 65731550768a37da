"""Finds ports for servers of tests, which no other program gets meanwhile.

They are below the ports that the kernel gives to outgoing connections: any client on the machine
may get one of those between two starts of a server, and the second start then fails.
"""

import random
import socket
from collections import deque

_RANGE = (*range(15_100, 16_000), *range(32_000, 32_768))
"""Ports that no sandbox uses (sandbox/host/layout.py), either."""
_HELD: deque[socket.socket] = deque()
_MOST_HELD = 100
"""Most ports that this process holds: a test that asked for a port long ago needs it no more."""


def free_port() -> int:
    """A port at 127.0.0.1 on which no process listens; no other process of tests gets it for now.

    Raises OSError if there is none.
    """
    for port in random.sample(_RANGE, len(_RANGE)):
        if holder := _held(port):
            _HELD.append(holder)
            if len(_HELD) > _MOST_HELD:
                _HELD.popleft().close()
            return port
    raise OSError("no free port for a server of a test")


def _held(port: int) -> socket.socket | None:
    # An abstract name disappears with this process, whatever ends the process.
    holder = socket.socket(socket.AF_UNIX)
    with socket.socket() as listener:
        try:
            holder.bind(f"\0slicewise-tests-port-{port}")
            listener.bind(("127.0.0.1", port))
        except OSError:
            holder.close()
            return None
    return holder
