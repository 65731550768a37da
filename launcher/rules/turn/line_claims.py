"""Decides which services may start replicas where fewer backends have server lines than services.

A service in a backend without lines gets lines once a replica is ready. Replicas of more services
than get some would be charged in vain, so the others' do not start.
"""

from collections.abc import Container, Mapping, Sequence

from slicewise.cluster.rpc.messages import ServiceView
from slicewise.launcher.rules.gateway.line_holders import LineHolders, group_of, is_unused
from slicewise.launcher.rules.gateway.types import Gateway

_REST = frozenset({"held", "gone"})


class LineClaims:
    """Services that use server lines or will, while a turn goes from service to service."""

    def __init__(
        self,
        gateway: Gateway,
        services: Mapping[str, Sequence[ServiceView]],
        resting: Container[str],
    ) -> None:
        """Count services whose lines are in use, then those with replicas under way.

        ``resting`` are services without any.
        """
        self._gateway = gateway
        self._holders = LineHolders(gateway)
        self._claimed: set[str] = set()
        self._refused: dict[str, str] = {}
        for key in services:
            backend = gateway.backend_of(key)
            if backend is not None and backend.servers and not is_unused(backend):
                self.claim(key)
        under_way = [key for key in services if key not in resting and _runs(services[key])]
        for key in sorted(under_way, key=self._has_no_lines):
            if why := self.why_none(key):
                self._refused[key] = why
            else:
                self.claim(key)

    def why_none(self, key: str) -> str:
        """Return why no replica of ``tenant/service`` could get requests; "" if one could."""
        if key in self._claimed or not self._has_no_lines(key):
            return ""
        return self._refused.get(key) or self._holders.why_none(key, self._group(key))

    def claim(self, key: str) -> None:
        """Count a service that has replicas, or will."""
        if key not in self._claimed and self._gateway.backend_of(key) is not None:
            self._claimed.add(key)
            self._holders.add(key, self._group(key))

    def _has_no_lines(self, key: str) -> bool:
        backend = self._gateway.backend_of(key)
        return backend is not None and not backend.servers

    def _group(self, key: str) -> str:
        return group_of(self._gateway.routes[key])


def _runs(views: Sequence[ServiceView]) -> bool:
    return any(slot.state not in _REST for view in views for slot in view.slots)
