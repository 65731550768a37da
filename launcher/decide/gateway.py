"""The gateway as HAProxy shows it: backends of a pool, their servers, which service has which."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from hashlib import sha256


class Mode(StrEnum):
    """Administrative state of a server, in the words of HAProxy's ``set server state``."""

    READY = "ready"
    DRAIN = "drain"
    MAINT = "maint"


@dataclass(frozen=True, order=True)
class Endpoint:
    """Where a replica listens, and how it proves that it is the one.

    Attributes:
        certificate: base64 of DER; whoever listens there without its key gets no request.
    """

    address: str
    http_port: int
    grpc_port: int
    certificate: str

    @property
    def place(self) -> tuple[str, int]:
        """By which it is found at the gateway: no two replicas share an HTTP port."""
        return self.address, self.http_port

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the certificate's text: by it HAProxy's map names it; "" without one."""
        return sha256(self.certificate.encode()).hexdigest() if self.certificate else ""


@dataclass(frozen=True)
class Server:
    """One server line, which carries one replica: its HTTP port and its gRPC port together.

    Attributes:
        port: of HTTP.
        up: health checks pass.
        in_flight: requests that it works on (``scur``), of both protocols.
        queued: requests that wait for this server alone (``qcur``).
        digest: of the certificate that it asks for (``Endpoint.digest``); "" if that is not known.
    """

    address: str
    port: int
    mode: Mode
    up: bool
    in_flight: int
    queued: int
    digest: str = ""


@dataclass(frozen=True)
class Backend:
    """One backend of the pool, of both protocols.

    Attributes:
        sessions: every request in it: in flight, queued and held (``scur`` of BACKEND).
        queued: requests that wait for any server (``qcur`` of BACKEND).
        servers: its lines, ``r1`` first; any line may carry any replica.
        arrived: requests that have come since HAProxy began to count.
        answered: those of them that have left a replica.
        elsewhere: what processes of HAProxy that a reload has replaced still work on, by replica.
    """

    sessions: int
    queued: int
    servers: tuple[Server, ...]
    arrived: int = 0
    answered: int = 0
    elsewhere: tuple[Server, ...] = ()

    @cached_property
    def lines(self) -> Mapping[tuple[str, int], int]:
        """Index of the server by address and HTTP port: one that is not in maintenance, if any."""
        found: dict[tuple[str, int], int] = {}
        for index, server in enumerate(self.servers):
            place = (server.address, server.port)
            if server.mode is not Mode.MAINT or place not in found:
                found[place] = index
        return found

    def server_of(self, endpoint: Endpoint) -> Server | None:
        """The line of that replica, with what replaced processes work on there; None if none has.

        Once its line has been given to another one, a replica is in maintenance no more, but
        unknown. What only a replaced process works on counts as draining.
        """
        place = endpoint.place
        index = self.lines.get(place)
        line = self.servers[index] if index is not None else None
        if line is not None and line.digest != endpoint.digest:
            # Another run had that port before.
            line = None
        rest = sum(old.in_flight for old in self.elsewhere if (old.address, old.port) == place)
        if not rest:
            return line
        if line is None or line.mode is Mode.MAINT:
            line = Server(
                *place, Mode.DRAIN, up=True, in_flight=0, queued=0, digest=endpoint.digest
            )
        return replace(line, in_flight=line.in_flight + rest)


@dataclass(frozen=True)
class Gateway:
    """One look at HAProxy.

    Attributes:
        routes: backend name by ``tenant/service``.
        backends: by name.
        complete: every service had its route once since HAProxy started; until then requests of
            a service without one wait.
        closing: services that take no new request, by ``tenant/service``.
        retry_after_s: what a request that is given up on is told, by ``tenant/service``.
        in_time: how many may wait before the newest go first, by ``tenant/service``.
        per_tenant: services of one tenant that get a backend at most; None: as many as come.
    """

    routes: Mapping[str, str] = field(hash=False)
    backends: Mapping[str, Backend] = field(hash=False)
    complete: bool
    closing: frozenset[str] = frozenset()
    retry_after_s: Mapping[str, int] = field(default_factory=dict, hash=False)
    in_time: Mapping[str, int] = field(default_factory=dict, hash=False)
    per_tenant: int | None = None

    def backend_of(self, service: str) -> Backend | None:
        """The backend of ``tenant/service``; None if it has no route."""
        return self.backends.get(self.routes.get(service, ""))


def with_replaced(gateway: Gateway, replaced: Iterable[Gateway]) -> Gateway:
    """Count what processes that a reload has replaced still have, service by service."""
    backends = dict(gateway.backends)
    for old in replaced:
        for service, name in gateway.routes.items():
            rest = old.backend_of(service)
            if rest is not None and rest.sessions and name in backends:
                backends[name] = _and(backends[name], rest)
    return replace(gateway, backends=backends)


def _and(backend: Backend, rest: Backend) -> Backend:
    busy = tuple(server for server in rest.servers if server.in_flight)
    return replace(
        backend,
        sessions=backend.sessions + rest.sessions,
        queued=backend.queued + rest.queued,
        elsewhere=(*backend.elsewhere, *busy),
    )


@dataclass(frozen=True)
class Load:
    """Requests of one service at the gateway.

    Attributes:
        in_flight: a replica works on them.
        queued: replicas are there, but full.
        held: no replica is there. While one is, what no server has and no queue is an answer that
            its client has not read yet.
        arrived: requests that have come since the gateway began to count; less than before: it
            began anew.
        answered: of these, those that a replica has answered.
    """

    in_flight: int = 0
    queued: int = 0
    held: int = 0
    arrived: int = 0
    answered: int = 0

    @property
    def waiting(self) -> int:
        """The backlog: requests that wait for a replica."""
        return self.queued + self.held

    @property
    def total(self) -> int:
        """Every request that was not answered yet."""
        return self.in_flight + self.waiting


def load_of(backend: Backend | None) -> Load:
    """What is asked of a service now; nothing, if it has no backend."""
    if backend is None:
        return Load()
    everywhere = (*backend.servers, *backend.elsewhere)
    in_flight = sum(server.in_flight for server in everywhere)
    queued = backend.queued + sum(server.queued for server in backend.servers)
    is_served = any(one.up and one.mode is Mode.READY for one in backend.servers)
    held = 0 if is_served else max(0, backend.sessions - in_flight - queued)
    return Load(in_flight, queued, held, backend.arrived, backend.answered)
