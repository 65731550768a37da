"""Tests which replicas are told which models, and what is known of them then."""

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from builders.service_specs import a_spec

from slicewise.launcher.probing.prober import Replica
from slicewise.launcher.process.model_watch import ModelWatch
from slicewise.launcher.rules.engines.statistics import Answered
from slicewise.launcher.rules.gateway.types import Endpoint
from slicewise.launcher.rules.pools.types import ReplicaModels, Told
from slicewise.launcher.rules.turn.endpoints import ReplicaRun, Verified
from slicewise.launcher.rules.turn.state import GenerationState, ServiceState

pytestmark = pytest.mark.usefixtures("clock")

ARRAY = 7
RUN = (ARRAY, 0, 5)
MODELS = ("own", "a", "b")


class Server:
    """A replica that loads a model in each call, as ``fit_models`` lets it.

    Attributes:
        slow: the model whose load waits until it ``goes_on``.
    """

    def __init__(self) -> None:
        self.ready = frozenset({"own"})
        self.refuses: dict[str, str] = {}
        self.answered: dict[str, Answered] = {}
        self.broken = ""
        self.is_silent = False
        self.on_node: set[str] = set()
        self.told: list[Replica] = []
        self.goes_on = asyncio.Event()
        self.slow = ""

    async def fit(self, replica: Replica) -> ReplicaModels | None:
        self.told.append(replica)
        if self.is_silent:
            return None
        self.ready &= replica.models | {replica.model}
        for model in sorted(replica.models - self.ready - replica.loading):
            if model == self.slow:
                await self.goes_on.wait()
            if model in self.refuses:
                return ReplicaModels(self.ready, refused={model: self.refuses[model]})
            self.ready |= {model}
            from_node = frozenset({model} & self.on_node)
            self.on_node.add(model)
            return ReplicaModels(self.ready, loads=1, load_s={model: 2.5}, from_node=from_node)
        if self.broken in replica.checked:
            return ReplicaModels(self.ready, loads=1, load_s={self.broken: 2.5})
        return ReplicaModels(self.ready, answered=self.answered)


def plan_of(name: str, group: str, models: Mapping[Any, Any]) -> SimpleNamespace:
    spec = a_spec(
        tenant="nlp",
        name=name,
        model=name,
        pool="small",
        start_timeout_s=600,
        readiness="model" if name == "b" else "inference",
    )
    route = SimpleNamespace(group=group)
    service = f"nlp/{name}"
    members = tuple(f"nlp/{model}" for model in MODELS)
    told = {"models": models, "members": members}
    return SimpleNamespace(service=service, array_job_id=ARRAY, spec=spec, route=route, **told)


class Pool:
    """A pool of which one replica runs, at times that a test says."""

    def __init__(self, *, group: str = "triton") -> None:
        self.server = Server()
        self.watch = ModelWatch(self.server.fit)
        self.group = group
        self.saved: dict[int, Told] = {}

    def wants(self, *models: str, decided: bool = True, runs: bool = True) -> None:
        endpoint = Endpoint("10.0.0.1", 1, 2, "C")
        verified = {0: Verified(ReplicaRun(RUN[2], 5, endpoint), 1.0)} if runs else {}
        state = {
            f"nlp/{model}": ServiceState(
                None,
                {
                    ARRAY: GenerationState(
                        verified=verified if model == "own" else {},
                        models=self.saved if model == "own" else {},
                    )
                },
            )
            for model in MODELS
        }
        placement = {(ARRAY, 0): frozenset({"own", *models})}
        services = [
            plan_of(model, self.group, placement if model == "own" else {})
            for model in MODELS
            if decided
        ]
        plan: Any = SimpleNamespace(services=services)
        self.watch.turned(plan, state)

    async def looks(self, at_s: float = 0.0, times: int = 4) -> None:
        with patch("time.monotonic", lambda: at_s):
            for _ in range(times):
                self.watch.look()
                for _ in range(10):
                    await asyncio.sleep(0)

    def heard(self, at_s: float = 0.0) -> Mapping[Any, ReplicaModels]:
        with patch("time.monotonic", lambda: at_s):
            return self.watch.models


