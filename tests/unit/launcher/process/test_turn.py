"""Tests a turn: gateway before slots, failures contained; the loop outlives failed turns."""

import asyncio
import gc
import logging
import math
import time
from dataclasses import replace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from builders.gateways import NOWHERE
from builders.service_views import a_running_slot, a_slot
from log_lines import lines
from stand_ins.turn_world import GATEWAY, World, service

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import UnreachableError
from slicewise.cluster.rpc.key_messages import GrantsAnswer
from slicewise.cluster.rpc.limit_messages import RequestLimits, SubjectLimits
from slicewise.cluster.rpc.messages import ServiceView
from slicewise.cluster.settings.file import Settings
from slicewise.launcher.probing.prober import Replica
from slicewise.launcher.process import loop
from slicewise.launcher.process.loop import Launcher, Reporter
from slicewise.launcher.process.turn import Turned, turn
from slicewise.launcher.rules.engines.registry import ENGINES
from slicewise.launcher.rules.gateway.routing import AddRoute, RoutePlan, SetTarget
from slicewise.launcher.rules.gateway.types import Backend, Endpoint, Gateway
from slicewise.launcher.rules.turn import service as services
from slicewise.launcher.rules.turn.outliers import Doubt, Watch
from slicewise.launcher.rules.turn.plan import TurnPlan, decide
from slicewise.launcher.rules.turn.state import Failure, GenerationState, ServiceState

pytestmark = pytest.mark.usefixtures("clock")


HELD = a_slot()
RUNNING = a_running_slot(job_id=9, ports=(5, 6, 7), start_s=1)


async def test_the_gateway_changes_before_the_slots():
    world = World(service(7, "a", HELD))
    await turn(world, world, world, {})
    assert world.log == [AddRoute("t/a", "triton1"), (7, frozenset({0}))]


async def test_the_daemon_is_told_which_nodes_to_avoid():
    world = World(service(7, "a", HELD))
    failures = (Failure("gpu01", time.time()),) * 2
    known = ServiceState(None, {7: GenerationState(is_proved=True, failures=failures)})
    await turn(world, world, world, {"t/a": known})
    assert world.avoided == ("gpu01",)


async def test_the_daemon_is_told_after_which_request_this_one_was_decided():
    world = World(service(7, "a", HELD), service(8, "b", HELD))
    for numbers in ({7: 41, 8: 45}, {7: 42}):
        world.numbers = numbers
        await turn(world, world, world, {})
    assert world.after == [41, 45, 42, 0]


async def test_a_running_replica_is_asked_by_its_full_name_and_only_once():
    world = World(service(7, "a", RUNNING))
    turned = await turn(world, world, world, {})
    assert world.asked == [
        Replica("10.0.0.1", 5, "CCCC", 1, "model", "a.7.0", ENGINES["triton"], service="a")
    ]
    assert SetTarget("triton1", 0, Endpoint("10.0.0.1", 5, 6, "CCCC"), 1) in world.log
    await turn(world, world, world, turned.state)
    assert len(world.asked) == 1


def with_adapters(one: ServiceView, adapters: str, **change: str) -> ServiceView:
    more = {"engine": "vllm", "adapters": adapters} | change
    return one.model_copy(update={"directives": {**one.directives, **more}})


async def test_a_replica_that_starts_is_to_have_the_newest_adapters_and_one_in_doubt_none():
    older = with_adapters(service(7, "a", RUNNING), "old=x")
    world = World(older, with_adapters(service(8, "a", HELD), "new=y"))
    turned = await turn(world, world, world, {})
    assert [one.adapters for one in world.asked] == [(("new", "/m/y"),)]
    known = turned.state["t/a"].generations[7]
    doubt = Watch((9, 1), 0, 0, 1.0, doubt=Doubt(1.0, 1.0, "is slow", is_worse=False))
    generations = {7: replace(known, watched={0: doubt}), 8: GenerationState()}
    await turn(world, world, world, {"t/a": ServiceState(None, generations)})
    assert [one.adapters for one in world.asked[1:]] == [()]


