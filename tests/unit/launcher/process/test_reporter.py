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
