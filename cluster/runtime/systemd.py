"""Tells systemd that daemon and launcher are ready, alive, and how they are.

Without systemd, the messages go nowhere.
"""

import os
import socket
from contextlib import suppress

_PASSED = 3
"""The first file descriptor that systemd passes on."""


def passed_listener() -> socket.socket | None:
    """Return the socket that systemd holds for this process, as sd_listen_fds(3); None without."""
    is_ours = os.environ.get("LISTEN_PID") == str(os.getpid())
    is_one = os.environ.get("LISTEN_FDS") == "1"
    return socket.socket(fileno=_PASSED) if is_ours and is_one else None


def tell_systemd(message: str) -> None:
    """Send one datagram to $NOTIFY_SOCKET, as sd_notify(3) does, if systemd has set it.

    Best effort: if systemd misses too many messages, it acts on that.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify, suppress(OSError):
            notify.setblocking(False)
            notify.connect("\0" + address[1:] if address.startswith("@") else address)
            notify.send(message.encode())
