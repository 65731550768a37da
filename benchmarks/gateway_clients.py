"""Clients of the gateway's benchmark: each connection asks one inference, again and again."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Self, cast

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

MODEL, SERVICE = "tokens", "bench/tokens"
WORK = {"CONTEXT_TOKENS": 1, "GENERATED_TOKENS": 4}
"""About 5 ms of sleep."""
_OK = b"HTTP/1.1 200"


class Connection(Protocol):
    """One connection of a client."""

    async def ask(self) -> None:
        """One inference; raises if it fails."""

    async def close(self) -> None:
        """Give the connection back."""


class HttpConnection(asyncio.Protocol):
    """HTTP/1.1 as plain as it gets, so that the client is not what is measured."""

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
        """Connected to ``HOST:PORT`` or ``unix:PATH``; ``path`` stands before ``/v2/...``."""
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        if host == "unix":
            _, made = await loop.create_unix_connection(lambda: cls("replica", path), port)
        else:
            _, made = await loop.create_connection(lambda: cls(address, path), host, int(port))
        return made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Of asyncio."""
        # uvloop's transports do not inherit from asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """asyncio's: an answer has a length, so its end is known."""
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if found and len(body) >= _length(head) and not self._answer.done():
            self._answer.set_result(head)

    def connection_lost(self, exc: Exception | None) -> None:
        """Of asyncio."""
        if hasattr(self, "_answer") and not self._answer.done():
            self._answer.set_exception(exc or ConnectionResetError())

    async def ask(self) -> None:
        """One at a time, as HTTP/1.1 has it."""
        async with self._turn:
            self._received = b""
            self._answer = asyncio.get_running_loop().create_future()
            self._transport.write(self._request)
            head = await self._answer
        if not head.startswith(_OK):
            raise ConnectionError(head)

    async def close(self) -> None:
        """Give the connection back."""
        self._transport.close()


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


class GrpcConnection:
    """A channel of its own."""

    def __init__(self, address: str, metadata: Sequence[tuple[str, str]]) -> None:
        # Any: grpcio has no type hints.
        self._channel: Any = grpc.aio.insecure_channel(
            address, options=[("grpc.use_local_subchannel_pool", 1)]
        )
        self._stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._metadata = metadata
        self._request = _request(WORK)

    async def ask(self) -> None:
        """One inference; raises if it fails."""
        await self._stub.ModelInfer(self._request, metadata=self._metadata)

    async def close(self) -> None:
        """Give the connection back."""
        await self._channel.close()


def _request(work: Mapping[str, int]) -> Any:
    request = service_pb2.ModelInferRequest(model_name=MODEL)
    for name, value in work.items():
        tensor = request.inputs.add()
        tensor.name, tensor.datatype = name, "INT32"
        tensor.shape.append(1)
        tensor.contents.int_contents.append(value)
    return request
