"""A peer of the daemon's HTTP sockets that says what no client would."""

import asyncio
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slicewise.cluster.rpc import (
    history_messages,
    journal_messages,
    key_messages,
    messages,
    order_messages,
    overview_messages,
    read_messages,
)
from slicewise.cluster.rpc.message import requests
from slicewise.slurm_plugin.common import (
    explain_requests,
    ledger_requests,
)

_DECLARED = (
    history_messages,
    journal_messages,
    key_messages,
    messages,
    order_messages,
    overview_messages,
    read_messages,
    *(explain_requests, ledger_requests),
)

GET_VIEW = b"GET /v1/view HTTP/1.1\r\nHost: h\r\n\r\n"


def sent(op: str, **fields: object) -> tuple[str, str, bytes]:
    """Method, target and body of what the daemon is asked by that name."""
    kind = next(one for one in requests() if one.path == f"/v1/{op}")
    return kind.method, *kind.model_validate(fields).sent()


def posted(target: str, body: bytes) -> bytes:
    """A request as text."""
    head = f"POST {target} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


@dataclass(frozen=True)
class Response:
    """What came back."""

    status: int
    body: bytes
    head: bytes = b""

    @property
    def request_id(self) -> str:
        """As the daemon named the question; "" if it did not."""
        found = re.search(rb"\r\nX-Request-Id: ([0-9a-f]{16})(?:\r\n|$)", self.head)
        return found[1].decode() if found else ""

    @property
    def said(self) -> dict[str, Any]:
        return dict(json.loads(self.body))


def joined(chunks: bytes) -> bytes:
    """The body that comes in chunks."""
    whole = b""
    while chunks:
        size, _, rest = chunks.partition(b"\r\n")
        whole, chunks = whole + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return whole


class Peer:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def say(self, sent: bytes) -> None:
        self.writer.write(sent)

    async def reads(self) -> Response | None:
        """The response; None if the daemon closes without one."""
        head, _, body = (await asyncio.wait_for(self._all(), 15)).partition(b"\r\n\r\n")
        if not head:
            return None
        is_chunked = b"Transfer-Encoding: chunked" in head
        return Response(int(head.split(None, 2)[1]), joined(body) if is_chunked else body, head)

    async def _all(self) -> bytes:
        try:
            return await self.reader.read()
        except ConnectionResetError:
            return b""

    async def asks(self, sent: bytes) -> Response:
        self.say(sent)
        response = await self.reads()
        assert response is not None
        return response

    def close(self) -> None:
        self.writer.transport.abort()


async def connected(path: Path) -> Peer:
    return Peer(*await asyncio.open_unix_connection(str(path)))


async def connected_tcp(place: str, local: str = "127.0.0.1") -> Peer:
    host, _, port = place.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port), local_addr=(local, 0))
    return Peer(reader, writer)
