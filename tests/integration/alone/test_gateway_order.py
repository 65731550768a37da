"""In which order a real HAProxy serves what waits for a place."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from gateway_harness import Harness, Replica, eventually, gateway_up, replicas_up
from tritonclient.grpc import service_pb2, service_pb2_grpc

from slicewise.launcher.rules.gateway.types import Load, ServerMode
from slicewise.launcher.scripts import render

pytestmark = pytest.mark.integration

FRAME_S = 4.0
"""Time enough for five requests to come one after another, on a busy machine."""
TRIES = 5
"""Until all that is to come in a frame has come in it."""
_APART_S = 0.2
"""So much younger is each: on a busy machine tens of milliseconds may go by between HAProxy's look
at the clock for one and its place in the queue."""
REQUEST = service_pb2.ModelInferRequest(model_name="m")
Ask = Callable[[int], Awaitable[object]]


@pytest.fixture
async def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Harness]:
    monkeypatch.setattr(render, "FRAME_MS", int(1000 * FRAME_S))
    async with gateway_up(tmp_path) as harness:
        yield harness


@pytest.fixture
async def replica() -> AsyncIterator[Replica]:
    async with replicas_up() as pair:
        yield pair[0]


@asynccontextmanager
async def by_http(gateway: Harness) -> AsyncIterator[Ask]:
    yield lambda number: gateway.ask(x_number=str(number))


@asynccontextmanager
async def by_grpc(gateway: Harness) -> AsyncIterator[Ask]:
    async with gateway.channel() as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)

        def ask(number: int) -> Awaitable[object]:
            metadata = (("slicewise-service", "t/a"), ("x-number", str(number)))
            return stub.ModelInfer(REQUEST, metadata=metadata)

        yield ask


class Arrivals:
    """Requests that come one after another, numbered, while the only replica is busy."""

    def __init__(self, gateway: Harness, replica: Replica, ask: Ask) -> None:
        self._gateway, self._replica, self._ask = gateway, replica, ask
        self._asked: list[asyncio.Task[object]] = []

    async def come(self, *numbers: int) -> bool:
        """Whether all of them came in one frame: on a machine that stalls they may not."""
        begun = time.time() // FRAME_S
        for number in numbers:
            waiting = len(self._asked)
            self._asked.append(asyncio.ensure_future(self._ask(number)))
            await eventually(lambda n=waiting: self._gateway.waits(Load(1, n)))
            await asyncio.sleep(_APART_S)
        return time.time() // FRAME_S == begun

    async def end(self) -> list[int]:
        """In which order the replica got them: their answers may overtake each other."""
        await asyncio.gather(*self._asked)
        await eventually(lambda: self._gateway.waits(Load()))
        return self._replica.numbers


async def frame(at_most_gone: float) -> None:
    """Until one begins, unless no more than that part of one has gone."""
    gone_s = time.time() % FRAME_S
    if gone_s > at_most_gone * FRAME_S:
        await asyncio.sleep(FRAME_S - gone_s)


PROTOCOLS = pytest.mark.parametrize("protocol", [by_http, by_grpc], ids=["http", "grpc"])


@PROTOCOLS
async def test_beyond_what_is_in_time_the_newest_goes_first_frame_by_frame(
    gateway: Harness, replica: Replica, protocol
):
    """Two may wait: 3 and 4 go before them; 5 and 6 come a frame later and pass no others."""
    await gateway.set_replicas((replica, ServerMode.READY), concurrency=1, in_time=2)
    async with protocol(gateway) as ask:
        await ask(0)  # connecting may take its time
        for _ in range(TRIES):
            replica.numbers.clear()
            replica.pause()
            arrivals = Arrivals(gateway, replica, ask)
            await frame(0.3)
            came = [await arrivals.come(0, 1, 2, 3, 4)]
            await frame(0.0)
            came.append(await arrivals.come(5, 6))
            replica.go_on()
            served = await arrivals.end()
            if all(came):
                break
        assert (came, served) == ([True, True], [0, 4, 3, 1, 2, 6, 5])


@PROTOCOLS
async def test_without_an_objective_it_is_first_come_first_served(
    gateway: Harness, replica: Replica, protocol
):
    await gateway.set_replicas((replica, ServerMode.READY), concurrency=1)
    replica.pause()
    async with protocol(gateway) as ask:
        arrivals = Arrivals(gateway, replica, ask)
        await arrivals.come(0, 1, 2, 3, 4)
        replica.go_on()
        assert await arrivals.end() == [0, 1, 2, 3, 4]
