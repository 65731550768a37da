"""Tests that the page answers while others send nothing, too much, or read nothing."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path

import aiohttp
import pytest
from stand_ins.made_up_daemon import Fiction, site_up

_SECONDS = count()
_FLOOD = 300
AT_ONCE_S = 5.0
"""What a viewer still waits for, on a machine that tests share."""


def changing(name: str, _: int) -> str:
    """Texts that are others in each answer, and long."""
    return f"{name} {next(_SECONDS)} {'long ' * 40}"


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[aiohttp.ClientSession]:
    """A page of 200 kB, of which everything changes all the time."""
    async with site_up(tmp_path, Fiction(changing, many=40)) as session:
        yield session


async def seconds_for_a_page(site: aiohttp.ClientSession) -> float:
    began_s = time.monotonic()
    async with site.get("/services") as answer:
        assert answer.status == 200
        await answer.read()
    return time.monotonic() - began_s


async def connected(site: aiohttp.ClientSession) -> asyncio.StreamWriter:
    place = site._base_url
    assert place is not None
    _, writer = await asyncio.open_connection(place.host, place.port)
    return writer


async def test_500_silent_connections_keep_nobody_out(site: aiohttp.ClientSession):
    silent = [await connected(site) for _ in range(500)]
    assert await seconds_for_a_page(site) < AT_ONCE_S
    for writer in silent:
        writer.write(b"GET /cluster HTTP/1.1\r\nX-Slow: ")
    assert await seconds_for_a_page(site) < AT_ONCE_S
    for writer in silent:
        writer.close()


async def test_who_reads_no_live_page_delays_nobody_and_no_memory_fills(
    site: aiohttp.ClientSession,
):
    async with AsyncExitStack() as stack:
        for _ in range(20):
            await stack.enter_async_context(site.get("/live/services"))
        await asyncio.sleep(1)
        took_s = [await seconds_for_a_page(site) for _ in range(3)]
        before_kib = await resident_kib()
        await asyncio.sleep(1)
        assert await resident_kib() - before_kib < 16 * 1024
    assert min(took_s) < AT_ONCE_S


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
        answer = await asyncio.wait_for(reader.read(), 5)
    except ConnectionResetError:
        answer = b""
    assert answer[:13] in (b"", b"HTTP/1.1 400 ", b"HTTP/1.1 413 ")
    writer.close()
    assert await seconds_for_a_page(site) < AT_ONCE_S


async def test_a_flood_of_requests_is_refused_and_who_is_logged_in_is_answered(
    site: aiohttp.ClientSession,
):
    async def ask(stranger: aiohttp.ClientSession) -> int:
        async with stranger.get("/cluster") as answer:
            return answer.status

    async with aiohttp.ClientSession(site._base_url) as stranger:
        flood = [asyncio.create_task(ask(stranger)) for _ in range(_FLOOD)]
        assert await seconds_for_a_page(site) < 2 * AT_ONCE_S
        statuses = Counter(await asyncio.gather(*flood))
    assert statuses[401] <= 300
    assert statuses[429] == _FLOOD - statuses[401]


async def test_a_live_page_that_is_left_ends_at_once(site: aiohttp.ClientSession):
    soon = aiohttp.ClientTimeout(total=10)
    for _ in range(40):
        async with site.get("/live/queue", timeout=soon) as answer:
            assert answer.status == 200
            assert (await answer.content.readline()).startswith(b"data: ")
