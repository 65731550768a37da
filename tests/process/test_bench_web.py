"""Tests the viewers of the benchmark of the web pages on a server that the test starts."""

import asyncio
import os
from collections.abc import AsyncIterator

import pytest
from aiohttp import web as http
from aiohttp.test_utils import TestServer

from benchmarks import web
from benchmarks.web import Load, measure

METRICS = """\
# TYPE slicewise_loop_duration_seconds summary
slicewise_loop_duration_seconds_count{loop="charging"} 4.0
slicewise_loop_duration_seconds_sum{loop="charging"} 2.0
"""
COOKIES = ("session=alice", "session=bob")


@pytest.fixture
async def site() -> AsyncIterator[TestServer]:
    """Pages of which one is slow and one is missing, a stream, and the daemon's metrics."""
    users: set[str] = set()

    async def shown(request: http.Request) -> http.Response:
        users.add(request.cookies["session"])
        await asyncio.sleep(0.05 if request.path == "/slow" else 0)
        return http.Response(text=" ".join(users))

    async def events(request: http.Request) -> http.StreamResponse:
        response = http.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for number in range(1000):
            await response.write(f"id: {number}\ndata: {number}\n\n".encode())
            await asyncio.sleep(0.05)
        return response

    async def metrics(request: http.Request) -> http.Response:
        return http.Response(text=METRICS)

    app = http.Application()
    app.router.add_get("/events", events)
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/{name:queue|slow|users}", shown)
    async with TestServer(app, shutdown_timeout=0.1) as server:
        yield server


async def test_each_viewer_loads_pages_and_hears_events(
    site: TestServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(web, "_SETTLED_S", 0.1)
    monkeypatch.setattr(web, "_SAMPLED_S", 0.05)
    load = Load(
        base=str(site.make_url("/")),
        cookies=COOKIES,
        viewers=4,
        seconds=3.0,
        pause_s=0.1,
        pages=("/queue", "/slow", "/missing"),
        events=("/events",),
    )
    found = await measure(load, f"{site.host}:{site.port}", os.getpid(), 1)
    assert found["pages"].keys() == {"/queue", "/slow", "all"}
    assert found["pages"]["/slow"]["p50_ms"] >= 50
    assert found["pages"]["all"]["loaded"] >= 2
    assert found["failed"].keys() == {"/missing: 404"}
    assert found["events"]["got"] > 0
    assert found["server"]["viewed"]["most_mib"] > 10
    assert found["turns"]["all"] == {"alone_ms": 0.0, "viewed_ms": 0.0, "slower": 0.0}


async def test_a_stream_that_is_refused_is_told(site: TestServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(web, "_SETTLED_S", 0.1)
    load = Load(str(site.make_url("/")), COOKIES, 1, 0.1, pages=("/users",), events=("/none",))
    found = await measure(load, f"{site.host}:{site.port}", os.getpid(), 1)
    assert found["failed"] == {"a stream: 404": 1}
