"""Remembers what happened to services' replicas: in memory, the last events of each."""

from collections import deque
from collections.abc import Collection, Iterable

from slicewise.cluster.rpc.messages import ServiceReport, ServiceView
from slicewise.cluster.rpc.read_messages import ServiceEvent, ServiceEvents
from slicewise.slurm_plugin.rules.services.events import Reports, happened

MOST = 100
"""Events of one service that are remembered."""


class RememberedEvents:
    """The events of all services that are there, since this daemon began."""

    def __init__(self) -> None:
        self._views: tuple[ServiceView, ...] = ()
        self._reports: Reports = {}
        self._events: dict[tuple[str, str], deque[ServiceEvent]] = {}

    def follow(
        self, views: tuple[ServiceView, ...], reports: Iterable[ServiceReport], at_s: int
    ) -> None:
        """Take what a look at Slurm shows, and what the launcher has reported until then.

        While the launcher is away, its last report stands: a replica does not get ready twice.
        """
        tells = {**self._reports, **{(report.tenant, report.name): report for report in reports}}
        services = dict.fromkeys((view.tenant, view.name) for view in views)
        self._events = {key: self._events.get(key, deque(maxlen=MOST)) for key in services}
        for key, event in happened(self._views, views, self._reports, tells, at_s):
            self._events[key].append(event)
        self._views = views
        self._reports = {key: report for key, report in tells.items() if key in services}

    def named(self, name: str, tenants: Collection[str] | None) -> tuple[ServiceEvents, ...]:
        """Return those of the services of that name, of these tenants, by tenant; None is all."""
        return tuple(
            ServiceEvents(tenant=tenant, name=name, events=tuple(event))
            for (tenant, service), event in sorted(self._events.items())
            if service == name and (tenants is None or tenant in tenants)
        )
