"""Tests which replicas are asked how long their tokens take, and how counts are added up."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.engines.engine import TokenCounts
from launcher.gateway.types import Endpoint
from launcher.probing.prober import Replica
from launcher.process.token_watch import TokenWatch
from launcher.turn.endpoints import ReplicaRun, Verified
from launcher.turn.state import GenerationState, ServiceState

CHAT = "nlp/chat"


class Replicas:
    """Replicas by port, which say what they are told to."""

    def __init__(self) -> None:
        self.counts: dict[int, TokenCounts | None] = {}
        self.asked: list[int] = []

    async def ask(self, replica: Replica) -> TokenCounts | None:
        self.asked.append(replica.port)
        return self.counts.get(replica.port)


def turned(
    watch: TokenWatch,
    ports: Iterable[int],
    pool: str = "llamacpp",
    *,
    times_tokens: bool = True,
) -> None:
    route = SimpleNamespace(pool=pool)
    service: Any = SimpleNamespace(service=CHAT, times_tokens=times_tokens, route=route)
    runs = {
        port: Verified(ReplicaRun(port, 5, Endpoint("10.0.0.1", port, port, "C")), 1.0)
        for port in ports
    }
    state = {CHAT: ServiceState(None, {7: GenerationState(verified=runs)})}
    plan: Any = SimpleNamespace(services=(service,))
    watch.turned(plan, state)


async def test_counts_of_all_replicas_are_added_up_and_none_is_lost_with_its_replica():
    replicas = Replicas()
    watch = TokenWatch(replicas.ask)
    turned(watch, (1, 2))
    replicas.counts = {1: TokenCounts(5.0, 100.0, 2.0), 2: TokenCounts(0.0, 0.0, 0.0)}
    await watch.look()
    replicas.counts = {1: TokenCounts(6.0, 150.0, 3.0), 2: TokenCounts(0.5, 10.0, 0.1)}
    await watch.look()
    assert watch.counts[CHAT] == TokenCounts(1.5, 60.0, 1.1)
    turned(watch, (2,))
    replicas.counts = {2: TokenCounts(1.5, 20.0, 0.2)}
    await watch.look()
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
        await watch.look()
    replicas.counts[1] = TokenCounts(0.1, 1.0, 0.1)
    await watch.look()
    assert watch.counts[CHAT] == TokenCounts(1.0, 20.0, 1.0)


async def test_only_engines_that_tell_are_asked_and_only_for_an_objective():
    replicas = Replicas()
    watch = TokenWatch(replicas.ask)
    turned(watch, (1,), pool="pool")
    await watch.look()
    assert replicas.asked == []
    turned(watch, (1,), times_tokens=False)
    await watch.look()
    assert replicas.asked == []
