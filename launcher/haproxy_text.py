"""HAProxy's Runtime API in words: what it is told, what it shows."""

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from cluster.gateway_settings import GatewaySettings
from launcher.decide.gateway import Backend, Gateway, Mode, Server
from launcher.decide.routing import (
    AddRoute,
    Change,
    EndSessions,
    MarkComplete,
    RemoveRoute,
    SendRound,
    SetClosing,
    SetHealthy,
    SetInTime,
    SetMode,
    SetRetryAfter,
    SetTarget,
)
from launcher.identity import pem

AGAIN = "again"
"""The server of each backend that leads back into HAProxy, used while no replica is up."""
GRPC = "-grpc"
"""Ends the name of a backend's other half: its server ``rN`` is the gRPC port of the same replica.
It tracks the HTTP one, so health and administrative state are set there only."""
COMPLETE_KEY = ".complete"
"""In the map beside the services; no ``tenant/service`` is like it."""
TOLD_KEY = ".told"
"""Beside the protected tenants once a launcher has said which there are; no tenant is named so."""
VACANT = Server("", 0, Mode.MAINT, up=False, in_flight=0, queued=0)
"""A server in maintenance of which a glance shows no more."""
_NOBODY_S_PORT = 1
_PROCESS = re.compile(r"^Pid: (\d+)$.*^Start_time_sec: (\d+)$", re.MULTILINE | re.DOTALL)
_MORE_LINES = 8
"""Of ``show stat`` for one half of a backend: ``again``, ``BACKEND``, and the names of all figures,
which are as long as six servers (HAProxy 2.6)."""
_BETWEEN = frozenset({"", "1"})
"""What is between answers; with the latter ``show servers state`` begins: its format."""
_FORCED_DRAIN, _FORCED_MAINT = 0x08, 0x01
"""Bits of srv_admin_state (management guide, "show servers state")."""


@dataclass(frozen=True)
class Maps:
    """The maps that change at run time. Each one's file is its name in the Runtime API, too."""

    directory: Path

    @cached_property
    def services(self) -> Path:
        """Backend by ``tenant/service``."""
        return self.directory / "services.map"

    @cached_property
    def closing(self) -> Path:
        """The services that take no new request."""
        return self.directory / "closing.map"

    @cached_property
    def retry_after(self) -> Path:
        """Seconds by ``tenant/service``."""
        return self.directory / "retry.map"

    @cached_property
    def in_time(self) -> Path:
        """How many may wait before the newest go first, by ``tenant/service``."""
        return self.directory / "in_time.map"

    @cached_property
    def keys(self) -> Path:
        """Tenant by the SHA-256 of an API key, in lower-case hexadecimal."""
        return self.directory / "keys.map"

    @cached_property
    def protected(self) -> Path:
        """The tenants whose services want a key."""
        return self.directory / "protected.map"

    @cached_property
    def replicas(self) -> Path:
        """Digest of the certificate that a server asks for, by ``BACKEND/rN``."""
        return self.directory / "replicas.map"

    @cached_property
    def all(self) -> tuple[Path, ...]:
        """Each of them."""
        told = (self.services, self.closing, self.retry_after, self.in_time)
        return (*told, self.keys, self.protected, self.replicas)

    def certificate(self, server: str) -> Path:
        """The file by whose name HAProxy knows the certificate that ``BACKEND/rN`` asks for.

        What is in it counts only until the server has its first replica.
        """
        return self.directory / "replicas" / f"{server.replace('/', '.')}.pem"


def commands(change: Change, maps: Maps) -> tuple[str, ...]:
    """The Runtime API's words for a change."""
    match change:
        case SetMode(backend, index, mode):
            return (f"set server {_server(backend, index)} state {mode}",)
        case SetHealthy(backend, index):
            return (f"set server {_server(backend, index)} health up",)
        case EndSessions(backend, index):
            halves = (backend, f"{backend}{GRPC}")
            return tuple(f"shutdown sessions server {_server(half, index)}" for half in halves)
        case SetTarget():
            return _target_commands(change, maps)
        case SendRound(backend):
            halves = (f"{backend}/{AGAIN}", f"{backend}{GRPC}/{AGAIN}")
            return tuple(
                f"set server {half} state maint;set server {half} state ready" for half in halves
            )
        case _:
            return (_map_command(change, maps),)


