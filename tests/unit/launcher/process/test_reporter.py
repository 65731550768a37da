"""Tests what the launcher tells the daemon of services."""

from collections.abc import Mapping

import pytest

from cluster.language.errors import UnreachableError
from cluster.rpc.messages import ServiceReport
from launcher.autoscale.types import ScalingDecision
from launcher.gateway.routing import Route, RoutePlan
from launcher.gateway.timings import Timings
from launcher.gateway.types import Load
from launcher.process.reporter import ServiceReporter
from launcher.turn.plan import ServicePlan, TurnPlan
from launcher.turn.state import ServiceState

BERT = ServicePlan(
    array_job_id=7,
    service="nlp/bert",
    decision=ScalingDecision(3, "why"),
    slots=(),
    route=Route("nlp/bert", 1, {}, "pool"),
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
    reporter = ServiceReporter(daemon, timings)
    reporter.turned(TurnPlan((BERT,), RoutePlan((), {}, {}), {}), {"nlp/bert": ServiceState()})
    with pytest.raises(UnreachableError):
        await reporter.report_services()
    assert [(one.name, one.reason) for one in daemon.told] == [("bert", "why")]


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
        monkeypatch.setattr("launcher.process.reporter.time.time", lambda at_s=now_s: at_s)
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
    monkeypatch.setattr("launcher.process.reporter.time.time", lambda: 1020.0)
    await reporter.report_services()
    assert (reporter.counts, reporter.qualities) == ({}, {})