async def test_it_is_known_which_loads_the_node_had():
    pool = Pool()
    for models, from_node in ((("a",), set[str]()), ((), set[str]()), (("a", "b"), {"a"})):
        pool.wants(*models)
        await pool.looks()
        assert pool.heard()[RUN].from_node == from_node


async def test_a_replica_loads_what_it_lacks_one_after_the_other_and_is_asked_seldom_then():
    pool = Pool()
    pool.wants("a", "b")
    assert pool.heard() == {}
    await pool.looks(times=1)
    assert pool.heard() == {RUN: ReplicaModels(frozenset({"own", "a"}), loads=2, load_s={"a": 2.5})}
    await pool.looks(29.0)
    assert pool.heard() == {
        RUN: ReplicaModels(frozenset({"own", "a", "b"}), loads=3, load_s={"a": 2.5, "b": 2.5})
    }
    assert [told.load_timeout_s for told in pool.server.told] == [300, 300]
    assert dict(pool.server.told[0].services) == {name: name for name in MODELS}
    assert not any(told.checked for told in pool.server.told)
    # A server that has lost a model is seen, and loads it again.
    pool.server.ready -= {"b"}
    await pool.looks(58.0)
    assert len(pool.server.told) == 2
    await pool.looks(59.0)
    assert pool.heard()[RUN].loads == 4
    assert len(pool.server.told) == 3
    assert pool.server.told[-1].checked == {"own", "a"}


@pytest.mark.parametrize(("start_s", "loads"), [(RUN[2], 42), (RUN[2] - 1, 2)])
async def test_what_another_launcher_has_let_it_load_counts_for_that_run(start_s: int, loads: int):
    pool = Pool()
    pool.saved = {0: Told(start_s, loads=41)}
    pool.wants("a")
    await pool.looks()
    assert pool.heard()[RUN].loads == loads


async def test_what_is_to_go_is_told_at_once():
    pool = Pool()
    pool.wants("a")
    await pool.looks()
    pool.wants("b")
    await pool.looks(1.0)
    assert pool.server.told[-1].models == {"own", "b"}
    assert pool.heard()[RUN].ready == {"own", "b"}


async def test_while_a_model_is_loaded_an_order_without_it_waits():
    """There may be no memory for both."""
    pool = Pool()
    pool.wants("a")
    await pool.looks()
    pool.server.slow = "b"
    pool.wants("b")
    await pool.looks(1.0)
    pool.wants("a")
    await pool.looks(2.0)
    # What has gone for the load is known.
    assert pool.heard()[RUN].ready == {"own"}
    assert all(told.models == {"own", "b"} for told in pool.server.told[1:])
    pool.server.goes_on.set()
    await pool.looks(3.0)
    assert pool.server.told[-1].models == {"own", "a"}
    assert pool.heard()[RUN].ready == {"own", "a"}


async def test_one_that_is_to_come_as_well_is_loaded_beside_another():
    pool = Pool()
    pool.wants()
    await pool.looks()
    pool.server.slow = "a"
    pool.wants("a")
    await pool.looks(1.0)
    for at_s in (2.0, 3.0):
        pool.wants("a", "b")
        await pool.looks(at_s)
        assert pool.heard()[RUN] == ReplicaModels(frozenset({"own", "b"}), {}, 2, {"b": 2.5})
    assert [(told.models, told.loading) for told in pool.server.told[1:]] == [
        ({"own", "a"}, frozenset()),
        ({"own", "a", "b"}, {"a"}),
    ]
    # What is to go is unloaded meanwhile.
    pool.wants("a")
    await pool.looks(4.0)
    assert pool.heard()[RUN].ready == {"own"}
    pool.server.goes_on.set()
    await pool.looks(5.0)
    both = {"a": 2.5, "b": 2.5}
    assert pool.heard()[RUN] == ReplicaModels(frozenset({"own", "a"}), {}, 3, both)