async def test_a_replica_that_can_t_follow_starts_with_its_own_adapters():
    older = with_adapters(service(7, "a", RUNNING), "old=x")
    newest = with_adapters(service(8, "a", HELD), "new=y", model_repository="/other")
    world = World(older, newest)
    await turn(world, world, world, {})
    assert [one.adapters for one in world.asked] == [(("old", "/m/x"),)]


async def test_an_unknown_node_name_is_not_asked(monkeypatch: pytest.MonkeyPatch):
    async def unknown(name: str) -> str:
        return ""

    monkeypatch.setattr("slicewise.launcher.process.turn._resolve", unknown)
    world = World(service(7, "a", RUNNING.model_copy(update={"address": "nowhere"})))
    await turn(world, world, world, {})
    assert world.asked == []


async def test_an_incomplete_view_touches_nothing():
    world = World(service(7, "a", RUNNING), complete=False)
    turned = await turn(world, world, world, {})
    assert (world.log, world.asked, turned.plan) == ([], [], None)


async def test_an_older_generation_is_retired_once_and_then_left_to_end():
    world = World(service(7, "a", HELD), service(8, "a", RUNNING))
    turned = await turn(world, world, world, {})
    assert turned.retired == (7,)
    world.refused = {7}
    world.seen_s = time.time() + 1
    turned = await turn(world, world, world, turned.state)
    assert (turned.retired, turned.failures) == ((), {})


async def test_a_refused_wish_concerns_its_own_service_only():
    world = World(service(7, "a", HELD), service(8, "b", HELD))
    world.refused = {7}
    turned = await turn(world, world, world, {})
    assert (8, frozenset({0})) in world.log
    assert list(turned.failures) == [7]
    assert turned.state["t/a"].generations[7].desired is None


async def test_a_wish_without_an_answer_may_have_been_taken_and_a_refused_one_not():
    world = World(service(7, "a", HELD))
    world.refused = {7}
    refused = await turn(world, world, world, {})
    assert refused.state["t/a"].generations[7].unheard is None
    world.refused, world.silent = set(), True
    silent = await turn(world, world, world, refused.state)
    assert silent.state["t/a"].generations[7].unheard == {0}
    world.silent = False
    answered = await turn(world, world, world, silent.state)
    assert answered.state["t/a"].generations[7].unheard is None


async def test_a_slow_daemon_is_asked_on_where_the_turn_before_stopped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr("slicewise.launcher.process.turn.ASKING_S", 0.0)
    world = World(service(7, "a", HELD), service(8, "b", HELD))
    launcher = Launcher(world, world, replicas=lambda _: world)
    for _ in range(3):
        await launcher.turn()
        world.seen_s = time.time() + 1
        # Its request is repeated at once.
        monkeypatch.setattr(services, "ASK_AGAIN_S", 0.0)
    asked = [entry[0] for entry in world.log if isinstance(entry, tuple)]
    assert asked == [7, 8, 7]
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert [one.split()[0] for one in warnings] == ["desired_slots_left"]


@pytest.mark.parametrize("ahead_s", [3600.0, -3600.0])
async def test_what_is_remembered_follows_a_clock_that_is_set(
    ahead_s: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    world = World(service(7, "a", HELD))
    launcher = Launcher(world, world, replicas=lambda _: world)
    await launcher.turn()
    before = launcher._state["t/a"].generations[7].seen_s
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + ahead_s)
    for _ in range(2):
        await launcher.turn()
        assert launcher._state["t/a"].generations[7].seen_s == pytest.approx(
            before + ahead_s, abs=5
        )
    assert [line for line in caplog.messages if line.startswith("clock_stepped")] == [
        f"clock_stepped ahead_s={ahead_s:.0f}"
    ]


