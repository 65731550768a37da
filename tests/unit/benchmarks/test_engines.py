"""Tests how the benchmark of streams counts tokens, and what it makes of the rounds."""

import asyncio

import pytest

from benchmarks.engines import Connection, Times, _added

pytestmark = pytest.mark.usefixtures("clock")

EVENTS = 120
CHUNKS = b"".join(b'9\r\ndata: {"a": 1}\n\n\r\n' for _ in range(EVENTS))
STREAM = b"HTTP/1.1 200 OK\r\n\r\n" + CHUNKS + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


class Sent(asyncio.Transport):
    """Where its requests go."""

    def write(self, data: object) -> None:
        pass


async def streamed(parts: list[bytes], *, is_cut: bool = False) -> Times:
    times, connection = Times(), Connection(b"GET / HTTP/1.1\r\n\r\n")
    connection.connection_made(Sent())
    asking = asyncio.create_task(connection.stream(times))
    await asyncio.sleep(0)
    for part in parts:
        connection.data_received(part)
    if is_cut:
        connection.connection_lost(None)
    await asking
    return times


@pytest.mark.parametrize("size", [1, 7, len(STREAM)])
def test_each_event_counts_once_however_it_comes(size: int):
    parts = [STREAM[at : at + size] for at in range(0, len(STREAM), size)]
    times = asyncio.run(streamed(parts))
    assert (len(times.first), len(times.between), times.failed) == (1, EVENTS - 1, 0)


def test_a_stream_that_is_cut_short_has_failed():
    times = asyncio.run(streamed([STREAM[:-20]], is_cut=True))
    assert (times.first, times.failed) == ([], 1)


def test_what_is_added_is_the_median_of_the_rounds():
    direct = [0.001] * 10
    rounds = [(direct, [0.001 + added] * 10) for added in (0.002, 0.5, 0.001)]
    found = _added("first_token", rounds)
    assert found["first_token_added_ms"] == pytest.approx({"p50": 2.0, "p99": 2.0})
    assert found["direct_first_token_ms"] == pytest.approx({"p50": 1.0, "p99": 1.0})
