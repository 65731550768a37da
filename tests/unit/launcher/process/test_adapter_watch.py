"""Tests which replicas are told which adapters, and what is known of them then."""

import asyncio
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from slicewise.cluster.rpc.messages import AdapterReport
from slicewise.launcher.probing.prober import Replica
from slicewise.launcher.process.adapter_watch import AdapterWatch
from slicewise.launcher.rules.gateway.types import Endpoint
from slicewise.launcher.rules.turn.endpoints import ReplicaRun, Verified
from slicewise.launcher.rules.turn.state import GenerationState, ServiceState

pytestmark = pytest.mark.usefixtures("clock")

CHAT, ARRAY = "nlp/chat", 7
NONE: Mapping[str, int] = {}


class Replicas:
    """Replicas by port: what they were told, and what they refuse."""

    def __init__(self) -> None:
        self.told: list[tuple[int, dict[str, str]]] = []
        self.refused: dict[int, Mapping[str, str] | None] = {}

    async def fit(self, replica: Replica) -> Mapping[str, str] | None:
        assert replica.service == "chat"
        self.told.append((replica.port, dict(replica.adapters)))
        return self.refused.get(replica.port, {})


def turned(
    watch: AdapterWatch,
    ports: Iterable[int],
    adapters: Mapping[str, str],
    *,
    counted: Mapping[str, int] = NONE,
    fits: frozenset[int] = frozenset({ARRAY}),
    group: str = "vllm",
) -> None:
    verified = {
        port: Verified(ReplicaRun(port, 5, Endpoint("10.0.0.1", port, port, "C")), 1.0)
        for port in ports
    }
    state = {CHAT: ServiceState(None, {ARRAY: GenerationState(verified=verified)})}
    spec = SimpleNamespace(model_repository="/m", adapters=tuple(adapters.items()), name="chat")
    route = SimpleNamespace(group=group)
    one = SimpleNamespace(service=CHAT, spec=spec, fits=fits, route=route)
    plan: Any = SimpleNamespace(services=[one])
    watch.turned(plan, state, counted)


async def looked(watch: AdapterWatch, at_s: float = 0.0) -> None:
    with patch("slicewise.launcher.process.adapter_watch.time.monotonic", lambda: at_s):
        watch.look()
        for _ in range(10):
            await asyncio.sleep(0)


async def test_each_replica_is_told_once_and_again_when_they_change():
    replicas = Replicas()
    watch = AdapterWatch(replicas.fit)
    turned(watch, (1, 2), {"legal": "legal"})
    assert watch.tried == {CHAT: frozenset()}
    await looked(watch)
    await looked(watch, 1000.0)
    assert replicas.told == [(1, {"legal": "/m/legal"}), (2, {"legal": "/m/legal"})]
    assert watch.tried == {CHAT: {"legal"}}
    turned(watch, (1, 2), {"legal": "legal-2", "tax": "tax"})
    assert watch.tried == {CHAT: frozenset()}
    await looked(watch, 2000.0)
    assert replicas.told[2:] == [
        (port, {"legal": "/m/legal-2", "tax": "/m/tax"}) for port in (1, 2)
    ]
    turned(watch, (1, 2), {})
    await looked(watch, 3000.0)
    assert replicas.told[4:] == [(1, {}), (2, {})]
    assert watch.reports.get(CHAT, ()) == ()


async def test_what_a_replica_refuses_is_told_and_tried_again_after_a_while():
    replicas = Replicas()
    watch = AdapterWatch(replicas.fit)
    replicas.refused = {2: {"legal": "rank 64 is too large"}}
    turned(watch, (1, 2), {"legal": "legal", "tax": "tax"})
    await looked(watch)
    assert watch.reports.get(CHAT, ()) == (
        AdapterReport(model="chat:legal", loaded=1, replicas=2, why="rank 64 is too large"),
        AdapterReport(model="chat:tax", loaded=2, replicas=2),
    )
    # Others are let in, and what was refused is told to who asks for it.
    assert watch.tried == {CHAT: {"legal", "tax"}}
    await looked(watch, 10.0)
    assert len(replicas.told) == 2
    replicas.refused = {}
    await looked(watch, 40.0)
    assert [port for port, _ in replicas.told[2:]] == [2]
    assert [one.loaded for one in watch.reports.get(CHAT, ())] == [2, 2]


async def test_one_that_does_not_answer_has_tried_nothing_and_is_asked_again():
    replicas = Replicas()
    watch = AdapterWatch(replicas.fit)
    replicas.refused = {1: None}
    turned(watch, (1,), {"legal": "legal"})
    await looked(watch)
    assert watch.tried == {CHAT: frozenset()}
    assert watch.reports.get(CHAT, ()) == (AdapterReport(model="chat:legal", loaded=0, replicas=1),)
    replicas.refused = {}
    await looked(watch, 40.0)
    assert watch.tried == {CHAT: {"legal"}}


async def test_a_silent_replica_keeps_no_adapter_from_clients_once_it_was_asked():
    replicas = Replicas()
    watch = AdapterWatch(replicas.fit)
    turned(watch, (1,), {"legal": "legal"})
    await looked(watch)
    replicas.refused = {2: None}
    turned(watch, (1, 2), {"legal": "legal"})
    assert watch.tried == {CHAT: frozenset()}
    await looked(watch, 100.0)
    assert watch.tried == {CHAT: {"legal"}}


async def test_replicas_of_generations_that_follow_nothing_are_left_alone():
    replicas = Replicas()
    watch = AdapterWatch(replicas.fit)
    turned(watch, (1,), {"legal": "legal"}, fits=frozenset({8}))
    await looked(watch)
    turned(watch, (1,), {"legal": "legal"}, group="llamacpp")
    await looked(watch)
    assert replicas.told == []
    # Those that serve can't have it: its clients wait for one that can.
    assert watch.tried == {CHAT: frozenset()}


async def test_requests_are_added_up_over_restarts_of_the_gateway():
    watch = AdapterWatch(Replicas().fit)
    for count in (3, 5, 1, 1, 4):
        turned(watch, (), {"legal": "legal"}, counted={f"{CHAT}:legal": count})
    assert watch.requests == {f"{CHAT}:legal": 9}
    assert [one.requests for one in watch.reports.get(CHAT, ())] == [9]
    turned(watch, (), {})
    assert watch.requests == {}


async def test_a_replica_that_has_gone_says_nothing_any_more():
    replicas = Replicas()
    watch = AdapterWatch(replicas.fit)
    replicas.refused = {1: {"legal": "broken"}}
    turned(watch, (1,), {"legal": "legal"})
    watch.look()
    turned(watch, (), {"legal": "legal"})
    for _ in range(10):
        await asyncio.sleep(0)
    assert watch.reports.get(CHAT, ()) == (AdapterReport(model="chat:legal"),)
