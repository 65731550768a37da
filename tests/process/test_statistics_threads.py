"""Tests the sum of a service's statistics: which replicas are asked, when, and what is kept."""

import asyncio
import json
import threading
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.engines import triton_statistics
from launcher.engines.failures import ENGINE_FAILURES
from launcher.engines.registry import ENGINES
from launcher.engines.statistics import Counts, StatisticsAnswer
from launcher.gateway.types import Endpoint
from launcher.probing.prober import Replica
from launcher.process import statistics
from launcher.process.counted_service import CountedService
from launcher.process.statistics import ServiceStatistics
from launcher.turn.endpoints import ReplicaRun, Verified
from launcher.turn.state import GenerationState, ServiceState

KEY = ("m", "1", "inference_count")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "_APART_S", 0.0)


@pytest.fixture(autouse=True)
def _no_engine_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ENGINE_FAILURES, "_said", set())


async def counts(of: ServiceStatistics, service: str) -> Counts | None:
    """What its models have counted until now, as an answer to a client would say it."""
    return await of._seen(service, CountedService.all)


def verified(ports: tuple[int, ...]) -> dict[int, Verified]:
    runs = [ReplicaRun(port, 1, Endpoint("10.0.0.1", port, port, "C")) for port in ports]
    return {run.job_id: Verified(run, 1.0) for run in runs}


class World:
    """Replicas by port: what each has counted; None is silence."""

    def __init__(self) -> None:
        self.said: dict[int, Counts | None] = {}
        self.asked: list[int] = []
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.hung: dict[int, asyncio.Event] = {}
        self.statistics = ServiceStatistics(self.ask)

    async def ask(self, replica: Replica) -> Counts | None:
        self.asked.append(replica.port)
        await self.goes_on.wait()
        if replica.port in self.hung:
            await self.hung[replica.port].wait()
        return self.said[replica.port]

    def turned(self, *ports: int, services: tuple[str, ...] = ("t/a",)) -> None:
        self.turned_to(dict.fromkeys(services, ports))

    def turned_to(self, services: Mapping[str, tuple[int, ...]]) -> None:
        route = SimpleNamespace(pool=ENGINES["triton"].pool)
        plan: Any = SimpleNamespace(
            services=[SimpleNamespace(service=one, route=route) for one in services]
        )
        state = {
            one: ServiceState(generations={7: GenerationState(verified=verified(ports))})
            for one, ports in services.items()
        }
        self.statistics.turned(plan, state)

    async def count(self) -> int | None:
        found = await counts(self.statistics, "t/a")
        return None if found is None else found.get(KEY)


async def test_an_answer_is_written_once_and_in_no_event_loop(monkeypatch: pytest.MonkeyPatch):
    threads, written = [], triton_statistics.by_http

    def by_http(path: str, counts: Counts) -> StatisticsAnswer:
        threads.append(threading.current_thread())
        return written(path, counts)

    monkeypatch.setattr(triton_statistics, "by_http", by_http)
    world = World()
    world.said = {1: {KEY: 5}}
    world.turned(1)
    path = triton_statistics.ALL
    asked = (world.statistics.answer("t/a", path, None) for _ in range(5))
    answers = await asyncio.gather(*asked)
    assert [one is not None and one.status for one in answers] == [200] * 5
    assert len(threads) == 1
    assert threading.main_thread() not in threads
    world.said = {1: {KEY: 6}}
    found = await world.statistics.answer("t/a", path, None)
    assert found is not None
    assert json.loads(found.body)["model_stats"][0]["inference_count"] == 6
    # However many different ones clients ask for, few are kept, also while nothing is counted.
    for number in range(5):
        await world.statistics.answer("t/a", f"/v2/models/{number}/stats", None)
    assert len(world.statistics._services["t/a"].derived.answers) == 1
    called = await world.statistics.answer("t/a", "/", b"")
    assert called is not None
    assert called.body[:1] == b"\0"