@pytest.mark.parametrize("ahead_s", [3600.0, -3600.0])
async def test_a_clock_that_is_set_during_a_turn_is_followed_by_the_next(
    ahead_s: float, monkeypatch: pytest.MonkeyPatch
):
    """What the turn remembers is moved by the next one, so it must not have the new time."""
    world = World(service(7, "a", RUNNING))
    launcher = Launcher(world, world, replicas=lambda _: world)
    real = time.time
    times: list[float] = []

    def decided(*looks: Any, **rests: Any) -> object:
        times.append(looks[-1] - real())
        return decide(*looks, **rests)

    async def observe() -> Gateway:
        monkeypatch.setattr(time, "time", lambda: real() + ahead_s)
        return GATEWAY

    monkeypatch.setattr("slicewise.launcher.process.turn.decide", decided)
    await launcher.turn()
    verified_s = launcher._state["t/a"].generations[7].verified[0].at_s
    world.observe = observe
    for _ in range(3):
        await launcher.turn()
    assert times == pytest.approx([0.0, 0.0, ahead_s, ahead_s], abs=60)
    moved_s = launcher._state["t/a"].generations[7].verified[0].at_s
    assert moved_s == pytest.approx(verified_s + ahead_s, abs=60)


async def test_a_retired_generation_is_reported(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "slicewise.launcher")
    world = World(service(7, "a", HELD), service(8, "a", RUNNING))
    await Launcher(world, world, replicas=lambda _: world).turn()
    assert "retired arrays=7" in caplog.messages


async def test_a_request_that_the_gateway_holds_makes_a_turn_due_but_not_each_one_does(
    monkeypatch: pytest.MonkeyPatch,
):
    """The next turn by itself would come a minute later."""
    monkeypatch.setattr(loop, "LONGEST_S", 60.0)
    monkeypatch.setattr(loop, "BUSY_S", 60.0)
    world, ended = World(service(7, "a", HELD)), asyncio.Event()
    launcher = Launcher(world, world, replicas=lambda _: world)
    turns = launcher._metrics.registry.get_sample_value
    running = asyncio.create_task(launcher.run(60.0, ended))

    async def taken(count: int) -> None:
        async with asyncio.timeout(20):
            while turns("slicewise_launcher_loop_duration_seconds_count") != count:  # noqa: ASYNC110 -- no event
                await asyncio.sleep(0.01)

    await taken(1)
    for _ in range(50):
        world.told("held triton1 1500")
        await asyncio.sleep(0.001)
    await taken(2)
    ended.set()
    await running
    assert turns("slicewise_launcher_loop_duration_seconds_count") == 2


async def test_turns_and_their_failures_are_counted():
    world = World(service(7, "a", HELD))
    launcher = Launcher(world, world, replicas=lambda _: world)
    await launcher.turn()
    world.failure = UnreachableError("SW-DAEMON-DOWN", "Gone.")
    await launcher.turn()
    value = launcher._metrics.registry.get_sample_value
    assert value("slicewise_launcher_loop_duration_seconds_count") == 2
    assert value("slicewise_launcher_loop_failures_total", {"code": "SW-DAEMON-DOWN"}) == 1
    assert value("slicewise_service_desired_replicas", {"tenant": "t", "service": "a"}) == 1


