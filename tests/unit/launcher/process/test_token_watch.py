"""Tests which replicas are asked how long their tokens take, and how counts are added up."""

import asyncio
import math
import time
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from slicewise.launcher.probing.prober import EngineMetrics, Replica
from slicewise.launcher.process.token_watch import TokenWatch
from slicewise.launcher.rules.engines.engine import TokenCounts
from slicewise.launcher.rules.engines.load import EngineCounts, EngineLoad, ServersLoad
from slicewise.launcher.rules.gateway.types import Endpoint
from slicewise.launcher.rules.turn.endpoints import ReplicaRun, Verified
from slicewise.launcher.rules.turn.state import GenerationState, ServiceState

pytestmark = pytest.mark.usefixtures("clock")

CHAT, OTHER = "nlp/chat", "vision/chat"


class Replicas:
    """Replicas by port, which say what they are told to."""

    def __init__(self) -> None:
        self.counts: dict[int, TokenCounts | None] = {}
        self.loads: dict[int, EngineLoad] = {}
        self.asked: list[int] = []
        self.silent: frozenset[int] = frozenset()

    async def ask(self, replica: Replica) -> EngineMetrics | None:
        self.asked.append(replica.port)
        if replica.port in self.silent:
            await asyncio.Event().wait()
        counts, load = self.counts.get(replica.port), self.loads.get(replica.port)
        return None if counts is load is None else EngineMetrics(counts, load)


async def looked(watch: TokenWatch, at_s: float = math.inf) -> None:
    """Ask, and let those answer that do."""
    # Beyond this a tenant rests for the CPU that its replicas have taken.
    with patch("slicewise.launcher.process.token_watch.time.monotonic", lambda: at_s):
        watch.look()
    for _ in range(10):
        await asyncio.sleep(0)


def turned(
    watch: TokenWatch,
    ports: Iterable[int],
    group: str = "llamacpp",
    *,
    times_tokens: bool = True,
    others: Iterable[int] = (),
) -> None:
    spec = SimpleNamespace(times_tokens=times_tokens)
    route = SimpleNamespace(group=group, targets=None)
    state = {
        name: ServiceState(
            None,
            {
                7: GenerationState(
                    verified={
                        port: Verified(
                            ReplicaRun(port, 5, Endpoint("10.0.0.1", port, port, "C")), 1.0
                        )
                        for port in found
                    }
                )
            },
        )
        for name, found in ((OTHER, others), (CHAT, ports))
    }
    plan: Any = SimpleNamespace(
        services=[SimpleNamespace(service=name, spec=spec, route=route) for name in state]
    )
    watch.turned(plan, state)


async def test_counts_of_all_replicas_are_added_up_and_none_is_lost_with_its_replica():
    replicas = Replicas()
    watch = TokenWatch(replicas.ask)
    turned(watch, (1, 2))
    replicas.counts = {1: TokenCounts(5.0, 100.0, 2.0), 2: TokenCounts(0.0, 0.0, 0.0)}
    await looked(watch)
    replicas.counts = {1: TokenCounts(6.0, 150.0, 3.0), 2: TokenCounts(0.5, 10.0, 0.1)}
    await looked(watch)
    assert watch.counts[CHAT] == TokenCounts(1.5, 60.0, 1.1)
    turned(watch, (2,))
    replicas.counts = {2: TokenCounts(1.5, 20.0, 0.2)}
    await looked(watch)
    found = watch.counts[CHAT]
    assert (found.first_s, found.tokens) == (2.5, 70.0)
    assert found.token_s == pytest.approx(1.2)
    assert replicas.asked[-1] == 2


async def test_one_that_says_nothing_or_has_started_again_takes_nothing_away():
    replicas = Replicas()
    watch = TokenWatch(replicas.ask)
    turned(watch, (1,))
    for said in (TokenCounts(1.0, 10.0, 1.0), TokenCounts(2.0, 30.0, 2.0), None):
        replicas.counts[1] = said
        await looked(watch)
    replicas.counts[1] = TokenCounts(0.1, 1.0, 0.1)
    await looked(watch)
    assert watch.counts[CHAT] == TokenCounts(1.0, 20.0, 1.0)


async def test_histograms_are_added_up_and_one_that_starts_again_takes_nothing_away():
    replicas = Replicas()
    watch = TokenWatch(replicas.ask)
    turned(watch, (1, 2))
    for one, two in (
        ((5.0, 0.0), ()),
        ((6.0, 2.0), (9.0, 9.0)),
        ((7.0, 0.0), (9.0, 10.0)),
    ):
        replicas.counts = {1: counted(one), 2: counted(two)}
        await looked(watch)
    assert watch.counts[CHAT].firsts == (2.0, 3.0)


