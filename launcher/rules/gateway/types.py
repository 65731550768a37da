"""The gateway as HAProxy shows it: backends of engines, their servers, each service's backend."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from hashlib import sha256
from string import digits

from slicewise.launcher.rules.engines.engine import IDLE_SUFFIX

IDLE = IDLE_SUFFIX
"""Between a group's name and the number of its backends without server lines: ``tritonidle1``."""


class ServerMode(StrEnum):
    """Administrative state of a server, in the words of HAProxy's ``set server state``."""

    READY = "ready"
    DRAIN = "drain"
    MAINT = "maint"


@dataclass(frozen=True, order=True)
class Endpoint:
    """Where a replica listens, and how it proves its identity.

    Attributes:
        grpc_port: the HTTP port again if its engine has one port.
        certificate: base64 of DER; a server that does not have its key gets no request.
    """

    address: str
    http_port: int
    grpc_port: int
    certificate: str

    @property
    def place(self) -> tuple[str, int]:
        """Address and HTTP port, by which the gateway knows it: no two replicas share them."""
        return self.address, self.http_port

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the certificate's text, by which HAProxy's map names it; "" without one."""
        return sha256(self.certificate.encode()).hexdigest() if self.certificate else ""


@dataclass(frozen=True)
class Server:
    """One server line, which carries one replica: its HTTP port and its gRPC port together.

    Attributes:
        port: the HTTP port.
        up: whether health checks pass.
        in_flight: requests that it works on (``scur``), of both protocols.
        queued: requests that wait for this server alone (``qcur``).
        digest: digest of the certificate that it expects (``Endpoint.digest``); "" if not known.
        answers: answers that have begun to come from it since HAProxy began to count.
        errors: how many of them have status 5xx, or a status of gRPC that says that the server
            failed and comes before any message.
        is_silent: whether its last health check ended without any answer in time. A server that
            refuses the connection has no request any more.
        is_refused: whether the connection of its last health check was refused: nothing listens
            there.
        sent_bytes: what it has sent since then; of an answer that goes on, within 5 s.
        concurrency: requests that it gets at the same time, of each protocol; None if not known.
        response_errors: requests since then that it has not answered, or not to the end
            (``eresp``). For those that HAProxy has answered itself, with 504 as an example, it
            counts its own bytes in ``sent_bytes``.
    """

    address: str
    port: int
    mode: ServerMode
    up: bool
    in_flight: int
    queued: int
    digest: str = ""
    answers: int = 0
    errors: int = 0
    is_silent: bool = False
    sent_bytes: int = 0
    concurrency: int | None = None
    response_errors: int = 0
    is_refused: bool = False


@dataclass(frozen=True)
class Backend:
    """One backend of an engine, of both protocols.

    Attributes:
        sessions: every request in it: in flight, queued and held (``scur`` of BACKEND).
        queued: requests that wait for any server (``qcur`` of BACKEND).
        servers: its lines, ``r1`` first; any line may carry any replica.
        arrived: requests that have come since HAProxy began to count.
        answered: how many of them have left a replica.
        given_up: how many of them have left before a replica had them: their clients have hung up,
            or the gateway has refused them. Below 0 for a moment, as HAProxy goes on while it
            counts.
        elsewhere: what processes of HAProxy that a reload has replaced still work on, by replica.
    """

    sessions: int
    queued: int
    servers: tuple[Server, ...]
    arrived: int = 0
    answered: int = 0
    given_up: int = 0
    elsewhere: tuple[Server, ...] = ()

    @cached_property
    def lines(self) -> Mapping[tuple[str, int], int]:
        """Index of each server by address and HTTP port, if possible of one not in maintenance."""
        found: dict[tuple[str, int], int] = {}
        for index, server in enumerate(self.servers):
            place = (server.address, server.port)
            if server.mode is not ServerMode.MAINT or place not in found:
                found[place] = index
        return found

    def server_of(self, endpoint: Endpoint) -> Server | None:
        """Return the replica's server, with what replaced processes work on there; None without
        one.

        Once its line has been given to another replica, a replica is no longer in maintenance, but
        unknown. A replica that only a replaced process works on counts as draining.
        """
        place = endpoint.place
        index = self.lines.get(place)
        line = self.servers[index] if index is not None else None
        if line is not None and line.digest != endpoint.digest:
            # The line belongs to another run, which had that port before.
            line = None
        rest = sum(old.in_flight for old in self.elsewhere if (old.address, old.port) == place)
        if not rest:
            return line
        if line is None or line.mode is ServerMode.MAINT:
            line = Server(
                *place, ServerMode.DRAIN, up=True, in_flight=0, queued=0, digest=endpoint.digest
            )
        return replace(line, in_flight=line.in_flight + rest)


@dataclass(frozen=True)
class Terms:
    """On what terms the gateway takes requests of a service; each field has a map of its own.

    Attributes:
        closing: whether the service is to end: new requests are refused, those it has are finished.
        retry_after_s: Retry-After in seconds of requests that are given up on; None: the default.
        in_time: how many requests may wait before the newest go first; None: first come, first
            served.
        failing: why its replicas do not start: while none serves its requests are refused with
            that; "": they wait for one.
        deadline_ms: milliseconds that a replica may take for a request; None: the gateway's limit.
        retry_once: whether a request that a replica's death has lost is sent to another one.
        sequences: whether all requests of a sequence go to one replica.
    """

    closing: bool = False
    retry_after_s: int | None = None
    in_time: int | None = None
    failing: str = ""
    deadline_ms: int | None = None
    retry_once: bool = False
    sequences: bool = False


DEFAULT_TERMS = Terms()


@dataclass(frozen=True)
class Gateway:
    """One look at HAProxy.

    Attributes:
        routes: backend name by ``tenant/service``.
        backends: by name.
        complete: whether every service has had its route once since HAProxy started; until then
            requests of a service without one wait.
        terms: on what terms requests are taken, by ``tenant/service``; others have the default.
        per_tenant: how many services of one tenant get a backend; None: no limit.
        asked: services that HAProxy has marked because requests waited for them in an idle backend.
        adapter_entries: the adapters that clients may ask for, ``tenant/service:adapter``, and how
            many requests each of HAProxy's threads has let in, ``tenant/service:adapter/THREAD``.
        hold_s: seconds that a request waits for a replica at most.
    """

    routes: Mapping[str, str] = field(hash=False)
    backends: Mapping[str, Backend] = field(hash=False)
    complete: bool
    terms: Mapping[str, Terms] = field(default_factory=dict, hash=False)
    per_tenant: int | None = None
    asked: frozenset[str] = frozenset()
    adapter_entries: Mapping[str, int] = field(default_factory=dict, hash=False)
    hold_s: int = 0

    def group(self, name: str) -> Mapping[str, Backend]:
        """Return the backends with this name before their number.

        An engine's are two groups: GROUP with server lines, and ``GROUP{IDLE}`` without.
        """
        return {
            group: found for group, found in self.backends.items() if group.rstrip(digits) == name
        }

    @cached_property
    def adapters(self) -> Mapping[str, int]:
        """How many requests each adapter has had, by ``tenant/service:adapter``."""
        found: Counter[str] = Counter()
        for entry, count in self.adapter_entries.items():
            found[adapter_of_entry(entry)] += count
        return found

    def adapters_of(self, service: str) -> frozenset[str]:
        """The names of the adapters that ``tenant/service`` has there."""
        return self._names.get(service, frozenset())

    @cached_property
    def _names(self) -> Mapping[str, frozenset[str]]:
        found: dict[str, set[str]] = {}
        for service, _, adapter in (name.partition(":") for name in self.adapters):
            found.setdefault(service, set()).add(adapter)
        return {service: frozenset(names) for service, names in found.items()}

    def terms_of(self, service: str) -> Terms:
        """Return on what terms requests of ``tenant/service`` are taken."""
        return self.terms.get(service, DEFAULT_TERMS)

    def backend_of(self, service: str) -> Backend | None:
        """The backend of ``tenant/service``; None if it has no route."""
        return self.backends.get(self.routes.get(service, ""))


def adapter_of_entry(entry: str) -> str:
    """Return ``tenant/service:adapter`` of ``tenant/service:adapter/THREAD``, or of itself."""
    service, colon, adapter = entry.partition(":")
    return f"{service}{colon}{adapter.partition('/')[0]}"


def with_replaced(gateway: Gateway, replaced: Iterable[Gateway]) -> Gateway:
    """Add what processes that a reload has replaced still have, service by service."""
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
        in_flight: requests that a replica works on.
        queued: requests that wait because all replicas are full.
        held: requests that wait because no replica is there. If one is, a request that is neither
            at a server nor in a queue is an answer that its client has not read yet; it does not
            count.
        arrived: requests that have come since the gateway began to count; if it is less than
            before, the count started again at 0.
        answered: how many of these a replica has answered.
        given_up: how many of these have left before a replica had them.
        counter: the backend that has counted; another one's counts are no continuation of them.
    """

    in_flight: int = 0
    queued: int = 0
    held: int = 0
    arrived: int = 0
    answered: int = 0
    given_up: int = 0
    counter: str = ""

    @property
    def waiting(self) -> int:
        """The backlog: requests that wait for a replica."""
        return self.queued + self.held

    @property
    def total(self) -> int:
        """Every request that has not been answered yet."""
        return self.in_flight + self.waiting


def is_free(server: Server) -> bool:
    """Whether a replica may get the server: no older request must count as the replica's own."""
    return server.mode is ServerMode.MAINT and not server.in_flight


def load_of(backend: Backend | None, counter: str = "") -> Load:
    """Return the requests of a service now, in the backend ``counter``; none if it has none."""
    if backend is None:
        return Load(counter=counter)
    everywhere = (*backend.servers, *backend.elsewhere)
    in_flight = sum(server.in_flight for server in everywhere)
    queued = backend.queued + sum(server.queued for server in backend.servers)
    is_served = any(server.up and server.mode is ServerMode.READY for server in backend.servers)
    held = 0 if is_served else max(0, backend.sessions - in_flight - queued)
    counted = (backend.arrived, backend.answered, backend.given_up)
    return Load(in_flight, queued, held, *counted, counter)
