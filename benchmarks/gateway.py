"""Measures what the gateway and the door in front of the replica add to a request's latency.

The same Triton is asked through both and directly, in turn, in one run. The load is an open loop at
half of what can be answered: each request leaves at its time, whether or not earlier requests have
been answered. The figures are medians of a few rounds.
"""

import asyncio
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import aiohttp
import uvloop
from rich.table import Table

from benchmarks import reporting
from benchmarks.gateway_clients import MODEL, SERVICE, Connection, GrpcConnection, HttpConnection
from benchmarks.line import Line, until
from benchmarks.machine import machine
from slicewise.cluster.runtime.console import console
from slicewise.launcher.rules.engines.registry import ENGINES
from slicewise.sandbox.demo.commands import publish_models
from slicewise.sandbox.servers import triton

CONNECTIONS = (1, 16, 256)
INSTANCES, SERVICE_S = 4, 0.005
"""The model's instances, and seconds that it sleeps a request; an answer takes a little longer."""
ROUNDS = 5
"""Rounds at each point. Their medians count, so that a moment in which the machine did something
else is not attributed to the gateway."""
_WARM_UP_S = 2.0


@dataclass
class Arm:
    """One of the two ways to the same Triton: directly, or through gateway and door."""

    connections: Sequence[Connection]
    latencies_s: list[float] = field(default_factory=list)
    errors: int = 0

    async def ask(self, number: int) -> None:
        """Ask over the connection that is next in turn; record the latency or count an error."""
        begin_s = time.perf_counter()
        try:
            await self.connections[number % len(self.connections)].ask()
        except Exception:  # noqa: BLE001 -- whatever it was, no answer came
            self.errors += 1
        else:
            self.latencies_s.append(time.perf_counter() - begin_s)


def _measured(quick: bool) -> Mapping[str, Any]:
    with tempfile.TemporaryDirectory(prefix="slicewise-bench-") as place:
        line = Line(Path(place), ENGINES["triton"], SERVICE, 2 * INSTANCES)
        with _triton(line.place), line.door():
            return uvloop.run(_report(line, 3.0 if quick else 20.0))


async def _report(line: Line, seconds: float) -> Mapping[str, Any]:
    await until(partial(_triton_answers, line.place))
    report: dict[str, Any] = {}
    async with line.haproxy() as worker:
        for protocol, opened in (("http", partial(_http, line)), ("grpc", partial(_grpc, line))):
            report[protocol] = {
                str(count): await _point(opened, count, seconds, worker) for count in CONNECTIONS
            }
    return {**report, "machine": machine()}


async def _point(
    opened: Callable[[int], Awaitable[tuple[Arm, Arm]]], count: int, seconds: float, worker: int
) -> Mapping[str, Any]:
    """Measure with ``count`` connections an arm.

    Together both arms ask half of what the model or their connections can answer, whichever is
    less.
    """
    arms = await opened(count)
    rate = min(INSTANCES, 2 * count) / SERVICE_S / 2
    await _offer(arms, rate, max(_WARM_UP_S, 3 * 2 * count / rate))
    before_s = _cpu_s(worker)
    rounds = []
    for _ in range(ROUNDS):
        for arm in arms:
            arm.latencies_s.clear()
        await _offer(arms, rate, seconds / ROUNDS)
        rounds.append(_quantiles_ms(*arms))
    used_s = _cpu_s(worker) - before_s
    for arm in arms:
        for connection in arm.connections:
            await connection.close()
    asked = ROUNDS * int(rate * seconds / ROUNDS) // 2
    return {
        **{name: median(found[name] for found in rounds) for name in rounds[0]},
        "haproxy_cpu_us": 1e6 * used_s / asked,
        "errors": arms[1].errors,
        "direct_errors": arms[0].errors,
        "requests": asked,
    }


async def _offer(arms: tuple[Arm, Arm], rate: float, seconds: float) -> None:
    """Send evenly spaced requests over both arms in turn, and wait for all answers."""
    begin_s = time.perf_counter()
    asked = []
    for number in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, begin_s + number / rate - time.perf_counter()))
        asked.append(asyncio.create_task(arms[number % 2].ask(number // 2)))
    await asyncio.gather(*asked)


def _quantiles_ms(direct: Arm, gateway: Arm) -> Mapping[str, float]:
    ours, theirs = (quantiles(arm.latencies_s, n=100) for arm in (gateway, direct))
    return {
        "p50_added_ms": 1e3 * (ours[49] - theirs[49]),
        "p99_added_ms": 1e3 * (ours[98] - theirs[98]),
        "direct_p50_ms": 1e3 * theirs[49],
        "direct_p99_ms": 1e3 * theirs[98],
    }


async def _http(line: Line, count: int) -> tuple[Arm, Arm]:
    direct = [await HttpConnection.open(f"unix:{line.place / 'http'}", "") for _ in range(count)]
    ours = [await HttpConnection.open(line.gateway, f"/{SERVICE}") for _ in range(count)]
    return Arm(direct), Arm(ours)


async def _grpc(line: Line, count: int) -> tuple[Arm, Arm]:
    direct = [GrpcConnection(f"unix:{line.place / 'grpc:2'}", ()) for _ in range(count)]
    metadata = (("slicewise-service", SERVICE),)
    ours = [GrpcConnection(line.gateway, metadata) for _ in range(count)]
    return Arm(direct), Arm(ours)


@contextmanager
def _triton(place: Path) -> Iterator[None]:
    models = publish_models(place)
    settings = models / MODEL / "config.pbtxt"
    text = settings.read_text(encoding="utf-8")
    settings.write_text(text.replace("count: 2", f"count: {INSTANCES}"), encoding="utf-8")
    server = triton.stage(place / "bin", place / "triton")
    process = subprocess.Popen(
        (
            *(str(server), f"--model-repository={models}"),
            *(f"--http-address=unix:{place / 'http'}", "--http-port=1"),
            *(f"--grpc-address=unix:{place / 'grpc'}", "--grpc-port=2"),
            "--allow-metrics=false",
        ),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()
        triton.remove_shared_memory(place / "triton")


async def _triton_answers(place: Path) -> bool:
    url = f"http://triton/v2/models/{MODEL}/ready"
    connector = aiohttp.UnixConnector(str(place / "http"))
    try:
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get(url) as answer,
        ):
            return answer.ok
    except (aiohttp.ClientError, OSError):
        return False


def _cpu_s(process: int) -> float:
    """CPU seconds of all threads of the process."""
    tasks = Path(f"/proc/{process}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def _show(report: Mapping[str, Any]) -> None:
    table = Table("", "connections", "p50 +ms", "p99 +ms", "HAProxy µs", "errors", "direct p50 ms")
    for protocol in ("http", "grpc"):
        for count, found in report[protocol].items():
            added = (f"{found[key]:.2f}" for key in ("p50_added_ms", "p99_added_ms"))
            used = f"{found['haproxy_cpu_us']:.0f}"
            direct = f"{found['direct_p50_ms']:.2f}"
            table.add_row(protocol, count, *added, used, str(found["errors"]), direct)
    console().print(table)


if __name__ == "__main__":
    reporting.run("gateway", __doc__, "3 s at each point instead of 20", _measured, _show)