def counted(firsts: tuple[float, ...]) -> TokenCounts:
    return TokenCounts(1.0, 10.0, 1.0, firsts=firsts)


async def test_only_engines_that_tell_are_asked_and_without_an_objective_seldom():
    replicas = Replicas()
    watch = TokenWatch(replicas.ask)
    turned(watch, (1,), group="triton")
    await looked(watch)
    assert replicas.asked == []
    replicas.counts = {1: TokenCounts(5.0, 100.0, 2.0), 5: TokenCounts(5.0, 100.0, 2.0)}
    turned(watch, (1,), times_tokens=False)
    later_s = time.monotonic() + 1000
    for after_s, asked in ((0, 1), (9.9, 1), (10, 2)):
        await looked(watch, later_s + after_s)
        assert (len(replicas.asked), watch.counts) == (asked, {})
    turned(watch, (1,))
    for after_s, asked in ((20, 3), (20.1, 4)):
        await looked(watch, later_s + after_s)
        assert (len(replicas.asked), list(watch.counts)) == (asked, [CHAT])


def load(running: float, cache: float | None, *counts: float | None) -> EngineLoad:
    return EngineLoad(running, 1.0, cache, EngineCounts(*counts))


async def test_what_replicas_work_on_and_have_counted_is_added_up():
    replicas = Replicas()
    watch = TokenWatch(replicas.ask)
    turned(watch, (1, 2))
    await looked(watch)
    assert watch.loads == {}
    replicas.loads = {1: load(3.0, 0.5, 7.0, 50.0, 9.0, 50.0, 10.0), 2: load(4.0, None)}
    await looked(watch)
    zeros = EngineCounts(0.0, 0.0, 0.0, 0.0, 0.0)
    assert watch.loads == {CHAT: ServersLoad(7, 2, 0.5, zeros, replicas=2)}
    replicas.loads = {1: load(3.0, 0.9, 8.0, 90.0, 19.0, 90.0, 40.0), 2: load(0.0, 0.2, 5.0)}
    await looked(watch)
    replicas.loads[2] = load(0.0, 0.2, 6.0)
    await looked(watch)
    found = watch.loads[CHAT]
    assert found == ServersLoad(3, 2, 0.9, EngineCounts(2.0, 40.0, 10.0, 40.0, 30.0), 0.75, 2)


async def test_one_that_has_started_again_or_says_nothing_leaves_what_was_counted():
    replicas = Replicas()
    watch = TokenWatch(replicas.ask)
    turned(watch, (1,))
    for count in (5.0, 9.0, 2.0, 3.0):
        replicas.loads[1] = load(1.0, 1.0, count)
        await looked(watch)
    del replicas.loads[1]
    await looked(watch)
    assert watch.loads == {}
    replicas.loads[1] = load(1.0, 1.0, 4.0)
    await looked(watch)
    assert watch.loads[CHAT].counts.preemptions == 4 + 0 + 1 + 1
    turned(watch, ())
    assert watch.loads == {}
    plan: Any = SimpleNamespace(services=[])
    watch.turned(plan, {})
    assert vars(watch)["_loads"] == {}


async def test_silent_replicas_delay_no_others():
    """Neither those of another tenant, of which there are many, nor one of the same service."""
    replicas = Replicas()
    watch = TokenWatch(replicas.ask)
    replicas.silent = frozenset({2, *range(1000, 1300)})
    turned(watch, (1, 2), others=range(1000, 1300))
    for number in range(3):
        replicas.counts = {1: TokenCounts(1.0 + number, 10.0 + number, 1.0)}
        await looked(watch)
    assert watch.counts[CHAT] == TokenCounts(2.0, 2.0, 0.0)
    assert [replicas.asked.count(port) for port in (1, 2, 1000)] == [3, 1, 1]
    assert len(replicas.asked) == 3 + 1 + 32


async def test_a_tenant_whose_answers_took_long_to_read_rests():
    replicas = Replicas()
    watch = TokenWatch(replicas.ask)
    turned(watch, (1,), others=(5,))
    spent = iter((0.0, 100.0))
    with patch(
        "slicewise.launcher.process.tenant_share.time.thread_time", lambda: next(spent, 100.0)
    ):
        await looked(watch)
    before = list(replicas.asked)
    watch.look()
    for _ in range(10):
        await asyncio.sleep(0)
    assert (before, replicas.asked[2:]) == ([5, 1], [1])


async def test_what_comes_after_its_replica_has_gone_is_not_added():
    replicas = Replicas()
    watch = TokenWatch(replicas.ask)
    turned(watch, (1,))
    replicas.counts = {1: TokenCounts(1.0, 1.0, 1.0)}
    watch.look()
    turned(watch, ())
    for _ in range(10):
        await asyncio.sleep(0)
    assert (replicas.asked, watch.counts) == ([1], {})
