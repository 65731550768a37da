"""Measures what the gateway and the door add to the streams of a language model.

The same llama.cpp, with a random model of half a megabyte, is asked through both and directly, in
turn, in one run. The figures are medians of a few rounds.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from typing import Any, cast

import uvloop
from rich.table import Table

from benchmarks import reporting
from benchmarks.line import Line, until
from benchmarks.machine import machine
from slicewise.cluster.runtime.console import console
from slicewise.launcher.rules.engines.registry import ENGINES
from slicewise.sandbox.servers import llamacpp
from slicewise.sandbox.servers.tiny_gguf import write_tiny_model

SERVICE, MODEL = "bench/chat", "tiny"
SLOTS, TOKENS = 64, 512
FEW, MANY = 2, 64
"""Streams at the same time where latency is measured, and where throughput is."""
_PAUSE_S = 0.05
"""Seconds from one stream of a client to its next, where latency is measured."""
ROUNDS = 9
_QUICK_ROUNDS = 3
_FEW_TURNS = 20
"""Streams of one client in a round."""
_CONTEXT_TOKENS = 768
_EVENT = b"data: "
_END = b"data: [DONE]\n\n\r\n0\r\n\r\n"
"""The last event, and the last chunk of the answer."""
_FEWEST_EVENTS = 100
"""A token that is a part of a character comes with the next one."""


@dataclass
class Times:
    """What the streams of one way took in one round, in seconds.

    Attributes:
        first: from the request to the first token.
        between: from one token to the next.
        failed: streams without their end.
        streams_per_s: streams that ended in a second.
    """

    first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)
    failed: int = 0
    streams_per_s: float = 0.0


class Connection(asyncio.Protocol):
    """Asks for one stream after the other, and notes when tokens come; small, to cost little."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._transport: asyncio.Transport | None = None
        self._ended: asyncio.Future[bool] | None = None
        self._seen: list[float] = []
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; called by asyncio."""
        # uvloop's transports do not inherit from asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Note the time of each event; called by asyncio."""
        if not self._seen and data.startswith(b"HTTP/1.1 ") and data[9:12] not in {b"200", b""}:
            # A refusal has no event, and the connection would stay open behind it.
            assert self._transport is not None  # noqa: S101 -- for the type checker
            self._transport.close()
            return
        text = self._tail + data
        self._seen += [time.perf_counter()] * (text.count(_EVENT) - self._tail.count(_EVENT))
        self._tail = text[-len(_END) :]
        if self._tail == _END and self._ended is not None and not self._ended.done():
            self._ended.set_result(True)

    def connection_lost(self, _: Exception | None) -> None:
        """End the stream that goes on; called by asyncio."""
        self._transport = None
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(False)

    @property
    def is_open(self) -> bool:
        """Whether it may be asked."""
        return self._transport is not None and not self._transport.is_closing()

    async def stream(self, times: Times) -> None:
        """Ask for one stream; one that is cut short counts as failed."""
        assert self._transport is not None  # noqa: S101 -- for the type checker
        self._seen, self._tail = [], b""
        self._ended = asyncio.get_running_loop().create_future()
        begin_s = time.perf_counter()
        self._transport.write(self._request)
        is_complete = await self._ended
        # The last event is [DONE].
        tokens = self._seen[:-1]
        if not is_complete or len(tokens) < _FEWEST_EVENTS:
            times.failed += 1
            return
        times.first.append(tokens[0] - begin_s)
        times.between += [after - before for before, after in pairwise(tokens)]

    def close(self) -> None:
        """Close it."""
        if self._transport is not None:
            self._transport.close()


@dataclass(frozen=True)
class Way:
    """One of the two ways to the same server: directly, or through gateway and door."""

    name: str
    line: Line

    async def _open(self) -> Connection:
        loop = asyncio.get_running_loop()
        if self.name == "direct":
            path = str(self.line.place / self.line.engine.sockets[0])
            _, made = await loop.create_unix_connection(lambda: Connection(_request("")), path)
        else:
            host, _, port = self.line.gateway.partition(":")
            request = _request(f"/{SERVICE}")
            _, made = await loop.create_connection(lambda: Connection(request), host, int(port))
        return made

    async def round(self, clients: int, turns: int, pause_s: float = 0.0) -> Times:
        """Let so many clients ask for one stream after the other, with pauses.

        Each keeps its connection, as OpenAI's client does, unless the other side has closed it.
        """
        times = Times()

        async def ask() -> None:
            connection = None
            for _ in range(turns):
                try:
                    if connection is None or not connection.is_open:
                        connection = await self._open()
                    await connection.stream(times)
                except OSError:
                    times.failed += 1
                await asyncio.sleep(pause_s)
            if connection is not None:
                connection.close()

        begin_s = time.perf_counter()
        await asyncio.gather(*(ask() for _ in range(clients)))
        times.streams_per_s = clients * turns / (time.perf_counter() - begin_s)
        return times


