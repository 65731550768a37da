"""Tests the sum of a service's statistics: which replicas are asked, when, and what is kept."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.engines.registry import ENGINES
from launcher.engines.statistics import Counts
from launcher.gateway.types import Endpoint
from launcher.probing.prober import Replica
from launcher.process import statistics
from launcher.process.statistics import ServiceStatistics
from launcher.turn.endpoints import ReplicaRun, Verified
from launcher.turn.state import GenerationState, ServiceState

KEY = ("m", "1", "inference_count")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "_APART_S", 0.0)


class World:
    """Replicas by port: what each has counted; None is silence."""

    def __init__(self) -> None:
        self.said: dict[int, Counts | None] = {}
        self.asked: list[int] = []
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.statistics = ServiceStatistics(self.ask)

    async def ask(self, replica: Replica) -> Counts | None:
        self.asked.append(replica.port)
        await self.goes_on.wait()
        return self.said[replica.port]

    def turned(self, *ports: int, services: tuple[str, ...] = ("t/a",)) -> None:
        runs = [ReplicaRun(port, 1, Endpoint("10.0.0.1", port, port, "C")) for port in ports]
        verified = {run.job_id: Verified(run, 1.0) for run in runs}
        route = SimpleNamespace(pool=ENGINES["triton"].pool)
        plan: Any = SimpleNamespace(
            services=[SimpleNamespace(service=one, route=route) for one in services]
        )
        state = {
            one: ServiceState(generations={7: GenerationState(verified=verified)})
            for one in services
        }
        self.statistics.turned(plan, state)

    async def count(self) -> int | None:
        found = await self.statistics.counts("t/a")
        return None if found is None else found.get(KEY)


async def test_replicas_are_added_up_and_those_that_ended_still_count():
    world = World()
    world.said = {1: {KEY: 5}, 2: {KEY: 7}}
    world.turned(1, 2)
    assert await world.count() == 12
    world.turned(2)
    assert await world.count() == 12
    world.said[2] = {KEY: 8}
    assert await world.count() == 13
    world.turned()
    assert await world.count() == 13


async def test_a_replica_that_is_silent_counts_with_what_it_said_last():
    world = World()
    world.said = {1: {KEY: 5}, 2: {KEY: 7}}
    world.turned(1, 2)
    assert await world.count() == 12
    world.said = {1: None, 2: {KEY: 8}}
    assert await world.count() == 13


async def test_a_service_that_is_unknown_or_of_which_none_has_said_anything_has_no_counts():
    world = World()
    assert await world.count() is None
    world.turned()
    assert await world.count() is None
    world.said = {1: None}
    world.turned(1)
    assert await world.count() is None


async def test_questions_that_come_together_share_the_next_look():
    world = World()
    world.said = {1: {KEY: 5}}
    world.turned(1)
    world.goes_on.clear()
    first = asyncio.create_task(world.count())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    # What is counted now, the first look may have missed: those who ask now wait for another one.
    later = [asyncio.create_task(world.count()) for _ in range(5)]
    await asyncio.sleep(0)
    world.said = {1: {KEY: 6}}
    world.goes_on.set()
    await asyncio.gather(first, *later)
    assert [one.result() for one in later] == [6] * 5
    assert len(world.asked) == 2


async def test_only_services_that_clients_ask_about_are_looked_at():
    world = World()
    world.said = {1: {KEY: 5}}
    world.turned(1, services=("t/a", "t/b"))
    await world.statistics.look_on()
    assert world.asked == []
    assert await world.count() == 5
    world.said = {1: {KEY: 6}}
    await world.statistics.look_on()
    assert world.asked == [1, 1]
    world.turned()
    assert await world.count() == 6


async def test_what_no_client_has_asked_for_long_is_forgotten(monkeypatch: pytest.MonkeyPatch):
    world = World()
    world.said = {1: {KEY: 5}}
    world.turned(1)
    assert await world.count() == 5
    monkeypatch.setattr(statistics, "_ASKED_S", -1.0)
    await world.statistics.look_on()
    assert world.asked == [1]
    monkeypatch.setattr(statistics, "_KEPT_S", -1.0)
    await world.statistics.look_on()
    world.turned()
    assert await world.count() is None


async def test_a_deleted_service_leaves_nothing():
    world = World()
    world.said = {1: {KEY: 5}}
    world.turned(1)
    assert await world.count() == 5
    world.turned(services=())
    world.turned()
    assert await world.count() is None


async def test_the_launcher_that_leads_next_goes_on_with_the_counts():
    """Also with those of a replica that has ended meanwhile; none is added twice."""
    world, next_one = World(), World()
    world.said = {1: {KEY: 5}, 2: {KEY: 7}, 3: {KEY: 1}}
    world.turned(1, 2, 3, services=("t/a", "t/b"))
    assert await world.count() == 13
    world.turned(2, 3, services=("t/a", "t/b"))
    saved = world.statistics.saved()
    assert "t/b" not in saved
    next_one.statistics.restore(saved)
    next_one.said = {3: {KEY: 4}}
    next_one.turned()
    assert await next_one.count() == 13
    next_one.turned(3)
    assert await next_one.count() == 16
    other = World()
    other.statistics.restore("{")
    other.turned()
    assert await other.count() is None


async def test_runs_that_ended_long_ago_are_known_together(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(statistics, "_MOST_ENDED", 2)
    world = World()
    for port in range(1, 9):
        world.said = {port: {KEY: port}}
        world.turned(port)
        assert await world.count() == sum(range(port + 1))
    assert len(json.loads(world.statistics.saved())["t/a"]["runs"]) == 3
    world.turned(7)
    world.said = {7: {KEY: 10}}
    assert await world.count() == sum(range(9)) + 3
