"""Finds what services that share replicas, or did, have at each other's replicas.

A service that leaves its pool leaves requests behind: at its replicas those of others, and its own
at theirs. They end there.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from slicewise.cluster.language.service import tenant_of
from slicewise.cluster.rpc.messages import ServiceView
from slicewise.launcher.rules.gateway.types import Backend, Endpoint, Gateway, Server, ServerMode
from slicewise.launcher.rules.pools.busy import Parts, Run
from slicewise.launcher.rules.turn.endpoints import last_run
from slicewise.launcher.rules.turn.state import ServiceState, State

Place = tuple[str, int]
"""A replica's address and HTTP port."""


@dataclass(frozen=True)
class Neighbours:
    """What services have at each other's replicas.

    Attributes:
        beside: requests at a service's replicas, by ``tenant/service`` and place, then by the other
            service whose they are.
        lent: other services' replicas at which a service has requests, by ``tenant/service``.
        parts: of each replica with others' requests, which part of all of them is each other's.
    """

    beside: Mapping[str, Mapping[Place, Mapping[str, int]]] = field(hash=False)
    lent: Mapping[str, frozenset[Endpoint]] = field(hash=False)
    parts: Mapping[Run, Parts] = field(hash=False)


def neighbours(
    gateway: Gateway, state: State, services: Mapping[str, Sequence[ServiceView]]
) -> Neighbours:
    """Find it for each tenant of whose services some share replicas, or have.

    ``services`` are by ``tenant/service``.
    """
    tenants = {
        tenant_of(key)
        for key, views in services.items()
        if any("pool" in view.directives for view in views)
        or (key in state and state[key].model_work.at_s)
    }
    concerned = {key: views for key, views in services.items() if tenant_of(key) in tenants}
    at_work = _at_work(gateway, concerned)
    beside: dict[str, dict[Place, Mapping[str, int]]] = defaultdict(dict)
    lent: dict[str, set[Endpoint]] = defaultdict(set)
    parts: dict[Run, Parts] = {}
    for key, views in concerned.items():
        runs = _runs(views, state.get(key) or ServiceState())
        for place, (run, endpoint) in dict(runs).items():
            backends = at_work.get((tenant_of(key), place), {})
            requests = {at: _requests(backend, endpoint) for at, backend in backends.items()}
            others = {at: count for at, count in requests.items() if count and at != key}
            if others:
                beside[key][place] = others
                whole = sum(requests.values())
                parts[run] = {at: count / whole for at, count in others.items()}
            for other in others:
                lent[other].add(endpoint)
    return Neighbours(beside, {key: frozenset(ends) for key, ends in lent.items()}, parts)


def _at_work(
    gateway: Gateway, keys: Iterable[str]
) -> Mapping[tuple[str, Place], Mapping[str, Backend]]:
    """Return the services that work at each place: few of all pairs do."""
    working: dict[tuple[str, Place], dict[str, Backend]] = defaultdict(dict)
    for key in keys:
        backend = gateway.backend_of(key)
        if backend is not None and backend.sessions:
            for server in (*backend.servers, *backend.elsewhere):
                if _count(server):
                    working[tenant_of(key), (server.address, server.port)][key] = backend
    return working


def _runs(
    views: Sequence[ServiceView], service_state: ServiceState
) -> Iterator[tuple[Place, tuple[Run, Endpoint]]]:
    """Yield a service's replicas: as they are remembered, then as they are seen."""
    for array, generation in service_state.generations.items():
        for index, proof in generation.verified.items():
            endpoint = proof.run.endpoint
            yield endpoint.place, ((array, index, proof.run.start_s), endpoint)
    for view in views:
        for slot in view.slots:
            if (run := last_run(slot, None)) is not None:
                at = (view.array_job_id, slot.index, run.start_s)
                yield run.endpoint.place, (at, run.endpoint)


def _requests(backend: Backend, endpoint: Endpoint) -> int:
    server = backend.server_of(endpoint)
    return 0 if server is None or server.mode is ServerMode.MAINT else _count(server)


def _count(server: Server) -> int:
    """Those that wait for this replica alone end there, too."""
    return server.in_flight + server.queued
