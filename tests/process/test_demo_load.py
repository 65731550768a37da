import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from slicewise.sandbox.demo import load as load_module
from slicewise.sandbox.demo.load import Load
from slicewise.sandbox.demo.story import recently_ended
from slicewise.sandbox.demo.trace import Arrival

SERVICE = "vision/captions"
HANG, REFUSE, SHORT, DROP = 9001, 9002, 9003, 9004
"""Context tokens that make the server below misbehave."""


class Server:
    """Speaks just enough of KServe's protocol, under a base path, and counts what it got."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    async def infer(self, request: web.Request) -> web.Response:
        self.paths.append(request.path)
        body = await request.read()
        header = body[: int(request.headers["Inference-Header-Content-Length"])]
        assert [tensor["name"] for tensor in json.loads(header)["inputs"]] == [
            "CONTEXT_TOKENS",
            "GENERATED_TOKENS",
        ]
        numbers = body[len(header) :]
        context, generated = (int.from_bytes(numbers[i : i + 4], "little") for i in (0, 4))
        if context == HANG:
            await asyncio.sleep(5)
        if context == REFUSE:
            return web.json_response({"error": "no"}, status=503)
        if context == DROP:
            assert request.transport is not None
            request.transport.abort()
        count = generated - (context == SHORT)
        tokens = {"name": "TOKENS", "datatype": "INT32", "shape": [count], "data": [1] * count}
        return web.json_response({"model_name": "tokens", "outputs": [tokens]})


Running = tuple[Server, str]
"""The server and its URL."""


@pytest.fixture
async def server() -> AsyncIterator[Running]:
    server, app = Server(), web.Application()
    app.router.add_post(f"/{SERVICE}/v2/models/tokens/infer", server.infer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    yield server, f"http://127.0.0.1:{port}"
    await runner.cleanup()


async def test_a_replay_goes_to_the_service_s_path_and_is_recorded(server: Running) -> None:
    counts, url = server
    arrivals = tuple(Arrival(n * 0.01, SERVICE, 10, n + 1) for n in range(20))
    async with Load(url, [SERVICE], 5.0) as load:
        await load.replay(arrivals)
    assert [record.error for record in load.records] == [""] * 20
    assert counts.paths == [f"/{SERVICE}/v2/models/tokens/infer"] * 20
    assert len(load.due) == 20


@pytest.mark.parametrize(
    ("context", "error"),
    [
        (HANG, "no answer in 0.3 s"),
        (REFUSE, "status 503"),
        (SHORT, "wrong number of tokens"),
        (DROP, "ServerDisconnectedError"),
    ],
)
async def test_a_failure_is_recorded_once_and_never_retried(
    server: Running, context: int, error: str
) -> None:
    counts, url = server
    async with Load(url, [SERVICE], 0.3) as load:
        record = await load.request(Arrival(0.0, SERVICE, context, 5))
    assert record.error == error
    assert len(counts.paths) == 1


async def test_nobody_listening_is_a_failure(unused_tcp_port: int) -> None:
    async with Load(f"http://127.0.0.1:{unused_tcp_port}", [SERVICE], 1.0) as load:
        record = await load.request(Arrival(0.0, SERVICE, 1, 1))
    assert record.error == "ClientConnectorError"


async def test_a_slow_answer_does_not_delay_the_next_request(server: Running) -> None:
    _, url = server
    async with Load(url, [SERVICE], 0.5) as load:
        await load.replay((Arrival(0.0, SERVICE, HANG, 1), Arrival(0.05, SERVICE, 1, 1)))
    quick, slow = load.records
    assert quick.error == ""
    assert quick.latency_s < 0.3 < slow.latency_s


async def test_latency_counts_from_when_the_request_was_due(server: Running) -> None:
    _, url = server
    async with Load(url, [SERVICE], 5.0) as load:
        record = await load.request(Arrival(0.0, SERVICE, 1, 1), due_s=load.elapsed_s - 2.0)
    assert record.latency_s > 2.0
    assert record.sent_s - record.due_s >= 2.0


async def test_too_many_arrivals_are_refused_before_anything_is_sent(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts, url = server
    monkeypatch.setattr(load_module, "MAX_REQUESTS", 2)
    async with Load(url, [SERVICE], 1.0) as load:
        with pytest.raises(ValueError, match="at most 2"):
            await load.replay([Arrival(0.0, SERVICE, 1, 1)] * 3)
    assert counts.paths == []


async def test_recently_ended_takes_the_newest(server: Running) -> None:
    _, url = server
    async with Load(url, [SERVICE], 5.0) as load:
        first = await load.request(Arrival(0.0, SERVICE, 1, 1))
        await asyncio.sleep(0.05)
        second = await load.request(Arrival(0.0, SERVICE, 1, 1))
    assert recently_ended(load.records, second.due_s) == [second]
    assert recently_ended(load.records, 0.0) == [first, second]
