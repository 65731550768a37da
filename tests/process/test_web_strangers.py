"""Tests that the page answers while others send nothing, too much, or read nothing."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path

import aiohttp
import pytest
from stand_ins.made_up_daemon import Fiction, site_up

from slicewise.slurm_plugin.page import server

_SECONDS = count()
_FLOOD = 300
PATIENCE_S = 60


def changing(name: str, _: int) -> str:
    """Texts that are others in each answer, and long."""
    return f"{name} {next(_SECONDS)} {'long ' * 40}"


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[aiohttp.ClientSession]:
    """A page of 200 kB, of which everything changes all the time."""
    async with site_up(tmp_path, Fiction(changing, many=40)) as session:
        yield session


async def page_is_answered(site: aiohttp.ClientSession) -> None:
    async with (
        asyncio.timeout(PATIENCE_S),
        site.get("/services") as answer,
    ):
        assert answer.status == 200
        await answer.read()


async def connected(site: aiohttp.ClientSession) -> asyncio.StreamWriter:
    place = site._base_url
    assert place is not None
    _, writer = await asyncio.open_connection(place.host, place.port)
    return writer


async def test_500_silent_connections_keep_nobody_out(site: aiohttp.ClientSession):
    silent = [await connected(site) for _ in range(500)]
    await page_is_answered(site)
    for writer in silent:
        writer.write(b"GET /cluster HTTP/1.1\r\nX-Slow: ")
    await page_is_answered(site)
    for writer in silent:
        writer.close()


async def test_who_reads_no_live_page_delays_nobody_and_no_memory_fills(
    site: aiohttp.ClientSession,
):
    async with AsyncExitStack() as stack:
        for _ in range(20):
            await stack.enter_async_context(site.get("/live/services"))
        await asyncio.sleep(1)
        for _ in range(3):
            await page_is_answered(site)
        before_kib = await resident_kib()
        await asyncio.sleep(1)
        assert await resident_kib() - before_kib < 16 * 1024


async def resident_kib() -> int:
    text = await asyncio.to_thread(Path("/proc/self/status").read_text)
    (kib,) = (line.split()[1] for line in text.splitlines() if line.startswith("VmRSS:"))
    return int(kib)


@pytest.mark.parametrize(
    "head", [b"X: " + b"x" * 100_000, b"\r\n".join(b"X%d: y" % nth for nth in range(20_000))]
)
async def test_giant_headers_are_refused(site: aiohttp.ClientSession, head: bytes):
    place = site._base_url
    assert place is not None
    reader, writer = await asyncio.open_connection(place.host, place.port)
    writer.write(b"GET /cluster HTTP/1.1\r\nHost: h\r\n" + head)
    try:
        answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
    except ConnectionResetError:
        answer = b""
    assert answer[:13] in (b"", b"HTTP/1.1 400 ", b"HTTP/1.1 413 ")
    writer.close()
    await page_is_answered(site)


async def test_a_flood_of_requests_is_refused_and_who_is_logged_in_is_answered(
    site: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
):
    # However long the flood takes, none of its requests is let in because time has passed.
    monkeypatch.setattr(server, "_REQUESTS", replace(server._REQUESTS, every_s=600.0))

    async def ask(stranger: aiohttp.ClientSession) -> int:
        async with stranger.get("/cluster") as answer:
            return answer.status

    async with aiohttp.ClientSession(site._base_url) as stranger:
        flood = [asyncio.create_task(ask(stranger)) for _ in range(_FLOOD)]
        await page_is_answered(site)
        statuses = Counter(await asyncio.gather(*flood))
    most = server._REQUESTS.at_once
    assert statuses == {401: most, 429: _FLOOD - most}


async def test_a_live_page_that_is_left_ends_at_once(site: aiohttp.ClientSession):
    soon = aiohttp.ClientTimeout(total=PATIENCE_S)
    for _ in range(40):
        async with site.get("/live/queue", timeout=soon) as answer:
            assert answer.status == 200
            assert (await answer.content.readline()).startswith(b"data: ")
