"""HAProxy's Runtime API in words: what it is told, what it shows."""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
_NOBODY_S_PORT = 1
_FORCED_DRAIN, _FORCED_MAINT = 0x08, 0x01
"""Bits of srv_admin_state (management guide, "show servers state")."""


@dataclass(frozen=True)
class Maps:
    """The maps that change at run time. Each one's file is its name in the Runtime API, too."""

    directory: Path

    @property
    def services(self) -> Path:
        """Backend by ``tenant/service``."""
        return self.directory / "services.map"

    @property
    def closing(self) -> Path:
        """The services that take no new request."""
        return self.directory / "closing.map"

    @property
    def retry_after(self) -> Path:
        """Seconds by ``tenant/service``."""
        return self.directory / "retry.map"

    @property
    def in_time(self) -> Path:
        """How many may wait before the newest go first, by ``tenant/service``."""
        return self.directory / "in_time.map"

    @property
    def keys(self) -> Path:
        """Tenant by the SHA-256 of an API key, in lower-case hexadecimal."""
        return self.directory / "keys.map"

    @property
    def protected(self) -> Path:
        """The tenants whose services want a key."""
        return self.directory / "protected.map"

    @property
    def replicas(self) -> Path:
        """Digest of the certificate that a server asks for, by ``BACKEND/rN``."""
        return self.directory / "replicas.map"

    @property
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


def questions(maps: Maps) -> tuple[str, ...]:
    """What ``parse`` reads the answers to, one after another.

    Administrative states come before the counters: a server that is seen to drain with nothing in
    flight had nothing in flight after it began to drain.
    """
    shown = (maps.services, maps.closing, maps.retry_after, maps.in_time, maps.replicas)
    return (
        *(f"show map {path}" for path in shown),
        "show servers state",
        "show stat -1 6 -1",
    )


def parse(text: str) -> Gateway:
    """The answers to the ``questions``.

    Raises KeyError, ValueError or IndexError for anything else.
    """
    before_states, _, rest = text.partition("\n1\n# be_id ")
    states_text, _, stat_text = rest.partition("\n# pxname,")
    lines = iter(before_states.splitlines())
    routes, closing, retry_after, in_time, digests = (_parse_map(lines) for _ in range(5))
    rows = _parse_rows(f"pxname,{stat_text}")
    admin = _admin_states(states_text)
    names = [name for name in rows if f"{name}{GRPC}" in rows and "r1" in rows[name]]
    if not names:
        raise ValueError("no backend of the pool")
    backends = {
        name: _parse_backend(
            name,
            rows[name],
            rows[f"{name}{GRPC}"],
            admin[name],
            digests,
        )
        for name in names
    }
    complete = routes.pop(COMPLETE_KEY, None) is not None
    return Gateway(
        routes, backends, complete, frozenset(closing), _numbers(retry_after), _numbers(in_time)
    )


def _numbers(shown: Mapping[str, str]) -> Mapping[str, int]:
    return {service: int(value) for service, value in shown.items()}


class _Row(NamedTuple):
    """A line of ``show stat``: sessions are requests."""

    queued: int
    sessions: int
    total: int
    status: str
    place: str


def _parse_rows(text: str) -> Mapping[str, Mapping[str, _Row]]:
    """By backend and server; a csv.DictReader would take ten times as long."""
    lines = csv.reader(text.splitlines())
    header = next(lines)
    names = ("qcur", "scur", "stot", "status", "addr")
    queued, sessions, total, status, place = (header.index(name) for name in names)
    rows: dict[str, dict[str, _Row]] = {}
    for line in lines:
        if line:
            rows.setdefault(line[0], {})[line[1]] = _Row(
                int(line[queued]),
                int(line[sessions]),
                int(line[total]),
                line[status],
                line[place],
            )
    return rows


def _parse_backend(
    name: str,
    http: Mapping[str, _Row],
    grpc: Mapping[str, _Row],
    admin: Mapping[str, int],
    digests: Mapping[str, str],
) -> Backend:
    """What goes round ``again`` is in the backend twice: there, and where it came to."""
    lines = [f"r{number}" for number in range(1, len(http) - 1)]
    halves = (http, grpc)
    return Backend(
        sum(half["BACKEND"].sessions - half[AGAIN].sessions for half in halves),
        sum(half["BACKEND"].queued for half in halves),
        tuple(
            _parse_server(http[line], grpc[line], admin[line], digests.get(f"{name}/{line}", ""))
            for line in lines
        ),
        arrived=sum(half["BACKEND"].total - half[AGAIN].total for half in halves),
        answered=sum(half[line].total - half[line].sessions for half in halves for line in lines),
    )


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


def _admin_states(text: str) -> Mapping[str, Mapping[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for line in text.splitlines()[1:]:
        if fields := line.split():
            found.setdefault(fields[1], {})[fields[3]] = int(fields[6])
    return found


def without_digests(text: str) -> str:
    """For the log: by its digest somebody who has a key could be known."""
    return re.sub(r"[0-9a-f]{64}", "DIGEST", text)


def parse_map(text: str) -> Mapping[str, str]:
    """The answer to ``show map``; raises ValueError for anything else."""
    return _parse_map(iter(text.splitlines()))


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
    rows = takewhile(lambda line: line and not line.startswith("#"), rest.splitlines())
    return tuple(int(row.split()[0]) for row in rows)
