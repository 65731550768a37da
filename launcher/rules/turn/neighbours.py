"""Finds what services that share replicas, or did, have at each other's replicas.

A service that leaves its pool leaves requests behind: at its replicas those of others, and its own
at theirs. They end there.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from slicewise.cluster.language.service import tenant_of
from slicewise.cluster.rpc.messages import ServiceView
from slicewise.launcher.rules.gateway.types import Endpoint, Gateway, Server, ServerMode
from slicewise.launcher.rules.turn.endpoints import last_run
from slicewise.launcher.rules.turn.state import ServiceState, State

Place = tuple[str, int]
"""A replica's address and HTTP port."""


class Neighbours:
    """The services of each tenant of which some share replicas, or have."""

    def __init__(
        self, gateway: Gateway, state: State, services: Mapping[str, Sequence[ServiceView]]
    ) -> None:
        """Find them among ``services``, which are by ``tenant/service``."""
        self._busy: dict[str, Mapping[Place, int]] = {}
        self._in_all: dict[str, Counter[Place]] = defaultdict(Counter)
        self._endpoints: dict[str, dict[Place, Endpoint]] = defaultdict(dict)
        tenants = {
            tenant_of(key)
            for key, views in services.items()
            if any("pool" in view.directives for view in views)
            or (key in state and state[key].model_work.at_s)
        }
        for key, views in services.items():
            if (tenant := tenant_of(key)) in tenants:
                self._busy[key] = _busy(gateway, key)
                self._in_all[tenant].update(self._busy[key])
                for endpoint in _endpoints(views, state.get(key) or ServiceState()):
                    self._endpoints[tenant][endpoint.place] = endpoint

    def beside(self, key: str) -> Mapping[Place, int]:
        """Count the requests of other services that work at replicas, by the replica's place."""
        own = self._busy.get(key)
        return {} if own is None else self._in_all[tenant_of(key)] - Counter(own)

    def lent(self, key: str) -> frozenset[Endpoint]:
        """Return the other services' replicas at which the service still has requests."""
        endpoints = self._endpoints.get(tenant_of(key), {})
        return frozenset(
            endpoints[place] for place in self._busy.get(key, ()) if place in endpoints
        )


def _endpoints(views: Sequence[ServiceView], service_state: ServiceState) -> Iterator[Endpoint]:
    """Yield where replicas listen: as they are seen, or else as they are remembered."""
    for generation in service_state.generations.values():
        for proof in generation.verified.values():
            yield proof.run.endpoint
    for view in views:
        for slot in view.slots:
            if (run := last_run(slot, None)) is not None:
                yield run.endpoint


def _busy(gateway: Gateway, key: str) -> Mapping[Place, int]:
    backend = gateway.backend_of(key)
    if backend is None or not backend.sessions:
        return {}
    requests: Counter[Place] = Counter()
    for server in (*backend.servers, *backend.elsewhere):
        if count := _count(server):
            requests[server.address, server.port] += count
    return requests


def _count(server: Server) -> int:
    return 0 if server.mode is ServerMode.MAINT else server.in_flight + server.queued