def _request(prefix: str) -> bytes:
    body = json.dumps(
        {
            "model": MODEL,
            "prompt": "hello",
            "max_tokens": TOKENS,
            "ignore_eos": True,
            "stream": True,
            "temperature": 0,
            "cache_prompt": False,
        }
    )
    head = f"POST {prefix}/v1/completions HTTP/1.1\r\nHost: bench\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return (head + body).encode()


def _measured(quick: bool) -> Mapping[str, Any]:
    with tempfile.TemporaryDirectory(prefix="slicewise-bench-") as place:
        line = Line(Path(place), ENGINES["llamacpp"], SERVICE, SLOTS)
        with _llama_server(line.place), line.door():
            return uvloop.run(_report(line, _QUICK_ROUNDS if quick else ROUNDS))


async def _report(line: Line, rounds: int) -> Mapping[str, Any]:
    direct, ours = Way("direct", line), Way("gateway", line)
    await until(partial(_answers, direct))
    found: list[tuple[Times, Times]] = []
    async with line.haproxy():
        await until(partial(_answers, ours))
        for clients, turns, pause_s in ((FEW, _FEW_TURNS, _PAUSE_S), (MANY, 1, 0.0)):
            await direct.round(clients, 1)
            await ours.round(clients, 1)
            for number in range(rounds):
                # Whoever comes second may find the machine warmer.
                order = (direct, ours) if number % 2 else (ours, direct)
                times = {way.name: await way.round(clients, turns, pause_s) for way in order}
                found.append((times["direct"], times["gateway"]))
    few, many = found[:rounds], found[rounds:]
    return {
        "failed": sum(ours.failed for _, ours in found),
        "direct_failed": sum(direct.failed for direct, _ in found),
        "streams": sum(len(ours.first) + ours.failed for _, ours in found),
        **_added("first_token", [(one.first, other.first) for one, other in few]),
        **_added("between_tokens", [(one.between, other.between) for one, other in few]),
        "streams_per_s_ratio": median(
            ours.streams_per_s / direct.streams_per_s for direct, ours in many
        ),
        "streams_per_s": median(ours.streams_per_s for _, ours in many),
        "direct_streams_per_s": median(direct.streams_per_s for direct, _ in many),
        "rounds": rounds,
        "command": "make bench-engines",
        "machine": machine(),
    }


def _added(name: str, rounds: list[tuple[list[float], list[float]]]) -> Mapping[str, Any]:
    """Return medians of what the rounds say, in milliseconds."""
    places = {"p50": 49, "p99": 98}
    seen = [[quantiles(times, n=100) for times in (direct, ours)] for direct, ours in rounds]
    return {
        f"{name}_added_ms": {
            of: 1e3 * median(ours[at] - direct[at] for direct, ours in seen)
            for of, at in places.items()
        },
        f"direct_{name}_ms": {
            of: 1e3 * median(direct[at] for direct, _ in seen) for of, at in places.items()
        },
    }


async def _answers(way: Way) -> bool:
    times = await way.round(1, 1)
    return not times.failed


@contextmanager
def _llama_server(place: Path) -> Iterator[None]:
    file = place / "tiny.gguf"
    write_tiny_model(file)
    server = llamacpp.stage(place / "bin", place / "llamacpp", Path(sys.executable))
    process = subprocess.Popen(
        (
            *(str(server), "--model", str(file), "--alias", MODEL, "--tags", "bench.1.0"),
            *("--host", str(place / "http.sock"), "--parallel", str(SLOTS), "--threads", "1"),
            "--metrics",
        ),
        env=os.environ | {"LLAMA_ARG_CTX_SIZE": str(SLOTS * _CONTEXT_TOKENS)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _show(report: Mapping[str, Any]) -> None:
    table = Table("", "p50 +ms", "p99 +ms", "direct p50 ms", "direct p99 ms")
    for name, title in (("first_token", "first token"), ("between_tokens", "between tokens")):
        added, direct = report[f"{name}_added_ms"], report[f"direct_{name}_ms"]
        figures = (added["p50"], added["p99"], direct["p50"], direct["p99"])
        table.add_row(title, *(f"{figure:.2f}" for figure in figures))
    console().print(table)
    console().print(
        f"{report['failed']} of {report['streams']} streams failed; {MANY} at a time: "
        f"{report['streams_per_s']:.1f} a second beside {report['direct_streams_per_s']:.1f}, "
        f"{report['streams_per_s_ratio']:.2f} times."
    )


if __name__ == "__main__":
    reporting.run("engines", __doc__, f"{_QUICK_ROUNDS} rounds, not {ROUNDS}", _measured, _show)
