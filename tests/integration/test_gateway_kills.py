"""Replicas are killed under the load of clients that keep their connections."""

import asyncio
import itertools
import json
import socket
import struct
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import grpc
import httpx2
import openai
import pytest
from builders.replica_keys import replica_context, replica_keys
from effort import examples
from free_ports import free_port
from gateway_harness import (
    GATEWAY_CERTIFICATE,
    INFER,
    STREAM,
    Harness,
    ReplicaProcess,
    eventually,
    replica_process,
)
from tritonclient.grpc import service_pb2, service_pb2_grpc

from slicewise.launcher.rules.gateway.routing import Route
from slicewise.launcher.rules.gateway.types import Endpoint, ServerMode

pytestmark = pytest.mark.integration

WORK_S = 0.05
EVENTS = 5
"""Of a stream, after which its client has what it wanted."""
LOST = "SW-GATEWAY-LOST"
CUT = "cut"
"""An answer that had begun ended with an error of its protocol: its client knows of it."""
Ask = Callable[[], Awaitable[str]]
"""A request of one client: "ok", an error's code or CUT; raises if there was no answer."""


@dataclass
class Told:
    """What clients were told, by client."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    unanswered: list[str] = field(default_factory=list)

    @property
    def requests(self) -> int:
        return sum(count.total() for count in self.counts.values())

    def show(self) -> None:
        """What is printed of a run that fails."""
        sys.stdout.write(f"{self.requests}: {self.counts}\n")
        sys.stdout.writelines(f"{line}\n" for line in self.unanswered)

    def of(self, outcome: str) -> int:
        """How many requests have ended so."""
        return sum(count[outcome] for count in self.counts.values())

    async def ask_on(self, name: str, ask: Ask) -> None:
        """One request after another, until cancelled."""
        count = self.counts.setdefault(name, Counter())
        while True:
            try:
                outcome = await ask()
            except Exception as error:  # noqa: BLE001 -- whatever it was, no answer came
                outcome = "none"
                self.unanswered.append(f"{name}: {error!r}")
            count[outcome] += 1


def _code(text: str) -> str:
    found = json.loads(text)["error"]
    return str(found["code"] if isinstance(found, dict) else found.partition(":")[0])


async def _clients(  # noqa: C901, PLR0915 -- one short function for each client
    gateway: Harness, stack: AsyncExitStack
) -> dict[str, Ask]:
    """Each has one connection, or a few, which it keeps."""
    url = gateway.settings.url
    session = await stack.enter_async_context(
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=4))
    )
    http = await stack.enter_async_context(httpx2.AsyncClient(timeout=60))
    chats = await stack.enter_async_context(
        openai.AsyncOpenAI(base_url=f"{url}/t/chat/v1", api_key="none", max_retries=0)
    )
    channel = await stack.enter_async_context(gateway.channel())
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    metadata = (("slicewise-service", "t/a"),)

    async def by_aiohttp() -> str:
        async with session.post(f"{url}/t/a{INFER}", json={}) as answer:
            return "ok" if answer.status == 200 else _code(await answer.text())

    async def by_httpx() -> str:
        answer = await http.post(f"{url}/t/a{INFER}", json={})
        return "ok" if answer.status_code == 200 else _code(answer.text)

    async def by_httpx_stream() -> str:
        got = 0
        async with http.stream("POST", f"{url}/t/a{STREAM}", json={"n": EVENTS}) as answer:
            if answer.status_code != 200:
                return _code((await answer.aread()).decode())
            try:
                async for line in answer.aiter_lines():
                    got += line.startswith("data:")
            except httpx2.RemoteProtocolError:
                return CUT
        assert got == EVENTS, "a part passed for the whole"
        return "ok"

    async def by_openai() -> str:
        try:
            await chats.chat.completions.create(model="m", messages=[])
        except openai.APIStatusError as error:
            return str(error.code)
        return "ok"

    async def by_openai_stream() -> str:
        got = 0
        try:
            events = await chats.chat.completions.create(model="m", messages=[], stream=True)
            async with events:
                async for _ in events:
                    got += 1
                    if got == EVENTS:
                        return "ok"
        except openai.APIStatusError as error:
            return str(error.code)
        except openai.APIConnectionError:
            if got:
                return CUT
            raise
        raise AssertionError("a part passed for the whole")

    async def by_grpc() -> str:
        try:
            await stub.ModelInfer(service_pb2.ModelInferRequest(), metadata=metadata)
        except grpc.aio.AioRpcError as error:
            return _grpc_code(error)
        return "ok"

    async def by_grpc_stream() -> str:
        got = 0
        call = stub.ModelStreamInfer(metadata=metadata)
        try:
            for number in range(EVENTS):
                await call.write(service_pb2.ModelInferRequest(id=str(number)))
            await call.done_writing()
            async for _ in call:
                got += 1
        except grpc.aio.AioRpcError as error:
            # Its requests may be on their way still: a reset stream, or that they can't be written.
            return LOST if LOST in str(error.details()) else CUT
        assert got == EVENTS, "a part passed for the whole"
        return "ok"

    async def by_curl() -> str:
        """HTTP/2, of which HAProxy takes no request for the first one."""
        options = (
            "-s",
            "--http2-prior-knowledge",
            "-d",
            "{}",
            "-o",
            "/dev/null",
            "-w",
            "%{http_code}",
        )
        curl = await asyncio.create_subprocess_exec(
            "curl", *options, f"{url}/t/a{INFER}", stdout=asyncio.subprocess.PIPE
        )
        said, _ = await curl.communicate()
        return {b"200": "ok", b"502": LOST}[said]

    return {
        "aiohttp": by_aiohttp,
        "httpx": by_httpx,
        "httpx, stream": by_httpx_stream,
        "openai": by_openai,
        "openai, stream": by_openai_stream,
        "gRPC": by_grpc,
        "gRPC, stream": by_grpc_stream,
        "curl, HTTP/2": by_curl,
    }


def _grpc_code(error: grpc.aio.AioRpcError) -> str:
    # HAProxy 2.6 ends what had begun by HTTP/2 with an empty frame, where the status should be.
    if error.code() is grpc.StatusCode.UNKNOWN and "END_STREAM" in str(error.details()):
        return CUT
    assert error.code() is grpc.StatusCode.UNAVAILABLE, error
    assert LOST in str(error.details()), error
    return LOST


async def _route(gateway: Harness, replicas: Sequence[ReplicaProcess]) -> None:
    """Both services have the same replicas: each answers as either engine."""
    ready = {replica.endpoint: ServerMode.READY for replica in replicas}
    await gateway.route(Route("t/a", 4, ready, "triton"), Route("t/chat", 4, ready, "llamacpp"))


@pytest.mark.promise("A request that dies with its replica is answered, also on a kept connection.")
async def test_requests_are_answered_when_their_replicas_are_killed(gateway: Harness):
    kills, requests = examples(4, 50), examples(400, 10_000)
    told = Told()
    async with AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(replica_process(WORK_S)) for _ in range(2)]
        await _route(gateway, replicas)
        clients = await _clients(gateway, stack)
        asking = [
            asyncio.create_task(told.ask_on(name, ask))
            for name, ask in clients.items()
            for _ in range(2)
        ]
        for kill in range(kills):
            enough = (kill + 1) * requests // kills

            async def has_asked(enough: int = enough) -> bool:
                return told.requests >= enough

            replicas.append(await stack.enter_async_context(replica_process(WORK_S)))
            await eventually(has_asked)
            await replicas.pop(0).kill()
            await _route(gateway, replicas)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
    told.show()
    assert told.unanswered == []
    assert told.requests >= requests
    assert min(told.of(LOST), told.of(CUT)) > 0, "the kills met no request"
    known = {"ok", LOST, CUT}
    assert not [
        outcome for outcome in itertools.chain(*told.counts.values()) if outcome not in known
    ]


@asynccontextmanager
async def _dies_at_once() -> AsyncIterator[Endpoint]:
    """A replica whose connections are reset with the first bytes of a request, as of one killed."""
    keys = replica_keys()
    context = replica_context(GATEWAY_CERTIFICATE, keys)
    context.set_alpn_protocols(["http/1.1"])

    async def die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (await reader.read(1 << 16)).startswith(b"GET"):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            await writer.drain()
            return writer.close()
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        return writer.transport.abort()

    port = free_port()
    async with await asyncio.start_server(die, "127.0.0.1", port, ssl=context):
        yield Endpoint("127.0.0.1", port, free_port(), keys.certificate)


async def _uploading(gateway: Harness) -> asyncio.subprocess.Process:
    """A request whose body comes from stdin, as it comes; stdout has its status."""
    words = ("-s", "-X", "POST", "-T", "-", "-o", "/dev/null", "-w", "%{http_code}")
    curl = await asyncio.create_subprocess_exec(
        *("curl", *words, f"{gateway.settings.url}/t/a{INFER}"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert curl.stdin is not None
    curl.stdin.write(b"{")
    return curl


async def test_a_request_that_arrives_in_parts_is_answered(gateway: Harness):
    """HAProxy ended it without a word: its replica was gone before the rest could be written."""
    async with _dies_at_once() as replica:
        await gateway.route(Route("t/a", 4, {replica: ServerMode.READY}, "triton"))
        curl = await _uploading(gateway)
        await asyncio.sleep(0.3)
        said, _ = await curl.communicate(b"}")
    assert said == b"502"


async def test_a_request_that_is_not_complete_takes_no_place(gateway: Harness):
    async with replica_process(WORK_S) as replica:
        await gateway.set_replicas((replica, ServerMode.READY), concurrency=1)
        curl = await _uploading(gateway)
        await asyncio.sleep(0.3)
        assert [status for status, _ in await asyncio.gather(*gateway.asking(3))] == [200] * 3
        said, _ = await curl.communicate(b"}")
    assert said == b"200"