async def test_the_loop_outlives_bad_turns_and_says_each_trouble_once(
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level(logging.INFO, "slicewise.launcher")
    world = World(service(7, "a", HELD))
    launcher = Launcher(world, world, replicas=lambda _: world)
    world.failure = UnreachableError("SW-DAEMON-DOWN", "Gone.")
    await launcher.turn()
    await launcher.turn()
    world.failure = RuntimeError("a bug")
    await launcher.turn()
    world.failure = None
    await launcher.turn()
    said = [record.getMessage().split()[0] for record in caplog.records]
    assert said == ["no_decision", "round_failed", "no_decision", "deciding_again", "decided"]


async def test_what_fails_after_a_turn_does_not_end_the_loop(caplog: pytest.LogCaptureFixture):
    """As statistics of a site's own engine may."""

    class Statistics:
        def turned(self, *_: object) -> None:
            raise KeyError("name")

    world = World(service(7, "a", HELD))
    launcher = Launcher(
        *(world, world),
        replicas=lambda _: world,
        statistics=Statistics(),  # type: ignore[arg-type]
    )
    assert not await launcher.turn()
    assert "round_failed" in caplog.messages


async def test_replicas_of_pools_are_told_of_their_models_after_each_turn_also_a_failed_one():
    world, models = World(service(7, "a", HELD)), Mock(models={})
    launcher = Launcher(world, world, replicas=lambda _: world, models=models)
    await launcher.turn()
    assert [call[0] for call in models.method_calls] == ["turned", "look"]
    world.failure = UnreachableError("SW-DAEMON-DOWN", "No answer.")
    await launcher.turn()
    assert [call[0] for call in models.method_calls] == ["turned", "look", "look"]
    models.look.side_effect = KeyError("name")
    assert not await launcher.turn()


async def test_replicas_of_pools_are_told_nothing_by_a_launcher_that_leads_no_more():
    world, models = World(service(7, "a", HELD)), Mock(models={})
    leader = Mock(leads=Mock(side_effect=[True, False]))
    launcher = Launcher(world, world, replicas=lambda _: world, leader=leader, models=models)
    world.failure = UnreachableError("SW-LOCK", "Another launcher leads.")
    await launcher.turn()
    assert models.method_calls == []


async def test_a_decision_is_reported_with_its_reason(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "slicewise.launcher")
    world = World(service(7, "a", HELD))
    await Launcher(world, world, replicas=lambda _: world).turn()
    reason = "the gateway can't be seen: replicas stay as they are"
    assert caplog.messages == [
        (
            "decided service=t/a array=7 desired_replicas=1 desired_slots=0"
            f' reason="{reason}" kept_back=-'
        )
    ]


async def test_events_of_a_turn_carry_its_number_and_the_services_tenant():
    world = World(service(7, "a", HELD))
    launcher = Launcher(world, world, replicas=lambda _: world)
    with lines() as caught:
        await launcher.turn()
        world.services = (service(8, "b", HELD),)
        await launcher.turn()
    told = [
        (one["service"], one["tenant"], one["cycle"], one["level"])
        for one in caught.events("decided")
    ]
    assert told == [("t/a", "t", 1, "info"), ("t/b", "t", 2, "info")]


async def test_the_routes_are_kept_for_haproxys_next_start():
    world = World(service(7, "a", HELD), service(8, "b", HELD), service(9, "c", HELD))
    turned = await turn(world, world, world, {})
    assert world.kept == {"t/a": "triton1", "t/b": "triton2"}
    assert turned.unkept == ""


async def test_routes_that_can_not_be_kept_and_lost_slots_are_said_once(
    caplog: pytest.LogCaptureFixture,
):
    gone = a_slot(state="gone")
    world = World(service(7, "a", HELD), service(8, "b", gone))
    world.may_write = False
    launcher = Launcher(world, world, replicas=lambda _: world)
    await launcher.turn()
    await launcher.turn()
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    loss = "1 slot is lost for good; apply the service again to replace it"
    assert warnings == [
        f'slots_lost service=t/b why="{loss}"',
        'routes_not_kept service=- why="services.map: Permission denied"',
    ]


async def test_a_trouble_that_comes_again_is_said_again(caplog: pytest.LogCaptureFixture):
    first, second = service(7, "a", HELD), service(8, "b", HELD)
    world = World()
    world.seen_s = math.inf
    launcher = Launcher(world, world, replicas=lambda _: world)
    for third in ("c", "c", None, "c", "d", "c"):
        world.services = (first, second, *([service(9, third, HELD)] if third else []))
        await launcher.turn()
    said = [r.getMessage().split(" why")[0] for r in caplog.records if r.levelno == logging.WARNING]
    assert said == [f"no_backend_free service=t/{name}" for name in "ccdc"]


async def test_a_service_that_starts_no_replica_for_want_of_server_lines_is_named(
    caplog: pytest.LogCaptureFixture,
):
    world = World(service(7, "a", HELD), service(8, "b", HELD))
    group = {"triton1": Backend(0, 0, (NOWHERE,) * 2)}
    idle = {f"tritonidle{n}": Backend(0, 0, ()) for n in (1, 2)}
    routes = {"t/a": "tritonidle1", "t/b": "tritonidle2"}

    async def observe() -> Gateway:
        return Gateway(routes, group | idle, complete=True, per_tenant=2)

    world.observe = observe
    launcher = Launcher(world, world, replicas=lambda _: world)
    await launcher.turn()
    (said,) = [one for one in caplog.messages if one.startswith("no_backend_free")]
    assert "service=t/b" in said
    assert "'t' has 1 services and may have at most 1; raise gateway.services, backends" in said
    assert (7, frozenset({0})) in world.log
    assert (8, frozenset({0})) not in world.log


def test_a_turn_that_does_not_decide_ends_no_trouble(caplog: pytest.LogCaptureFixture):
    crowded = TurnPlan((), RoutePlan((), {}, {}, ("t/a",)), {})
    reporter = Reporter()
    for plan in (crowded, TurnPlan((), RoutePlan((), {}, {}), {}), crowded):
        reporter.turned(Turned({"t/a": ServiceState()}, plan, {}, (), {}))
    (said,) = caplog.messages
    assert said.startswith("no_server_free service=t/a")


async def test_it_ends_when_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loop, "LONGEST_S", 60.0)
    world = World()
    ended = asyncio.Event()
    running = asyncio.create_task(Launcher(world, world, replicas=lambda _: world).run(60.0, ended))
    await asyncio.sleep(0)
    ended.set()
    await asyncio.wait_for(running, 10)


