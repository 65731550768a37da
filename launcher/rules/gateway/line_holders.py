"""Decides which services may have backends with server lines, where fewer have them than services.

One tenant's busy services must not take all of them: a tenant gets half, and a quarter is kept for
tenants that have none.
"""

from collections import Counter, defaultdict
from functools import cached_property
from string import digits

from slicewise.cluster.language.service import tenant_of
from slicewise.cluster.language.service_places import ServicePlaces
from slicewise.launcher.rules.gateway.types import IDLE, Backend, Gateway, is_free


class LineHolders:
    """Counts the services of each tenant that hold backends with server lines, by group.

    Groups where every backend has lines have no bounds here: those of all services hold.
    """

    def __init__(self, gateway: Gateway) -> None:
        """Start with none."""
        self._per_tenant = gateway.per_tenant
        self._backends = gateway.backends
        self._held: dict[str, Counter[str]] = defaultdict(Counter)

    @cached_property
    def _sizes(self) -> Counter[str]:
        """How many backends each group has. In most turns nobody needs to know."""
        return Counter(name.rstrip(digits) for name in self._backends)

    def add(self, service: str, group: str) -> None:
        """Count one more service."""
        self._held[group][tenant_of(service)] += 1

    def remove(self, service: str, group: str) -> None:
        """Count one service less."""
        self._held[group][tenant_of(service)] -= 1

    def own(self, service: str, group: str) -> int:
        """Return how many the service's tenant holds."""
        return self._held[group][tenant_of(service)]

    def excess(self, service: str, group: str) -> int:
        """Return how many more the service's tenant holds than it may."""
        places = self._places(group)
        return self.own(service, group) - places.per_tenant if places is not None else 0

    def why_none(self, service: str, group: str) -> str:
        """Return why the service gets no backend with server lines; "" if it gets one."""
        places = self._places(group)
        if places is None:
            return ""
        why = places.why_none(tenant_of(service), self._held[group])
        return f"of services with replicas, {why}" if why else ""

    def _places(self, group: str) -> ServicePlaces | None:
        lined, idle = self._sizes[group], self._sizes[group + IDLE]
        if self._per_tenant is None or not idle:
            return None
        return ServicePlaces(max(lined, idle), self._per_tenant).part(lined)


def group_of(backend: str) -> str:
    """Return the name of an engine's group, given that of one of its backends."""
    return backend.rstrip(digits).removesuffix(IDLE)


def is_unused(backend: Backend) -> bool:
    """Whether no server carries a replica, and no request is left."""
    is_vacant = all(map(is_free, backend.servers))
    return is_vacant and not (backend.sessions or backend.queued or backend.elsewhere)
