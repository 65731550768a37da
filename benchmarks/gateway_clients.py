"""Clients of the gateway's benchmark: each connection repeats one inference request."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Self, cast

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

MODEL, SERVICE = "tokens", "bench/tokens"
WORK = {"CONTEXT_TOKENS": 1, "GENERATED_TOKENS": 4}
"""The request's inputs, for which the model sleeps about 5 ms."""
_OK = b"HTTP/1.1 200"


class Connection(Protocol):
    """One connection of a client."""

    async def ask(self) -> None:
        """Ask for one inference; raises if it fails."""

    async def close(self) -> None:
        """Close the connection."""


class HttpConnection(asyncio.Protocol):
    """A minimal HTTP/1.1 connection, so that the client's own cost stays small."""

    def __init__(self, host: str, path: str) -> None:
        body = json.dumps(
            {
                "inputs": [
                    {"name": name, "datatype": "INT32", "shape": [1], "data": [value]}
                    for name, value in WORK.items()
                ]
            }
        )
        head = f"POST {path}/v2/models/{MODEL}/infer HTTP/1.1\r\nHost: {host}\r\n"
        self._request = f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()
        self._turn = asyncio.Lock()
        self._answer: asyncio.Future[bytes]
        self._received = b""
        self._transport: asyncio.Transport

    @classmethod
    async def open(cls, address: str, path: str) -> Self:
        """Connect to ``HOST:PORT`` or ``unix:PATH``; ``path`` stands before ``/v2/...``."""
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        if host == "unix":
            _, made = await loop.create_unix_connection(lambda: cls("replica", path), port)
        else:
            _, made = await loop.create_connection(lambda: cls(address, path), host, int(port))
        return made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; called by asyncio."""
        # uvloop's transports do not inherit from asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Collect an answer, which ends at its stated length; called by asyncio."""
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if found and len(body) >= _length(head) and not self._answer.done():
            self._answer.set_result(head)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the request that is under way; called by asyncio."""
        if hasattr(self, "_answer") and not self._answer.done():
            self._answer.set_exception(exc or ConnectionResetError())

    async def ask(self) -> None:
        """Ask for one inference, one at a time as HTTP/1.1 requires; raises if it fails."""
        async with self._turn:
            self._received = b""
            self._answer = asyncio.get_running_loop().create_future()
            self._transport.write(self._request)
            head = await self._answer
        if not head.startswith(_OK):
            raise ConnectionError(head)

    async def close(self) -> None:
        """Close the connection."""
        self._transport.close()


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


class GrpcConnection:
    """A gRPC connection with a channel of its own."""

    def __init__(self, address: str, metadata: Sequence[tuple[str, str]]) -> None:
        # Any: grpcio has no type hints.
        self._channel: Any = grpc.aio.insecure_channel(
            address, options=[("grpc.use_local_subchannel_pool", 1)]
        )
        self._stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._metadata = metadata
        self._request = _request(WORK)

    async def ask(self) -> None:
        """Ask for one inference; raises if it fails."""
        await self._stub.ModelInfer(self._request, metadata=self._metadata)

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()


def _request(work: Mapping[str, int]) -> Any:
    request = service_pb2.ModelInferRequest(model_name=MODEL)
    for name, value in work.items():
        tensor = request.inputs.add()
        tensor.name, tensor.datatype = name, "INT32"
        tensor.shape.append(1)
        tensor.contents.int_contents.append(value)
    return request