def _target_commands(change: SetTarget, maps: Maps) -> tuple[str, ...]:
    http = _server(change.backend, change.index)
    grpc = _server(f"{change.backend}{GRPC}", change.index)
    to = change.endpoint
    file = maps.certificate(http)
    return (
        f"set ssl ca-file {file} <<\n{pem(to.certificate)}",
        f"commit ssl ca-file {file}",
        # HAProxy may have kept connections to who was there before. It closes them when the address
        # changes, and only then: also where the next replica has the same.
        *(f"set server {half} addr {to.address} port {_NOBODY_S_PORT}" for half in (http, grpc)),
        f"set server {http} addr {to.address} port {to.http_port}",
        f"set server {grpc} addr {to.address} port {to.grpc_port}",
        f"set maxconn server {http} {change.concurrency}",
        f"set maxconn server {grpc} {change.concurrency}",
        # Deleting what is not there is an error, so it is put there first.
        f"add map {maps.replicas} {http} -",
        f"del map {maps.replicas} {http}",
        f"add map {maps.replicas} {http} {to.digest}",
    )


def _map_command(
    change: AddRoute | RemoveRoute | MarkComplete | SetClosing | SetRetryAfter | SetInTime,
    maps: Maps,
) -> str:
    match change:
        case AddRoute(service, backend):
            return f"add map {maps.services} {service} {backend}"
        case RemoveRoute(service):
            return f"del map {maps.services} {service}"
        case MarkComplete():
            return f"add map {maps.services} {COMPLETE_KEY} yes"
        case SetClosing(service, closing):
            return f"{_verb(closing)} map {maps.closing} {service}{' yes' * closing}"
        case SetRetryAfter(service, value, before):
            return _number_command(maps.retry_after, service, value, before)
        case SetInTime(service, value, before):
            return _number_command(maps.in_time, service, value, before)


def _number_command(path: Path, service: str, value: int | None, before: int | None) -> str:
    if value is None:
        return f"del map {path} {service}"
    return f"{'add' if before is None else 'set'} map {path} {service} {value}"


def _verb(there: bool) -> str:
    return "add" if there else "del"


def entry_commands(
    path: Path, shown: Mapping[str, str], wanted: Mapping[str, str]
) -> Sequence[str]:
    """What makes a map that shows ``shown`` say ``wanted``: first what it lacks, a mark last."""
    missing = sorted(wanted.keys() - shown.keys(), key=lambda key: (key.startswith("."), key))
    return (
        *(f"add map {path} {key} {wanted[key]}" for key in missing),
        *(
            f"set map {path} {key} {wanted[key]}"
            for key in sorted(wanted.keys() & shown.keys())
            if wanted[key] != shown[key]
        ),
        *(f"del map {path} {key}" for key in sorted(shown.keys() - wanted.keys())),
    )


def map_text(entries: Mapping[str, str]) -> str:
    """A map's file."""
    return "".join(f"{key} {value}\n" for key, value in sorted(entries.items()))


def servers(settings: GatewaySettings) -> tuple[str, ...]:
    """Each server that a replica may get, ``BACKEND/rN``, without the gRPC half's."""
    return tuple(
        _server(f"pool{number}", index)
        for number in range(1, settings.backends + 1)
        for index in range(settings.servers)
    )


def _server(backend: str, index: int) -> str:
    return f"{backend}/r{index + 1}"


WHO = "show info"
"""The question that ``process_of`` reads the answer to."""


def questions(maps: Maps) -> tuple[str, ...]:
    """What ``parse`` reads the answers to, one after another.

    Administrative states come before the counters: a server that is seen to drain with nothing in
    flight had nothing in flight after it began to drain.
    """
    return (*_map_questions(maps), "show servers state", "show stat -1 6 -1")


def _map_questions(maps: Maps) -> tuple[str, ...]:
    shown = (maps.services, maps.closing, maps.retry_after, maps.in_time, maps.replicas)
    return tuple(f"show map {path}" for path in shown)


@dataclass(frozen=True)
class Known:
    """What a look at a process of HAProxy has shown, so that the next one may be a glance.

    Attributes:
        process: tells it from every other one, as ``process_of`` reads it.
        lines: how many servers each backend of the pool has, by name.
        routed: the backends to which a route led.
        live: how many servers of those were not in maintenance.
    """

    process: str
    lines: Mapping[str, int] = field(hash=False)
    routed: frozenset[str]
    live: int

    @classmethod
    def of(cls, process: str, gateway: Gateway) -> "Known":
        """What that look at that process has shown."""
        lines = {name: len(backend.servers) for name, backend in gateway.backends.items()}
        routed = _routed(gateway.routes) & lines.keys()
        modes = [server.mode for name in routed for server in gateway.backends[name].servers]
        return cls(process, lines, routed, sum(mode is not Mode.MAINT for mode in modes))