class Routed(World):
    """Its gateway has a route."""

    async def observe(self) -> Gateway:
        return replace(GATEWAY, routes={"t/a": "triton1"})


async def test_what_is_at_rest_is_known_from_turn_to_turn():
    resting = service(7, "a", HELD)
    resting = resting.model_copy(update={"directives": resting.directives | {"min_replicas": "0"}})
    world = Routed(resting)
    world.seen_s = math.inf
    launcher = Launcher(world, world, replicas=lambda _: world)
    for _ in range(5):
        await launcher.turn()
    assert launcher._rests["t/a"].looks > 1
    # A launcher that leads again begins with what was saved, and with no rest.
    launcher._state = {}
    await launcher.turn()
    assert "t/a" not in launcher._rests or not launcher._rests["t/a"].looks


async def test_the_launcher_hears_a_late_answer_of_the_gateway_before_it_ends(
    monkeypatch: pytest.MonkeyPatch,
):
    runtime = AsyncMock()
    runtime.__aexit__.return_value = None
    monkeypatch.setattr(loop, "own_store", Mock())
    monkeypatch.setattr(loop, "HaproxyRuntime", Mock(return_value=runtime))
    monkeypatch.setattr(loop, "require_key", Mock(side_effect=RuntimeError))
    before = gc.get_threshold()
    try:
        with pytest.raises(RuntimeError):
            await loop.serve(Mock())
    finally:
        gc.set_threshold(*before)
    runtime.__aexit__.assert_awaited_once()


async def test_python_searches_less_often_for_garbage_in_the_launcher(
    monkeypatch: pytest.MonkeyPatch,
):
    before = gc.get_threshold()
    monkeypatch.setattr(loop, "own_store", Mock(side_effect=RuntimeError))
    try:
        with pytest.raises(RuntimeError):
            await loop.serve(Mock(spec=Settings))
        assert gc.get_threshold()[0] == loop.GARBAGE_AFTER
    finally:
        gc.set_threshold(*before)


async def test_nobody_is_asked_for_tokens_once_nobody_has_a_limit_of_them():
    world, renew = World(), AsyncMock()
    launcher = Launcher(world, world, replicas=lambda _: world, renew=renew)
    await launcher.turn()
    limits = SubjectLimits(tenant="t", limits=RequestLimits(tokens_per_month=5))
    # The gateway may know limits of before: it is told until it has heard that there are none.
    renew.side_effect = [UnreachableError(Code.GATEWAY_DOWN, "not now"), *[None] * 4]
    for granted, renewals in (((), 2), ((limits,), 4), ((), 5)):
        world.grants = AsyncMock(return_value=GrantsAnswer(limits=granted))  # type: ignore[method-assign]
        await launcher.tell_keys()
        for _ in range(2):
            await launcher.renew_allowances()
        assert renew.await_count == renewals, granted
    await launcher.renew_allowances()
    assert renew.await_count == 5
