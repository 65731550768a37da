"""Keeps in memory what the launcher reports about services, for people who look at them."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from slicewise.cluster.language.leader import Leader
from slicewise.cluster.language.starts import ClassTimes, StartTrace, class_times
from slicewise.cluster.rpc.message import DoneAnswer
from slicewise.cluster.rpc.messages import ServiceReport, ServiceReportRequest, ServiceView
from slicewise.cluster.rpc.read_messages import ServiceStarts
from slicewise.slurm_plugin.rules.services.orders import ServiceKey

OLD_S = 30.0
"""Seconds after which a report is dropped: the launcher reports each service every few seconds."""


@dataclass(frozen=True)
class _Starts:
    """A service's last starts, and how long those of each class took."""

    traces: tuple[StartTrace, ...] = ()
    classes: tuple[ClassTimes, ...] = ()


_NONE = _Starts()


class ServiceReports:
    """The last report of each service, and when it came."""

    def __init__(self, leader: Leader, on_lost: Callable[[], None] = lambda: None) -> None:
        """``on_lost`` is called where a replica that got requests no longer does."""
        self._leader = leader
        self._on_lost = on_lost
        self._found: dict[ServiceKey, tuple[float, ServiceReport]] = {}
        self._starts: dict[ServiceKey, _Starts] = {}

    def take(self, request: ServiceReportRequest) -> DoneAnswer:
        """Take reports from the launcher.

        Raises UnreachableError (SW-DAEMON-STANDBY): people ask the daemon that leads.
        """
        self._leader.require()
        now_s = time.monotonic()
        new = {key: (now_s, report) for key, report in self._taken(request.services)}
        reports_left = {key: had for key, had in self._found.items() if now_s - had[0] < OLD_S}
        self._found = reports_left | new
        self._starts = {key: starts for key, starts in self._starts.items() if key in self._found}
        had = {key: reports_left[key][1] for key in new.keys() & reports_left.keys()}
        if any(set(report.ready).difference(new[key][1].ready) for key, report in had.items()):
            self._on_lost()
        return DoneAnswer()

    def _taken(
        self, reports: Iterable[ServiceReport]
    ) -> Iterator[tuple[ServiceKey, ServiceReport]]:
        """Put the starts aside: whoever looks at many services reads the newest of each."""
        for report in reports:
            key = (report.tenant, report.name)
            had = self._starts.get(key, _NONE)
            if report.starts is not None and report.starts != had.traces:
                had = self._starts[key] = _Starts(report.starts, class_times(report.starts))
            shown = {"starts": had.traces[-1:], "start_classes": had.classes}
            yield key, report.model_copy(update=shown)

    def starts(self, services: Iterable[ServiceView]) -> tuple[ServiceStarts, ...]:
        """Return the starts of these services, as they were reported last."""
        return tuple(
            ServiceStarts(tenant=key[0], name=key[1], starts=self._starts.get(key, _NONE).traces)
            for key in dict.fromkeys((service.tenant, service.name) for service in services)
        )

    def of(self, services: Iterable[ServiceView]) -> tuple[ServiceReport, ...]:
        """Recent reports of these services."""
        since_s = time.monotonic() - OLD_S
        keys = dict.fromkeys((service.tenant, service.name) for service in services)
        reports = (self._found.get(key) for key in keys)
        return tuple(told[1] for told in reports if told is not None and told[0] > since_s)
