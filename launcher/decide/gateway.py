"""The gateway as HAProxy shows it: backends of a pool, their servers, which service has which."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Mode(StrEnum):
    """Administrative state of a server, in the words of HAProxy's ``set server state``."""

    READY = "ready"
    DRAIN = "drain"
    MAINT = "maint"


@dataclass(frozen=True)
class Server:
    """One server line; line ``r<i + 1>`` belongs to slot ``i`` of the service.

    Attributes:
        up: health checks pass.
        in_flight: requests that it works on (``scur``).
        queued: requests that wait for this server alone (``qcur``).
    """

    address: str
    port: int
    mode: Mode
    up: bool
    in_flight: int
    queued: int


@dataclass(frozen=True)
class Backend:
    """One backend of the pool.

    Attributes:
        sessions: every request in it: in flight, queued and held (``scur`` of BACKEND).
        queued: requests that wait for any server (``qcur`` of BACKEND).
    """

    sessions: int
    queued: int
    servers: tuple[Server, ...]


@dataclass(frozen=True)
class Gateway:
    """One look at HAProxy.

    Attributes:
        routes: backend name by ``tenant/service``.
        backends: by name.
        complete: every service had its route once since HAProxy started; until then requests of
            a service without one wait.
    """

    routes: Mapping[str, str] = field(hash=False)
    backends: Mapping[str, Backend] = field(hash=False)
    complete: bool

    def backend_of(self, service: str) -> Backend | None:
        """The backend of ``tenant/service``; None if it has no route."""
        return self.backends.get(self.routes.get(service, ""))


@dataclass(frozen=True)
class Load:
    """Requests of one service at the gateway.

    Attributes:
        in_flight: a replica works on them.
        queued: replicas are there, but full.
        held: no replica is there.
    """

    in_flight: int = 0
    queued: int = 0
    held: int = 0

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
    in_flight = sum(server.in_flight for server in backend.servers)
    queued = backend.queued + sum(server.queued for server in backend.servers)
    return Load(in_flight, queued, max(0, backend.sessions - in_flight - queued))
