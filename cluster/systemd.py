"""What daemon and launcher tell systemd: ready, alive, how they are. Elsewhere nobody hears it."""

import os
import socket
from contextlib import suppress


def tell_systemd(message: str) -> None:
    """As sd_notify(3): one datagram to $NOTIFY_SOCKET, if systemd has set it.

    Best effort: what it misses too often, it acts on.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify, suppress(OSError):
            notify.setblocking(False)
            notify.connect("\0" + address[1:] if address.startswith("@") else address)
            notify.send(message.encode())