def glance_questions(maps: Maps, known: Known) -> tuple[str, ...]:
    """What ``parse_glance`` reads the answers to; empty if ``questions`` ask for no more.

    Servers are what costs: each is a line of a hundred figures, and most of them are in maintenance
    in backends without a route. Those are left out. What that costs: the live ones of a backend
    with a route come twice, and all figures' names with each of its halves.
    """
    routed = sorted(known.routed)
    left_out = sum(lines for name, lines in known.lines.items() if name not in known.routed)
    if left_out <= known.live + _MORE_LINES * len(routed):
        return ()
    # What is said of a backend in particular comes later and counts.
    asked = (*_map_questions(maps), "show stat -1 6 -1 no-maint")
    for name in routed:
        halves = (f"show stat {half} 6 -1" for half in (name, f"{name}{GRPC}"))
        asked = (*asked, f"show servers state {name}", *halves)
    return asked


def process_of(text: str) -> str:
    """Of ``show info``: what tells this process from every other one, also on a host (a container)
    that starts anew with the same numbers.

    Raises ValueError for anything else.
    """
    found = _PROCESS.search(text)
    if found is None:
        raise ValueError("no process")
    return " since ".join(found.groups())


def parse(text: str) -> Gateway:
    """The answers to the ``questions``.

    Raises KeyError, ValueError or IndexError for anything else.
    """
    shown = _parse_shown(text)
    names = [name for name in shown.rows if f"{name}{GRPC}" in shown.rows]
    names = [name for name in names if "r1" in shown.rows[name]]
    if not names:
        raise ValueError("no backend of the pool")
    return shown.gateway({name: shown.backend(name) for name in names})


def parse_glance(text: str, known: Known) -> Gateway | None:
    """The answers to the ``glance_questions``; None if there is more to see than these show: a
    route to a backend that had none, or a server in use where no route leads.

    Raises KeyError, ValueError or IndexError for anything else.
    """
    shown = _parse_shown(text)
    if not _routed(shown.routes) & known.lines.keys() <= known.routed:
        return None
    backends: dict[str, Backend] = {}
    for name, lines in known.lines.items():
        if name in known.routed:
            backends[name] = shown.backend(name)
        elif shown.is_vacant(name):
            backends[name] = shown.vacant(name, lines)
        else:
            return None
    return shown.gateway(backends)


def _routed(routes: Mapping[str, str]) -> frozenset[str]:
    return frozenset(routes.values())


def _numbers(shown: Mapping[str, str]) -> Mapping[str, int]:
    return {service: int(value) for service, value in shown.items()}


class _Row(NamedTuple):
    """A line of ``show stat``: sessions are requests."""

    queued: int
    sessions: int
    total: int
    status: str
    place: str


@dataclass(frozen=True)
class _Shown:
    """What HAProxy has answered.

    Attributes:
        rows: by backend and server.
        admin: administrative states, likewise.
    """

    routes: Mapping[str, str]
    complete: bool
    closing: frozenset[str]
    retry_after_s: Mapping[str, int]
    in_time: Mapping[str, int]
    digests: Mapping[str, str]
    rows: Mapping[str, Mapping[str, _Row]]
    admin: Mapping[str, Mapping[str, int]]

    def gateway(self, backends: Mapping[str, Backend]) -> Gateway:
        """All of it, with these backends."""
        return Gateway(
            self.routes, backends, self.complete, self.closing, self.retry_after_s, self.in_time
        )

    def backend(self, name: str) -> Backend:
        """A backend of which all servers were shown."""
        http, grpc, admin = self.rows[name], self.rows[f"{name}{GRPC}"], self.admin[name]
        lines = [f"r{number}" for number in range(1, len(http) - 1)]
        servers = tuple(
            _parse_server(
                http[line], grpc[line], admin[line], self.digests.get(f"{name}/{line}", "")
            )
            for line in lines
        )
        return self._backend(name, servers, lines)

    def is_vacant(self, name: str) -> bool:
        """Whether all servers of a backend are in maintenance."""
        halves = (self.rows[name], self.rows[f"{name}{GRPC}"])
        return all(half.keys() == {AGAIN, "BACKEND"} for half in halves)

    def vacant(self, name: str, lines: int) -> Backend:
        """A backend of which only that was shown."""
        return self._backend(name, (VACANT,) * lines, ())

    def _backend(self, name: str, servers: tuple[Server, ...], lines: Sequence[str]) -> Backend:
        """What goes round ``again`` is in the backend twice: there, and where it came to."""
        halves = (self.rows[name], self.rows[f"{name}{GRPC}"])
        return Backend(
            sum(half["BACKEND"].sessions - half[AGAIN].sessions for half in halves),
            sum(half["BACKEND"].queued for half in halves),
            servers,
            arrived=sum(half["BACKEND"].total - half[AGAIN].total for half in halves),
            answered=sum(
                half[line].total - half[line].sessions for half in halves for line in lines
            ),
        )


