"""Tests the launcher's reports to the daemon: only news, in messages that fit."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from builders.service_specs import a_spec

from slicewise.cluster.language.errors import UnreachableError
from slicewise.cluster.language.keep_warm import WarmDay
from slicewise.cluster.rpc.messages import (
    REQUEST_LIMIT,
    AdapterReport,
    ServiceReport,
    ServiceReportRequest,
)
from slicewise.launcher.process import reporter
from slicewise.launcher.process.reporter import AGAIN_S, ServiceReporter
from slicewise.launcher.rules.autoscale.capacity import ReplicaCapacity
from slicewise.launcher.rules.autoscale.curve import Curve, Prior
from slicewise.launcher.rules.autoscale.keep_warm import KeptWarm, WarmTotal
from slicewise.launcher.rules.autoscale.policy import Memory
from slicewise.launcher.rules.autoscale.tokens import TokensDone
from slicewise.launcher.rules.autoscale.types import ScalingDecision
from slicewise.launcher.rules.engines.engine import FIRST_TOKEN_S
from slicewise.launcher.rules.gateway.routing import Route, RoutePlan
from slicewise.launcher.rules.gateway.timings import BUCKETS, Timings
from slicewise.launcher.rules.gateway.types import Load
from slicewise.launcher.rules.pools.types import RefusedModel
from slicewise.launcher.rules.turn.backoff import Backoff
from slicewise.launcher.rules.turn.plan import TurnPlan
from slicewise.launcher.rules.turn.reports import RATE_S, Samples, sampled, service_report
from slicewise.launcher.rules.turn.service import Heard, ServicePlan
from slicewise.launcher.rules.turn.slots import Phase, Slot, SlotId
from slicewise.launcher.rules.turn.state import GenerationState, ServiceState

SLOTS = (
    Slot(SlotId(7, 0), Phase.SERVING),
    Slot(SlotId(7, 1), Phase.SERVING, up=False),
    Slot(SlotId(5, 0), Phase.DRAINING),
    Slot(SlotId(5, 1), Phase.WARM, is_drained=True),
    Slot(SlotId(7, 2), Phase.STARTING),
)
PLAN = ServicePlan(
    array_job_id=7,
    service="vision/chat",
    spec=a_spec(),
    decision=ScalingDecision(3, "2 in flight + 5 waiting: 3"),
    slots=SLOTS,
    route=Route("vision/chat", 1, None, "triton"),
    desired_by_array={},
    retired=(),
    note="",
    load=Load(in_flight=2, queued=1, held=4, arrived=30),
    urgency=0.0,
    lost=frozenset(),
)
FAILING = ServiceState(None, {7: GenerationState(backoff=Backoff(2, 100.0))})


def plan(*services: ServicePlan) -> TurnPlan:
    return TurnPlan(services, RoutePlan((), {}, {}), {})


def samples(*arrived: tuple[float, int]) -> Samples:
    found: Samples = ()
    for at_s, count in arrived:
        found = sampled(found, at_s, Load(arrived=count))
    return found


def told(*arrived: tuple[float, int]) -> ServiceReport:
    return service_report(PLAN, FAILING, samples(*arrived))


def test_requests_replicas_and_failed_starts():
    found = told((100.0, 30))
    assert (found.tenant, found.name) == ("vision", "chat")
    assert (found.in_flight, found.queued, found.held) == (2, 1, 4)
    assert (found.desired_replicas, found.reason) == (3, "2 in flight + 5 waiting: 3")
    assert (found.ready, found.draining) == (((7, 0),), ((5, 0), (5, 1)))
    assert (found.failed_starts, found.next_start_s) == (2, 102.0)
    assert service_report(PLAN, ServiceState(), ()).next_start_s is None


def test_what_is_kept_warm_is_told_in_tenths_of_slice_hours():
    """So that a report is not new with each turn."""
    warm = WarmTotal(999_999, 9, (WarmDay("2026-11-30", 799_999, 5),))
    decision = replace(PLAN.decision, kept_warm=KeptWarm(2 / 3, 1.0))
    found = service_report(replace(PLAN, decision=decision), replace(FAILING, warm=warm), ())
    assert found.warm_replicas == 0.7
    assert found.warm_days == (WarmDay("2026-11-30", 720_000, 5),)
    assert ServiceReport.model_validate_json(found.model_dump_json()) == found


def test_replicas_of_a_pool_that_could_not_load_the_model_are_told_as_the_daemon_takes_them():
    refusal = RefusedModel((9, 1), "vision/other", "no weights: \u00e9" + "x" * 300)
    refusing = replace(PLAN, refusals=(refusal,) * 9)
    (*_, last) = service_report(refusing, FAILING, ()).refusals
    assert (last.array_job_id, last.slot, last.why[:13]) == (9, 1, "no weights: ?")


def test_what_was_heard_of_adapters_and_engines_is_told_of_its_service_alone():
    adapters = (AdapterReport(model="chat:legal", loaded=1, replicas=2),)
    heard = Heard(
        adapter_reports={"vision/chat": adapters, "vision/other": ()},
        old_engines={"vision/chat": "vLLM 0.9.0", "vision/other": "Triton 2.1"},
    )
    found = service_report(PLAN, FAILING, (), heard=heard)
    assert (found.adapters, found.old_engine) == (adapters, "vLLM 0.9.0")
    assert (told().adapters, told().old_engine) == ((), "")


def test_how_many_requests_a_replica_gets_and_how_long_tokens_take():
    firsts = tuple(20.0 * (edge_s == 1.0) for edge_s in (*FIRST_TOKEN_S, math.inf))
    known = TokensDone(None, 4.0, 2.0, 100.0, 3.0, firsts=firsts)
    memory = Memory(tokens=known)
    tokens = a_spec(engine="vllm", ttft_ms=500)
    timed = replace(PLAN, concurrency=6, route=replace(PLAN.route, follows=True), spec=tokens)
    found = service_report(timed, replace(FAILING, memory=memory), ())
    assert (found.concurrency, found.is_concurrency_learnt) == (6, True)
    assert (found.ttft_ms, found.ttft_p95_ms, found.tpot_ms) == (500.0, 990.0, 30.0)
    assert found.concurrency_source == ""
    prior = Prior(Curve(((1.0, 1.0), (6.0, 2.0))), "learnt by service talk")
    begun = replace(memory, capacity=ReplicaCapacity(6, prior=prior))
    found = service_report(timed, replace(FAILING, memory=begun), ())
    assert found.concurrency_source == "learnt by service talk"
    without = service_report(PLAN, replace(FAILING, memory=memory), ())
    assert (without.concurrency, without.is_concurrency_learnt) == (1, False)
    assert (without.ttft_ms, without.tpot_ms) == (None, None)


def test_the_rate_is_that_of_the_last_seconds():
    assert told((100.0, 30)).rate_per_s == 0
    assert told((100.0, 30), (104.0, 50)).rate_per_s == 5
    slow = [(100.0 + second, 30 + second) for second in range(60)]
    assert told(*slow, (160.0, 30 + 59)).rate_per_s == pytest.approx(
        (RATE_S - 1) / RATE_S, abs=0.01
    )
    assert len(samples(*slow)) <= RATE_S + 2


def test_a_counter_that_began_anew_makes_no_rate():
    assert told((100.0, 30), (101.0, 2)).rate_per_s == 0


class Daemon:
    """The daemon, and the gateway's timings."""

    def __init__(self) -> None:
        self.counted: dict[str, Timings] = {}
        self.heard: list[tuple[str, ...]] = []
        self.sizes: list[int] = []
        self.fails = False

    async def timings(self) -> dict[str, Timings]:
        return self.counted

    async def report_services(self, services: tuple[ServiceReport, ...]) -> None:
        if self.fails:
            raise UnreachableError("SW-DAEMON-DOWN", "down")
        self.heard.append(tuple(one.name for one in services))
        self.sizes.append(len(ServiceReportRequest(services=services).model_dump_json()))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(reporter, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


async def test_what_is_new_is_told_and_all_now_and_then(clock: list[float]):
    daemon = Daemon()
    found = ServiceReporter(daemon, daemon.timings)
    other = replace(PLAN, service="vision/other")
    steps = (
        (1, PLAN, ("chat", "other")),
        (1, PLAN, None),
        (1, replace(PLAN, decision=ScalingDecision(4, "more")), ("chat",)),
        (AGAIN_S - 2, replace(PLAN, decision=ScalingDecision(4, "more")), ("other",)),
    )
    for passes_s, chat, heard in steps:
        clock[0] += passes_s
        found.turned(plan(chat, other), {"vision/chat": FAILING})
        before = len(daemon.heard)
        await found.report_services()
        assert daemon.heard[before:] == ([heard] if heard else [])


async def test_without_a_new_turn_nothing_is_told(clock: list[float]):
    daemon = Daemon()
    found = ServiceReporter(daemon, daemon.timings)
    found.turned(plan(PLAN), {})
    await found.report_services()
    clock[0] += AGAIN_S
    await found.report_services()
    assert daemon.heard == [("chat",)]


async def test_what_the_daemon_did_not_hear_is_told_again(clock: list[float]):
    daemon = Daemon()
    found = ServiceReporter(daemon, daemon.timings)
    daemon.fails = True
    found.turned(plan(PLAN), {})
    with pytest.raises(UnreachableError):
        await found.report_services()
    daemon.fails = False
    found.turned(plan(PLAN), {})
    await found.report_services()
    assert daemon.heard == [("chat",)]


async def test_many_services_are_told_in_messages_that_the_daemon_takes(clock: list[float]):
    daemon = Daemon()
    found = ServiceReporter(daemon, daemon.timings)
    slots = tuple(Slot(SlotId(60_000_000, index), Phase.SERVING) for index in range(256))
    reason = ScalingDecision(256, "r" * 500)
    many = tuple(
        replace(PLAN, service=f"vision/s{index}", slots=slots, decision=reason)
        for index in range(60)
    )
    found.turned(plan(*many), {})
    await found.report_services()
    assert [name for some in daemon.heard for name in some] == [f"s{index}" for index in range(60)]
    assert max(daemon.sizes) < REQUEST_LIMIT
    assert len(daemon.heard) < 10


async def test_small_ones_go_together(clock: list[float]):
    daemon = Daemon()
    found = ServiceReporter(daemon, daemon.timings)
    found.turned(plan(*(replace(PLAN, service=f"vision/s{index}") for index in range(60))), {})
    await found.report_services()
    assert [len(some) for some in daemon.heard] == [60]


async def test_how_well_it_answered_since_the_first_look_is_told(clock: list[float]):
    daemon = Daemon()
    found = ServiceReporter(daemon, daemon.timings)
    fast = replace(PLAN, load=Load(), objective_ms=100.0)
    daemon.counted = {"vision/chat": Timings((9,) * BUCKETS, came=9 * BUCKETS)}
    found.turned(plan(fast), {})
    await found.report_services()
    assert found.qualities == {}
    before = daemon.counted["vision/chat"]
    more = (*before.buckets[:1], before.buckets[1] + 4, *before.buckets[2:])
    daemon.counted = {"vision/chat": replace(before, buckets=more, errors=1, came=before.came + 6)}
    waiting = replace(fast, load=Load(held=1))
    for one in (waiting, waiting, fast, waiting):
        found.turned(plan(one), {})
    clock[0] += 5
    await found.report_services()
    (told,) = found.qualities.values()
    assert (told.answered, told.errors, told.unanswered) == (4, 1, 2)
    assert (told.cold_starts, told.objective_met_share, told.span_s) == (2, 1.0, 5)
    assert found.counts["vision/chat"].cold_starts == 2
