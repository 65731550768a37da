"""Decides what to change at the gateway so that it shows every service's replicas."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from slicewise.cluster.language.adapters import model_name
from slicewise.cluster.language.service import tenant_of
from slicewise.cluster.language.service_places import ServicePlaces
from slicewise.launcher.rules.gateway.line_holders import LineHolders, is_unused
from slicewise.launcher.rules.gateway.types import (
    DEFAULT_TERMS,
    IDLE,
    Backend,
    Endpoint,
    Gateway,
    Server,
    ServerMode,
    Terms,
    adapter_of_entry,
    is_free,
)


@dataclass(frozen=True)
class SetMode:
    """``set server BACKEND/rN state MODE``."""

    backend: str
    index: int
    mode: ServerMode


@dataclass(frozen=True)
class SetTarget:
    """Set address, ports, certificate and ``maxconn`` of ``BACKEND/rN``, in maintenance now."""

    backend: str
    index: int
    endpoint: Endpoint
    concurrency: int


@dataclass(frozen=True)
class SetConcurrency:
    """Set ``maxconn`` of ``BACKEND/rN``, which serves: what waits gets a place immediately."""

    backend: str
    index: int
    concurrency: int


@dataclass(frozen=True)
class SetHealthy:
    """``set server BACKEND/rN health up``: the launcher itself has just asked the replica."""

    backend: str
    index: int


@dataclass(frozen=True)
class EndSessions:
    """``shutdown sessions server BACKEND/rN``: cut what is still in flight."""

    backend: str
    index: int


@dataclass(frozen=True)
class SendRound:
    """Let what waits in that backend's queue look for its service's route again."""

    backend: str


@dataclass(frozen=True)
class AddRoute:
    """Send requests of ``tenant/service`` to that backend from now on."""

    service: str
    backend: str


@dataclass(frozen=True)
class MoveRoute:
    """Send requests of ``tenant/service`` to another backend from now on; those held follow."""

    service: str
    backend: str


@dataclass(frozen=True)
class RemoveRoute:
    """Remove the route of ``tenant/service``, which is served no more."""

    service: str


@dataclass(frozen=True)
class MarkComplete:
    """Tell that every service has its route: requests without one are refused from now on."""


@dataclass(frozen=True)
class SetTerms:
    """Set on what terms requests of ``tenant/service`` are taken; ``before``: those until now."""

    service: str
    terms: Terms
    before: Terms


@dataclass(frozen=True)
class SetAdapter:
    """Set whether clients may ask for ``tenant/service:adapter``, or remove a count of it."""

    entry: str
    there: bool


MapChange = AddRoute | MoveRoute | RemoveRoute | MarkComplete | SetTerms | SetAdapter
"""Changes that are entries of maps."""

ServerChange = SetMode | SetTarget | SetConcurrency | SetHealthy | EndSessions
GatewayChange = ServerChange | SendRound | MapChange


@dataclass(frozen=True)
class Route:
    """What the gateway shall show of a living service.

    Attributes:
        service: ``tenant/service``.
        concurrency: requests that each replica gets at the same time; more wait in the backend's
            queue.
        targets: which replicas shall get requests, drain, or be closed; every other server goes
            into maintenance. None: leave its servers as they are.
        group: name of its engine's backends, one of which carries it.
        terms: on what terms its requests are taken.
        spared: addresses at which servers beside ``targets`` stay as they are: one may belong to a
            replica with ports that are not known now.
        cut: replicas that answer nothing any more: what they have in flight is ended.
        adapters: names of the adapters that clients may ask for.
        follows: whether replicas that serve follow ``concurrency``; if not, each keeps what it was
            given first: it was started for that.
    """

    service: str
    concurrency: int
    targets: Mapping[Endpoint, ServerMode] | None = field(hash=False)
    group: str
    terms: Terms = DEFAULT_TERMS
    spared: frozenset[str] = frozenset()
    cut: frozenset[Endpoint] = frozenset()
    follows: bool = False
    adapters: frozenset[str] = frozenset()


@dataclass(frozen=True)
class RoutePlan:
    """What to change.

    Attributes:
        changes: in the order in which to make them.
        routes: the routes after the changes: backend name by ``tenant/service``.
        unrouted: services that get no backend, and why, by ``tenant/service``.
        crowded: services with a replica for which no server of their backend is free.
    """

    changes: tuple[GatewayChange, ...]
    routes: Mapping[str, str] = field(hash=False)
    unrouted: Mapping[str, str] = field(hash=False)
    crowded: tuple[str, ...] = ()


def plan_routes(gateway: Gateway, routes: Sequence[Route]) -> RoutePlan:
    """Compare the gateway with the routes that shall be, and put the changes in order.

    An address is set only in maintenance, and a route leads only onto clean servers. A backend is
    given to another service only if no request is left in it: a request that waits there must not
    be answered by the wrong model.
    """
    living = {route.service for route in routes}
    ended = tuple(service for service in gateway.routes if service not in living)
    backends, unrouted = _assign(gateway, routes)
    changes: list[GatewayChange] = [RemoveRoute(service) for service in ended]
    changes += [
        SetTerms(name, DEFAULT_TERMS, before)
        for name, before in gateway.terms.items()
        if name not in living
    ]
    adapters = {
        model_name(route.service, adapter) for route in routes for adapter in route.adapters
    }
    there = gateway.adapter_entries
    gone = (entry for entry in sorted(there) if adapter_of_entry(entry) not in adapters)
    changes += [SetAdapter(entry, there=False) for entry in gone]
    changes += [SetAdapter(name, there=True) for name in sorted(adapters - there.keys())]
    used = {name for service, name in gateway.routes.items() if service in living}
    for name, backend in gateway.backends.items():
        if name not in used:
            changes += _vacate(name, backend)
    crowded: list[str] = []
    for route in routes:
        if route.service in backends:
            found, fits = _route_changes(gateway, route, backends[route.service])
            changes += found
            crowded += () if fits else (route.service,)
    if not gateway.complete:
        changes.append(MarkComplete())
    return RoutePlan(tuple(changes), backends, unrouted, tuple(crowded))


def _assign(gateway: Gateway, routes: Sequence[Route]) -> tuple[dict[str, str], Mapping[str, str]]:
    """Return each service's backend, and why some get none.

    A service that has a backend of its engine keeps it, also beyond what its tenant may have; it
    moves only between those with server lines and those without.
    """
    groups = {
        name: gateway.group(name)
        for group in {route.group for route in routes}
        for name in (group, group + IDLE)
    }
    backends = {
        route.service: name
        for route in routes
        if (name := gateway.routes.get(route.service, "")) in groups[route.group]
        or name in groups[route.group + IDLE]
    }
    taken = set(gateway.routes.values())
    free = {
        group: [name for name, b in found.items() if name not in taken and not b.sessions]
        for group, found in groups.items()
    }
    holders = LineHolders(gateway)
    for route in routes:
        if backends.get(route.service) in groups[route.group]:
            holders.add(route.service, route.group)
    lines = _Lines(groups, free, holders)
    unrouted = _wake(routes, backends, lines)
    held = Counter(tenant_of(backend) for backend in backends)
    for route in routes:
        if route.service in backends:
            continue
        idle, places = route.group + IDLE, len(groups[route.group])
        tenant = tenant_of(route.service)
        why = _why_unrouted(gateway, tenant, held, max(places, len(groups[idle])))
        kept = _reserve(groups, route.group)
        rests = len(free[route.group]) <= kept and not _serves(route)
        without = holders.why_none(route.service, route.group)
        order = (idle,) if without else (idle, route.group) if rests else (route.group, idle)
        found = next((group for group in order if free[group]), None)
        if why or found is None:
            unrouted[route.service] = why or "the gateway has no free backend"
            continue
        backends[route.service] = free[found].pop(0)
        held[tenant] += 1
        if found == route.group:
            holders.add(route.service, route.group)
        elif without and _serves(route):
            unrouted[route.service] = without
    _rest(gateway, routes, backends, lines)
    return backends, unrouted


_Groups = Mapping[str, Mapping[str, Backend]]


@dataclass(frozen=True)
class _Lines:
    """Backends with and without server lines, while services are given some.

    Attributes:
        groups: by the name of their group.
        free: those that may be given to a service, by group.
        holders: services that have one with server lines.
    """

    groups: _Groups
    free: Mapping[str, list[str]]
    holders: LineHolders


def _wake(routes: Sequence[Route], backends: dict[str, str], lines: _Lines) -> dict[str, str]:
    """Move services with a ready replica to backends with server lines; return why some can't.

    Those of tenants with the fewest come first. Where the bounds leave none, a service without
    replicas and requests gives its backend up for it: of the same tenant, if that one has all that
    it may have.
    """
    groups, free, holders = lines.groups, lines.free, lines.holders
    unmoved: dict[str, str] = {}
    waking = [
        route
        for route in routes
        if backends.get(route.service) in groups[route.group + IDLE] and _serves(route)
    ]
    waking.sort(key=lambda route: holders.own(route.service, route.group))
    unused = [route for route in routes if _may_rest(route, backends, groups)] if waking else []
    for route in waking:
        if holders.why_none(route.service, route.group):
            is_full = holders.excess(route.service, route.group) >= 0
            resting = (
                one
                for one in unused
                if one.group == route.group
                and not (is_full and tenant_of(one.service) != tenant_of(route.service))
            )
            idle = free[route.group + IDLE]
            if (resting_route := next(resting, None)) is not None and idle:
                backends[resting_route.service] = idle.pop(0)
                unused.remove(resting_route)
                holders.remove(resting_route.service, resting_route.group)
        if why := holders.why_none(route.service, route.group):
            unmoved[route.service] = why
        elif free[route.group]:
            backends[route.service] = free[route.group].pop(0)
            holders.add(route.service, route.group)
        else:
            most = len(groups[route.group])
            unmoved[route.service] = f"{most} services have replicas, and no more can"
    return unmoved


def _rest(
    gateway: Gateway, routes: Sequence[Route], backends: dict[str, str], lines: _Lines
) -> None:
    """Move services without replicas and requests away from server lines, which others may need.

    Their backends are free at the next look, if no request has come meanwhile. So some backends are
    free before a service needs one. A tenant with more than it may have keeps none of them.
    """
    groups, free, holders = lines.groups, lines.free, lines.holders
    short = {group: _reserve(groups, group) - len(found) for group, found in free.items()}
    for route in routes:
        name, idle = gateway.routes.get(route.service, ""), free[route.group + IDLE]
        is_needed = short[route.group] > 0 or holders.excess(route.service, route.group) > 0
        if not is_needed or not idle or name != backends.get(route.service):
            continue
        if _may_rest(route, backends, groups):
            backends[route.service] = idle.pop(0)
            short[route.group] -= 1
            holders.remove(route.service, route.group)


def _may_rest(route: Route, backends: Mapping[str, str], groups: _Groups) -> bool:
    """Whether the service could give its server lines up: it has some, and uses none."""
    backend = groups[route.group].get(backends.get(route.service, ""))
    is_known = route.targets is not None and not _serves(route)
    return backend is not None and is_known and is_unused(backend)


def _reserve(groups: _Groups, group: str) -> int:
    """Backends with server lines that no service without replicas may take: an eighth, if other
    services have backends without.
    """
    return -(-len(groups[group]) // 8) if groups.get(group + IDLE) else 0


def _serves(route: Route) -> bool:
    return ServerMode.READY in (route.targets or {}).values()


def _why_unrouted(gateway: Gateway, tenant: str, held: Mapping[str, int], places: int) -> str:
    if gateway.per_tenant is None:
        return ""
    return ServicePlaces(places, gateway.per_tenant).why_none(tenant, held)


def _vacate(name: str, backend: Backend) -> Iterable[GatewayChange]:
    """Take the servers from a backend to which no route leads.

    The gateway refuses what waits there. What is in flight may end, in the time that Slurm gives
    the replicas.
    """
    for index, server in enumerate(backend.servers):
        if server.mode is not ServerMode.MAINT:
            yield SetMode(name, index, ServerMode.MAINT)
    if backend.queued:
        yield SendRound(name)


def _route_changes(
    gateway: Gateway, route: Route, name: str
) -> tuple[Sequence[GatewayChange], bool]:
    """Return the changes of one service, and whether every replica has a server."""
    backend = gateway.backends[name]
    changes: list[GatewayChange] = []
    before = gateway.routes.get(route.service)
    if before != name:
        changes += [AddRoute(route.service, name)] if before is None else []
        backend = _clean(backend)
    changes += _new_terms(gateway, route)
    found, fits = _line_changes(route, name, backend)
    changes += found
    if before not in {None, name}:
        # What waits there follows: it finds the servers.
        changes.append(MoveRoute(route.service, name))
    return changes, fits


def _line_changes(
    route: Route, name: str, backend: Backend
) -> tuple[Sequence[GatewayChange], bool]:
    """Return the changes of a service's server lines, and whether every replica has one.

    In a backend without lines no replica can have one; why it has no other is said elsewhere.
    """
    if route.targets is None or not backend.servers:
        return (), True
    changes: list[GatewayChange] = []
    lines = _lines(backend, route.targets)
    for index, server in enumerate(backend.servers):
        target = lines.get(index)
        if target is not None:
            changes += _server_changes(route, target, name, index, server)
        elif server.address not in route.spared:
            changes += _maintenance(name, index, server)
    ready = {target for target, mode in route.targets.items() if mode is ServerMode.READY}
    return changes, ready <= set(lines.values())


def _new_terms(gateway: Gateway, route: Route) -> Iterable[SetTerms]:
    before, terms = gateway.terms_of(route.service), route.terms
    if not _is_other(terms.in_time, before.in_time):
        terms = replace(terms, in_time=before.in_time)
    if terms != before:
        yield SetTerms(route.service, terms, before)


def _is_other(in_time: int | None, before: int | None) -> bool:
    """Whether they differ by more than a quarter, so that the gateway is not told each second."""
    if in_time is None or before is None:
        return in_time is not before
    return 4 * abs(in_time - before) > before


def _lines(backend: Backend, targets: Mapping[Endpoint, ServerMode]) -> Mapping[int, Endpoint]:
    """Return which server carries which replica: the one that does already, else one that is free.

    A replica that shall not get requests gets no new server. A server that expects another
    certificate carries another replica, which had the port before.
    """
    at = backend.lines
    found = {
        at[target.place]: target
        for target in targets
        if target.place in at and backend.servers[at[target.place]].digest == target.digest
    }
    placed = set(found.values())
    new = (t for t in sorted(targets) if targets[t] is ServerMode.READY and t not in placed)
    lines = enumerate(backend.servers)
    free = [index for index, server in lines if index not in found and is_free(server)]
    return found | dict(zip(free, new, strict=False))


def _clean(backend: Backend) -> Backend:
    """Return the backend as it will be once all its servers are in maintenance."""
    nowhere = Server("", 0, ServerMode.MAINT, up=False, in_flight=0, queued=0)
    return Backend(0, 0, (nowhere,) * len(backend.servers))


def _server_changes(
    route: Route, target: Endpoint, name: str, index: int, server: Server
) -> Iterable[GatewayChange]:
    mode = ServerMode.MAINT if route.targets is None else route.targets[target]
    if server.in_flight and target in route.cut:
        yield EndSessions(name, index)
    if server.mode is mode:
        is_other = server.concurrency not in {None, route.concurrency}
        if route.follows and mode is ServerMode.READY and is_other:
            yield SetConcurrency(name, index, route.concurrency)
        return
    if mode is ServerMode.MAINT:
        yield from _maintenance(name, index, server)
    elif server.mode is not ServerMode.MAINT:
        yield SetMode(name, index, mode)
    elif mode is ServerMode.READY:
        yield SetTarget(name, index, target, route.concurrency)
        yield SetMode(name, index, ServerMode.READY)
        yield SetHealthy(name, index)


def _maintenance(name: str, index: int, server: Server) -> Iterable[GatewayChange]:
    """Put the server into maintenance; HAProxy also closes its idle connections (tried on 2.6)."""
    if server.mode is ServerMode.MAINT:
        return
    yield SetMode(name, index, ServerMode.MAINT)
    if server.in_flight:
        yield EndSessions(name, index)
