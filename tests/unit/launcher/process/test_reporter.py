"""Tests what the launcher tells the daemon of services."""

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace

import pytest
from builders.service_specs import a_spec

from slicewise.cluster.language.errors import UnreachableError
from slicewise.cluster.language.starts import StartTrace
from slicewise.cluster.rpc.messages import ReplicaLoad, ServiceReport
from slicewise.launcher.process.reporter import AGAIN_S, STARTS_AGAIN_S, ServiceReporter
from slicewise.launcher.rules.autoscale.types import ScalingDecision
from slicewise.launcher.rules.engines.load import EngineCounts, ServersLoad
from slicewise.launcher.rules.gateway.routing import Route, RoutePlan
from slicewise.launcher.rules.gateway.timings import Timings
from slicewise.launcher.rules.gateway.types import Load
from slicewise.launcher.rules.turn.plan import TurnPlan
from slicewise.launcher.rules.turn.service import Heard, ServicePlan
from slicewise.launcher.rules.turn.start_traces import Starts
from slicewise.launcher.rules.turn.state import ServiceState

pytestmark = pytest.mark.usefixtures("clock")

BERT = ServicePlan(
    array_job_id=7,
    service="nlp/bert",
    spec=a_spec(),
    decision=ScalingDecision(3, "why"),
    slots=(),
    route=Route("nlp/bert", 1, {}, "triton"),
    desired_by_array={},
    retired=(),
    note="",
    load=Load(held=1),
    urgency=0.0,
    lost=frozenset(),
)


class Daemon:
    def __init__(self) -> None:
        self.told: list[ServiceReport] = []

    async def report_services(self, services: tuple[ServiceReport, ...]) -> None:
        self.told += services


async def test_users_are_told_why_while_haproxy_can_not_be_asked() -> None:
    async def timings() -> Mapping[str, Timings]:
        raise UnreachableError("SW-GATEWAY-DOWN", "HAProxy does not answer.", "Start it.")

    daemon = Daemon()
    load = ServersLoad(7, 2, 0.12345, EngineCounts(9.0), 0.5)
    reporter = ServiceReporter(daemon, timings)
    plan, heard = TurnPlan((BERT,), RoutePlan((), {}, {}), {}), Heard(loads={"nlp/bert": load})
    reporter.turned(plan, {"nlp/bert": ServiceState()}, heard)
    with pytest.raises(UnreachableError):
        await reporter.report_services()
    assert [(one.name, one.reason) for one in daemon.told] == [("bert", "why")]
    assert daemon.told[0].engine_load == ReplicaLoad(
        running=7, waiting=2, kv_cache_share=0.123, preemptions=9, prefix_cache_hit_share=0.5
    )


async def test_a_service_that_a_turn_leaves_out_keeps_what_was_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After each change of its slots a service is left out for a look; all figures began again."""
    count = len(Timings().buckets)
    shown = {"nlp/bert": Timings()}

    async def timings() -> Mapping[str, Timings]:
        return shown

    daemon, state = Daemon(), {"nlp/bert": ServiceState()}
    reporter = ServiceReporter(daemon, timings)
    left_out = TurnPlan((), RoutePlan((), {}, {}), {})
    for turn, plan in enumerate((BERT, BERT, None, BERT)):
        now_s = 1000.0 + 5 * turn
        clock = SimpleNamespace(monotonic=lambda at_s=now_s: at_s)
        monkeypatch.setattr("slicewise.launcher.process.reporter.time", clock)
        found = left_out if plan is None else TurnPlan((plan,), RoutePlan((), {}, {}), {})
        reporter.turned(found, state)
        await reporter.report_services()
        shown["nlp/bert"] = Timings((4,) * count)
        told = reporter.counts["nlp/bert"]
        assert told.cold_starts == 1
        assert ("nlp/bert" in reporter.qualities) is (turn > 0)
    quality = reporter.qualities["nlp/bert"]
    assert (quality.answered, quality.span_s) == (4 * count, 15)
    reporter.turned(left_out, {})
    clock = SimpleNamespace(monotonic=lambda: 1020.0)
    monkeypatch.setattr("slicewise.launcher.process.reporter.time", clock)
    await reporter.report_services()
    assert (reporter.counts, reporter.qualities) == ({}, {})


async def test_starts_are_sent_when_they_are_new_and_from_time_to_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A daemon that has started again knows none; with them a report is twice as long."""
    now_s = {"monotonic": 3.0}

    async def timings() -> Mapping[str, Timings]:
        return {}

    clock = SimpleNamespace(monotonic=lambda: now_s["monotonic"])
    monkeypatch.setattr("slicewise.launcher.process.reporter.time", clock)
    daemon = Daemon()
    reporter = ServiceReporter(daemon, timings)
    start = StartTrace(7, 0, {"desired": 1.0, "ready": 2.0}, "ready")
    new = replace(start, slot=1)
    sent: list[int | None] = []
    for starts in ((start,), (start,), (start, new), (start, new)):
        state = {"nlp/bert": ServiceState(starts=Starts(starts))}
        reporter.turned(TurnPlan((BERT,), RoutePlan((), {}, {}), {}), state)
        await reporter.report_services()
        told = daemon.told[-1].starts
        sent.append(None if told is None else len(told))
        now_s["monotonic"] += AGAIN_S
    assert sent == [1, None, 2, None]
    now_s["monotonic"] += STARTS_AGAIN_S
    reporter.turned(TurnPlan((BERT,), RoutePlan((), {}, {}), {}), state)
    await reporter.report_services()
    assert daemon.told[-1].starts == (start, new)


async def test_a_clock_that_is_set_back_delays_no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon forgets a report that is not repeated: users read that it is not known."""
    now_s = {"time": 90_000.0, "monotonic": 3.0}
    asked: list[int] = []

    async def timings() -> Mapping[str, Timings]:
        asked.append(len(asked))
        return {"nlp/bert": Timings((len(asked),) * len(Timings().buckets))}

    clocks = SimpleNamespace(time=lambda: now_s["time"], monotonic=lambda: now_s["monotonic"])
    monkeypatch.setattr("slicewise.launcher.process.reporter.time", clocks)
    daemon = Daemon()
    reporter = ServiceReporter(daemon, timings)
    for _ in range(3):
        reporter.turned(TurnPlan((BERT,), RoutePlan((), {}, {}), {}), {"nlp/bert": ServiceState()})
        daemon.told.clear()
        await reporter.report_services()
        assert [one.name for one in daemon.told] == ["bert"]
        now_s["time"] -= 3600
        now_s["monotonic"] += AGAIN_S
    assert len(asked) == 3
    assert reporter.qualities["nlp/bert"].span_s == 2 * AGAIN_S