async def test_a_model_that_is_refused_is_tried_again_after_a_minute_and_keeps_no_other_back():
    pool = Pool()
    pool.server.refuses = {"a": "no weights"}
    pool.wants("a", "b")
    await pool.looks()
    assert pool.heard() == {
        RUN: ReplicaModels(frozenset({"own", "b"}), {"a": "no weights"}, 2, {"b": 2.5})
    }
    pool.server.refuses = {}
    pool.wants("b")
    await pool.looks(20.0)
    pool.wants("a", "b")
    await pool.looks(50.0)
    assert pool.heard(50.0)[RUN].refused == {"a": "no weights"}
    assert "a" not in pool.server.ready
    assert pool.heard(60.0)[RUN].refused == {}
    await pool.looks(60.0)
    assert pool.heard(60.0)[RUN] == ReplicaModels(
        frozenset({"own", "a", "b"}), {}, 3, {"a": 2.5, "b": 2.5}
    )


async def test_a_silent_replica_is_asked_again_soon_and_keeps_what_it_has_said():
    pool = Pool()
    pool.server.is_silent = True
    pool.wants("a")
    await pool.looks()
    await pool.looks(1.0)
    assert (pool.heard(), len(pool.server.told)) == ({}, 1)
    pool.server.is_silent = False
    await pool.looks(2.0)
    assert pool.heard()[RUN].ready == {"own", "a"}
    pool.server.is_silent = True
    await pool.looks(40.0)
    await pool.looks(41.0)
    assert (pool.heard()[RUN].ready, len(pool.server.told)) == ({"own", "a"}, 3)


async def test_what_is_known_outlasts_a_turn_that_does_not_decide_and_ends_with_the_run():
    pool = Pool()
    pool.wants("a")
    await pool.looks()
    models = pool.heard()
    pool.wants(decided=False)
    await pool.looks(1.0)
    assert (pool.heard(), len(pool.server.told)) == (models, 1)
    pool.server.slow = "b"
    pool.wants("b")
    await pool.looks(2.0)
    pool.wants("b", runs=False)
    pool.server.goes_on.set()
    await pool.looks(3.0)
    assert pool.heard() == {}
    assert pool.server.ready == {"own"}


async def test_a_replica_is_told_what_was_answered_when_it_was_asked_before():
    pool = Pool()
    pool.wants("a")
    await pool.looks()
    pool.server.answered = {"a": Answered(1, 3)}
    await pool.looks(40.0)
    await pool.looks(80.0)
    # New failures alone are no reason to ask again at once.
    told = [dict(told.answered) for told in pool.server.told]
    assert told == [{}, {}, {"a": Answered(1, 3)}]


async def test_a_model_that_fails_although_it_was_loaded_again_is_tried_less_and_less():
    pool = Pool()
    pool.wants("a")
    await pool.looks()
    pool.server.broken = "a"
    loads = [pool.heard()[RUN].loads]
    for at_s in range(30, 7200, 5):
        await pool.looks(float(at_s), times=1)
        loads.append(pool.heard(float(at_s))[RUN].loads)
    # After 30 s, then after 60, 120, ...
    assert loads[-1] - loads[0] == 7
    assert loads[1] - loads[0] == 1


async def test_a_model_that_fails_each_hour_for_weeks_is_still_tried_each_hour():
    pool = Pool()
    pool.wants("a")
    await pool.looks()
    pool.server.broken = "a"
    for hour in range(1, 1100):
        await pool.looks(3600.0 * hour, times=1)
    assert pool.heard(3600.0 * hour)[RUN].loads > 1090


async def test_a_replica_of_which_a_model_has_failed_requests_is_asked_again_soon():
    pool = Pool()
    pool.wants("a")
    await pool.looks()
    pool.server.answered = {"a": Answered(5, 0)}
    await pool.looks(30.0)
    pool.server.answered = {"a": Answered(6, 1)}
    await pool.looks(60.0)
    await pool.looks(64.0)
    assert len(pool.server.told) == 3
    await pool.looks(65.0)
    await pool.looks(70.0)
    assert len(pool.server.told) == 4


async def test_replicas_of_another_engine_are_told_nothing():
    pool = Pool(group="vllm")
    pool.wants("a")
    await pool.looks()
    assert pool.server.told == []
