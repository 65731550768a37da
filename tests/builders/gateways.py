"""The gateway's servers, as it shows them."""

from typing import Any

from slicewise.launcher.rules.gateway.types import Endpoint, Server, ServerMode

DIGEST = Endpoint("", 0, 0, "CCCC").digest
"""Of the certificate CCCC."""
NOWHERE = Server("127.0.0.1", 1, ServerMode.MAINT, up=False, in_flight=0, queued=0)
"""A line of a backend that leads to no replica."""


def a_server(
    index: int, mode: ServerMode = ServerMode.READY, in_flight: int = 0, **changes: Any
) -> Server:
    """The server of a running slot; it is up."""
    fields: dict[str, Any] = {
        "address": "10.0.0.1",
        "port": 21001 + index,
        "up": True,
        "queued": 0,
        "digest": DIGEST,
    }
    return Server(mode=mode, in_flight=in_flight, **(fields | changes))