def _parse_shown(text: str) -> _Shown:
    # splitlines() would split at ten other characters, too, and a replica's words may be in a row.
    lines = iter(text.split("\n"))
    routes, closing, retry_after, in_time, digests = (_parse_map(lines) for _ in range(5))
    complete = routes.pop(COMPLETE_KEY, None) is not None
    rows: dict[str, dict[str, _Row]] = {}
    admin: dict[str, dict[str, int]] = {}
    for line in lines:
        if line.startswith("# pxname,"):
            _parse_rows(line, takewhile(bool, lines), rows)
        elif line.startswith("# be_id "):
            _parse_states(takewhile(bool, lines), admin)
        elif line not in _BETWEEN:
            raise ValueError(line)
    return _Shown(
        routes,
        complete,
        frozenset(closing),
        _numbers(retry_after),
        _numbers(in_time),
        digests,
        rows,
        admin,
    )


def _parse_rows(header: str, lines: Iterable[str], rows: dict[str, dict[str, _Row]]) -> None:
    """Lines of ``show stat``; a csv.DictReader would take ten times as long."""
    columns = header.split(",")
    names = ("qcur", "scur", "stot", "status", "addr")
    queued, sessions, total, status, place = (columns.index(name) for name in names)
    for line in csv.reader(lines):
        rows.setdefault(line[0], {})[line[1]] = _Row(
            int(line[queued]),
            int(line[sessions]),
            int(line[total]),
            line[status],
            line[place],
        )


def _parse_states(lines: Iterable[str], admin: dict[str, dict[str, int]]) -> None:
    """Lines of ``show servers state``."""
    for line in lines:
        fields = line.split(maxsplit=7)
        admin.setdefault(fields[1], {})[fields[3]] = int(fields[6])


def _parse_server(http: _Row, grpc: _Row, admin: int, digest: str) -> Server:
    address, _, port = http.place.rpartition(":")
    return Server(
        address.strip("[]"),
        int(port),
        _mode(admin),
        http.status.split()[0] in {"UP", "DRAIN"},
        http.sessions + grpc.sessions,
        http.queued + grpc.queued,
        digest,
    )


def _mode(admin: int) -> Mode:
    if admin & _FORCED_MAINT:
        return Mode.MAINT
    return Mode.DRAIN if admin & _FORCED_DRAIN else Mode.READY


def without_digests(text: str) -> str:
    """For the log: by its digest somebody who has a key could be known."""
    return re.sub(r"[0-9a-f]{64}", "DIGEST", text)


def parse_map(text: str) -> Mapping[str, str]:
    """The answer to ``show map``; raises ValueError for anything else."""
    return _parse_map(iter(text.split("\n")))


def _parse_map(lines: Iterator[str]) -> dict[str, str]:
    """Lines ``0x55d0 tenant/service pool3``, until an empty one."""
    found = {}
    for line in takewhile(bool, lines):
        address, key, value = line.split()
        if not address.startswith("0x"):
            raise ValueError(line)
        found[key] = value
    return found


def old_workers(text: str) -> tuple[int, ...]:
    """Of the master's ``show proc``: process ids of those that a reload has replaced."""
    _, _, rest = text.partition("# old workers\n")
    rows = takewhile(lambda line: line and not line.startswith("#"), rest.split("\n"))
    return tuple(int(row.split()[0]) for row in rows)
