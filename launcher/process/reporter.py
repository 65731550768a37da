"""Tells the daemon what the launcher sees of services, so that their users can read it there."""

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Protocol

from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.language.starts import StartTrace
from slicewise.cluster.rpc.messages import ServiceQuality, ServiceReport
from slicewise.launcher.rules.gateway.timings import Timings
from slicewise.launcher.rules.turn.plan import TurnPlan
from slicewise.launcher.rules.turn.quality import NONE_YET, Counts, QualityWindow, followed, quality
from slicewise.launcher.rules.turn.reports import Samples, sampled, service_report
from slicewise.launcher.rules.turn.service import NOTHING_HEARD, Heard
from slicewise.launcher.rules.turn.state import ServiceState, State

TIMINGS_S = 5.0
"""Seconds between two questions to the gateway how long requests took."""
STARTS_AGAIN_S = 60.0
"""Seconds after which starts that have not changed are sent again: a report without them is less
than half as long, and most have nothing new of them."""
AGAIN_S = 10.0
"""Seconds after which an unchanged report is sent again: the daemon may have restarted."""
_MESSAGE_BYTES = 48 * 1024
"""Bytes of services in one message; the daemon accepts 64 KiB."""


class ReceivesReports(Protocol):
    """The daemon's call that takes reports."""

    async def report_services(self, services: tuple[ServiceReport, ...]) -> None: ...  # noqa: D102


class ServiceReporter:
    """Keeps what it has reported, and what the last turn found.

    Its times are those of the monotonic clock, which nothing sets; none of them is shown.
    """

    def __init__(
        self,
        daemon: ReceivesReports,
        timings: Callable[[], Awaitable[Mapping[str, Timings]]],
    ) -> None:
        self._daemon = daemon
        self._timings = timings
        self._timed_s: float | None = None
        self._cold: frozenset[str] = frozenset()
        self._cold_starts: Counter[str] = Counter()
        self._windows: dict[str, QualityWindow] = {}
        self.qualities: Mapping[str, ServiceQuality] = {}
        self._plan: TurnPlan | None = None
        self._state: State = {}
        self._heard = NOTHING_HEARD
        self._samples: dict[tuple[str, str], Samples] = {}
        self._told: dict[str, tuple[float, ServiceReport]] = {}
        self._starts_told: dict[str, tuple[float, tuple[StartTrace, ...] | None]] = {}

    def turned(self, plan: TurnPlan, state: State, heard: Heard = NOTHING_HEARD) -> None:
        """Take over what a turn found, and what it had heard.

        A service in ``state`` that the plan leaves out is there all the same, and stays as it was:
        the turn's look was older than what was last asked for it.
        """
        self._plan, self._state, self._heard = plan, state, heard
        cold = frozenset(service.service for service in plan.services if service.load.held)
        cold |= self._cold & self._left_out(plan)
        self._cold_starts.update(cold - self._cold)
        self._cold = cold

    def _left_out(self, plan: TurnPlan) -> frozenset[str]:
        return frozenset(self._state) - {service.service for service in plan.services}

    @property
    def counts(self) -> Mapping[str, Counts]:
        """What was counted of each service until the last look."""
        return {key: window.last for key, window in self._windows.items()}

    async def report_services(self) -> None:
        """Report what is new, or was reported long ago; raises what ``DaemonCalls.report_services``
        raises.
        """
        plan, self._plan = self._plan, None
        if plan is None:
            return
        now_s = time.monotonic()
        unmeasured = None
        if self._timed_s is None or now_s - self._timed_s >= TIMINGS_S:
            try:
                await self._measure(plan, now_s)
            except SlicewiseError as error:
                # Users still hear why their service has no replicas while HAProxy is away.
                unmeasured = error
        reports = dict(self._found(plan, now_s))
        self._told = {key: told for key, told in self._told.items() if key in reports}
        self._starts_told = {key: told for key, told in self._starts_told.items() if key in reports}
        due = {
            key: self._without_old_starts(key, report, now_s)
            for key, report in reports.items()
            if self._is_due(key, report, now_s)
        }
        for some in _messages(due):
            await self._daemon.report_services(tuple(some.values()))
            self._told |= {key: (now_s, reports[key]) for key in some}
            self._starts_told |= {
                key: (now_s, report.starts)
                for key, report in some.items()
                if report.starts is not None
            }
        if unmeasured is not None:
            raise unmeasured

    async def _measure(self, plan: TurnPlan, now_s: float) -> None:
        """Ask how long requests took; what was counted before the first look is left out."""
        shown, is_first = await self._timings(), self._timed_s is None
        self._timed_s = now_s
        left_out = self._left_out(plan)
        windows = {key: window for key, window in self._windows.items() if key in left_out}
        for service in plan.services:
            key = service.service
            now = Counts(now_s, shown.get(key, NONE_YET), self._cold_starts[key])
            begin = now if is_first else Counts(now_s)
            before = self._windows.get(key, QualityWindow(begin, begin, begin))
            windows[key] = followed(before, now)
        self._windows = windows
        self._cold_starts = Counter({key: self._cold_starts[key] for key in windows})
        self.qualities = {
            key: own_quality for key, own_quality in self.qualities.items() if key in left_out
        } | {
            service.service: service_quality
            for service in plan.services
            if (service_quality := quality(windows[service.service], service.objective_ms))
            is not None
        }

    def _found(self, plan: TurnPlan, now_s: float) -> Iterator[tuple[str, ServiceReport]]:
        before, left_out = self._samples, self._left_out(plan)
        self._samples = {key: saved for key, saved in before.items() if key[0] in left_out}
        for service in plan.services:
            key = service.service
            counted = (key, service.load.counter)
            samples = self._samples[counted] = sampled(before.get(counted, ()), now_s, service.load)
            state = self._state.get(key, ServiceState())
            more = (samples, plan.routes.unrouted.get(key, ""), self.qualities.get(key))
            yield key, service_report(service, state, *more, heard=self._heard)

    def _without_old_starts(self, key: str, report: ServiceReport, now_s: float) -> ServiceReport:
        told_s, starts = self._starts_told.get(key, (0.0, None))
        is_old = starts == report.starts and now_s - told_s < STARTS_AGAIN_S
        return report.model_copy(update={"starts": None}) if is_old else report

    def _is_due(self, key: str, report: ServiceReport, now_s: float) -> bool:
        told_s, told = self._told.get(key, (0.0, None))
        return report != told or now_s - told_s >= AGAIN_S


def _messages(due: Mapping[str, ServiceReport]) -> Iterator[Mapping[str, ServiceReport]]:
    some: dict[str, ServiceReport] = {}
    left = _MESSAGE_BYTES
    for key, report in due.items():
        size = len(report.model_dump_json())
        if some and size > left:
            yield some
            some, left = {}, _MESSAGE_BYTES
        some[key] = report
        left -= size
    if some:
        yield some
