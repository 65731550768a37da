"""What to change at the gateway so that it shows every service's replicas."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from launcher.decide.gateway import Backend, Gateway, Mode, Server


@dataclass(frozen=True)
class SetMode:
    """``set server BACKEND/rN state MODE``."""

    backend: str
    index: int
    mode: Mode


@dataclass(frozen=True)
class SetTarget:
    """``set server BACKEND/rN addr A port P`` and its ``maxconn``; the server is in maintenance."""

    backend: str
    index: int
    address: str
    port: int
    concurrency: int


@dataclass(frozen=True)
class SetHealthy:
    """``set server BACKEND/rN health up``: the launcher has just asked the replica itself."""

    backend: str
    index: int


@dataclass(frozen=True)
class EndSessions:
    """``shutdown sessions server BACKEND/rN``: cut what is still in flight."""

    backend: str
    index: int


@dataclass(frozen=True)
class SendRound:
    """What waits in that backend's queue looks for its service's route again."""

    backend: str


@dataclass(frozen=True)
class AddRoute:
    """Requests of ``tenant/service`` go to that backend from now on."""

    service: str
    backend: str


@dataclass(frozen=True)
class RemoveRoute:
    """Nobody serves ``tenant/service`` any more."""

    service: str


@dataclass(frozen=True)
class MarkComplete:
    """Every service has its route: what has none is refused from now on."""


Change = (
    SetMode
    | SetTarget
    | SetHealthy
    | EndSessions
    | SendRound
    | AddRoute
    | RemoveRoute
    | MarkComplete
)


@dataclass(frozen=True)
class Target:
    """Where a replica listens and whether it shall get requests."""

    address: str
    port: int
    mode: Mode


@dataclass(frozen=True)
class Route:
    """A living service.

    Attributes:
        service: ``tenant/service``.
        concurrency: requests at once per replica; more wait in the backend's queue.
        targets: by slot index; every other server goes into maintenance. None: leave its servers
            as they are.
    """

    service: str
    concurrency: int
    targets: Mapping[int, Target] | None = field(hash=False)


@dataclass(frozen=True)
class RoutePlan:
    """What to change.

    Attributes:
        changes: in the order in which to make them.
        routes: what is routed then: backend name by ``tenant/service``.
        unrouted: services for which no backend is free.
    """

    changes: tuple[Change, ...]
    routes: Mapping[str, str] = field(hash=False)
    unrouted: tuple[str, ...]


def plan_routes(gateway: Gateway, routes: Sequence[Route]) -> RoutePlan:
    """Compare and order: an address is set only in maintenance, a route only onto clean servers.

    A backend is given to another service only if no request is left in it: one that waits there
    must not be answered by the wrong model.
    """
    living = {route.service for route in routes}
    ended = tuple(service for service in gateway.routes if service not in living)
    backends, unrouted = _assign(gateway, routes)
    changes: list[Change] = [RemoveRoute(service) for service in ended]
    used = {name for service, name in gateway.routes.items() if service in living}
    for name, backend in gateway.backends.items():
        if name not in used:
            changes += _vacate(name, backend)
    for route in routes:
        if route.service in backends:
            changes += _route_changes(gateway, route, backends[route.service])
    if not gateway.complete:
        changes.append(MarkComplete())
    return RoutePlan(tuple(changes), backends, unrouted)


def _assign(gateway: Gateway, routes: Sequence[Route]) -> tuple[dict[str, str], tuple[str, ...]]:
    backends = {
        route.service: gateway.routes[route.service]
        for route in routes
        if gateway.routes.get(route.service) in gateway.backends
    }
    new = [route.service for route in routes if route.service not in backends]
    taken = set(gateway.routes.values())
    free = [name for name, b in gateway.backends.items() if name not in taken and not b.sessions]
    backends.update(zip(new, free, strict=False))
    return backends, tuple(new[len(free) :])


def _vacate(name: str, backend: Backend) -> Iterable[Change]:
    """No route leads there: what waits is refused by the gateway, what is in flight may end.

    Replicas have the time for it that Slurm gives them.
    """
    for index, server in enumerate(backend.servers):
        if server.mode is not Mode.MAINT:
            yield SetMode(name, index, Mode.MAINT)
    if backend.queued:
        yield SendRound(name)


def _route_changes(gateway: Gateway, route: Route, name: str) -> Iterable[Change]:
    backend = gateway.backends[name]
    before = gateway.routes.get(route.service)
    if before != name:
        if before is not None:
            yield RemoveRoute(route.service)
        yield AddRoute(route.service, name)
        backend = _clean(backend)
    if route.targets is None:
        return
    for index, server in enumerate(backend.servers):
        target = route.targets.get(index)
        if target is None:
            yield from _maintenance(name, index, server)
        else:
            yield from _server_changes(name, index, server, target, route.concurrency)


def _clean(backend: Backend) -> Backend:
    """As it will be once all its servers are in maintenance."""
    nowhere = Server("", 0, Mode.MAINT, up=False, in_flight=0, queued=0)
    return Backend(0, 0, (nowhere,) * len(backend.servers))


def _server_changes(
    name: str, index: int, server: Server, target: Target, concurrency: int
) -> Iterable[Change]:
    here = (server.address, server.port) == (target.address, target.port)
    if here and server.mode is target.mode:
        return
    if here and server.mode is not Mode.MAINT:
        yield SetMode(name, index, target.mode)
    elif target.mode is Mode.READY:
        yield from _maintenance(name, index, server)
        yield SetTarget(name, index, target.address, target.port, concurrency)
        yield SetMode(name, index, Mode.READY)
        yield SetHealthy(name, index)


def _maintenance(name: str, index: int, server: Server) -> Iterable[Change]:
    """HAProxy closes the server's idle connections with it (tried on 2.6)."""
    if server.mode is Mode.MAINT:
        return
    yield SetMode(name, index, Mode.MAINT)
    if server.in_flight:
        yield EndSessions(name, index)
