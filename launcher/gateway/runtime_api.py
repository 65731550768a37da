"""Writes commands for HAProxy's Runtime API and reads its answers."""

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from string import digits
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from slicewise.cluster.rpc.key_messages import KeyGrant
from slicewise.cluster.rpc.limit_messages import SubjectLimits
from slicewise.cluster.settings.gateway import GatewaySettings
from slicewise.launcher.gateway.pem import pem
from slicewise.launcher.rules.engines.registry import ENGINES
from slicewise.launcher.rules.gateway.routing import (
    AddRoute,
    EndSessions,
    GatewayChange,
    MapChange,
    MarkComplete,
    MoveRoute,
    RemoveRoute,
    SendRound,
    ServerChange,
    SetAdapter,
    SetConcurrency,
    SetHealthy,
    SetMode,
    SetTarget,
    SetTerms,
)
from slicewise.launcher.rules.gateway.subjects import can_be, subject_of
from slicewise.launcher.rules.gateway.types import (
    IDLE,
    Backend,
    Gateway,
    Server,
    ServerMode,
    Terms,
)

AGAIN = "again"
"""The backup server of each backend: leads back into HAProxy and is used while no replica is up."""
GRPC = "-grpc"
"""Suffix of a backend's other half: its server ``rN`` is the gRPC port of the same replica. It
tracks the HTTP server, so health and administrative state are set there only. Backends of an engine
without calls of gRPC have no other half."""
COMPLETE_KEY = ".complete"
"""Key in the map of services that marks it as complete; no ``tenant/service`` looks like it."""
RING = "requests"
"""Name of HAProxy's ring by which the launcher hears of requests."""
TOLD_KEY = ".told"
"""Key in the map of protected tenants, set once a launcher has told which tenants are protected; no
tenant has that name."""
MOST_FILES = 100_000
"""Most open files that HAProxy may have (``fd-hard-limit``)."""
_OWN_FILES = 256
"""Open files that HAProxy 2.6 wants at its start, beside one for the checks of each server line."""
_MOST_FILES = re.compile(r"^    fd-hard-limit (\d+)$", re.MULTILINE)
_CHECKED = re.compile(r"^ +server .* check ", re.MULTILINE)
_UNLIMITED = 2**31 - 1
"""A number that no count of requests reaches."""
VACANT = Server("", 0, ServerMode.MAINT, up=False, in_flight=0, queued=0)
"""A server that a glance shows only as being in maintenance."""
_NOBODY_S_PORT = 1
_REFUSED = "Connection refused"
"""What the operating system says of a connection to where nothing listens."""
_OF_PROCESS = tuple(
    re.compile(rf"^{name}: (.*)$", re.MULTILINE) for name in ("node", "Pid", "Start_time_sec")
)
_HOST_BYTES = 40
_NO_HOST = re.compile(r"[^A-Za-z0-9.-]+")
_MORE_LINES = 8
"""Lines that ``show stat`` adds for one half of a backend: ``again``, ``BACKEND``, and the names of
all figures, which are as long as six servers (HAProxy 2.6)."""
_IDLE = re.compile(rf"[a-z]+{IDLE}\d+")
_BETWEEN = frozenset({"", "1"})
"""Lines between answers; ``show servers state`` begins with "1", the version of its format."""
_FORCED_DRAIN, _FORCED_MAINT = 0x08, 0x01
"""Bits of srv_admin_state (management guide, "show servers state")."""

_TERMS: tuple[tuple[str, Callable[[str], bool | int | str]], ...] = (
    *(("closing", bool), ("retry_after_s", int), ("in_time", int), ("failing", unquote)),
    *(("deadline_ms", int), ("retry_once", bool), ("sequences", bool)),
)
"""Fields of ``Terms`` in the order of ``Maps.terms``, and how each is read from its map."""


class Maps:
    """The maps that change at run time. A map's file path is its name in the Runtime API, too."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        # Backend names, by ``tenant/service``
        self.services = directory / "services.map"
        # The services that accept no new requests
        self.closing = directory / "closing.map"
        # Retry-After in seconds, by ``tenant/service``
        self.retry_after = directory / "retry.map"
        # How many requests may wait before the newest go first, by ``tenant/service``
        self.in_time = directory / "in_time.map"
        # What requests count in fair queues, by ``tenant/service`` and
        # ``tenant/service/subject``
        self.priorities = directory / "priorities.map"
        # Why replicas do not start, percent-encoded as in gRPC, by ``tenant/service``
        self.failing = directory / "failing.map"
        # Milliseconds that a replica may take for a request, by ``tenant/service``
        self.deadlines = directory / "deadlines.map"
        # The services whose lost requests are sent again once
        self.retry_once = directory / "retry_once.map"
        # The services whose requests of one sequence go to one replica
        self.sequences = directory / "sequences.map"
        # The services whose requests wait in an idle backend; HAProxy marks them
        self.asked = directory / "asked.map"
        # The tenants of which a service was asked for; HAProxy marks them
        self.tenants = directory / "tenants.map"
        # The adapters that clients may ask for, ``tenant/service:adapter``. Beside each it has how
        # many requests each of HAProxy's threads has let in for it, by
        # ``tenant/service:adapter/THREAD``.
        self.adapters = directory / "adapters.map"
        # What API keys open and whose they are, by a key's SHA-256 in hexadecimal
        self.keys = directory / "keys.map"
        # The tenants that require an API key for their services
        self.protected = directory / "protected.map"
        # Limits, by tenant, person and key; see ``limit_entries``
        self.limits = directory / "limits.map"
        # Services that models' names mean: ``slicewise.cluster.language.model_names``
        self.models = directory / "models.map"
        # Digests of the certificates that servers expect, by ``BACKEND/rN``
        self.replicas = directory / "replicas.map"
        # The Unix seconds at which HAProxy noted an API key's use, by its SHA-256
        self.used = directory / "used.map"
        # How many calls of gRPC have failed in a server, by ``BACKEND-grpc/rN``
        self.failed_calls = directory / "failed_calls.map"
        # What each subject with a limit of tokens may take, see ``allowances.lua``
        self.allowances = directory / "allowances.map"
        # What each thread has taken of that, as HAProxy writes it: ``ENDED/HELD`` by
        # ``SUBJECT@THREAD``
        self.taken = directory / "taken.map"

    @cached_property
    def all(self) -> tuple[Path, ...]:
        """All of these maps."""
        counted = (self.used, self.failed_calls, self.tenants, self.adapters, self.priorities)
        granted = (self.keys, self.protected, self.limits, self.models)
        limits = (self.allowances, self.taken)
        return (self.services, *self.terms, self.asked, *granted, *limits, self.replicas, *counted)

    @property
    def terms(self) -> tuple[Path, ...]:
        """The maps of ``Terms``, in the order of ``_TERMS``."""
        told = (self.closing, self.retry_after, self.in_time, self.failing, self.deadlines)
        return (*told, self.retry_once, self.sequences)

    def certificate(self, server: str) -> Path:
        """Return the file by which HAProxy names the certificate that ``BACKEND/rN`` expects.

        Its content counts only until the server has its first replica.
        """
        return self.directory / "replicas" / f"{server.replace('/', '.')}.pem"


def commands(change: GatewayChange, maps: Maps) -> tuple[str, ...]:
    """Return the Runtime API commands that make a change."""
    match change:
        case SetMode(backend, index, mode):
            return (f"set server {_server(backend, index)} state {mode}",)
        case SetHealthy(backend, index):
            return (f"set server {_server(backend, index)} health up",)
        case EndSessions(backend, index):
            halves = _halves(backend)
            return tuple(f"shutdown sessions server {_server(half, index)}" for half in halves)
        case SetTarget() | SetConcurrency():
            target = _target_commands(change, maps) if isinstance(change, SetTarget) else ()
            return target or _room_commands(change)
        case SendRound(backend):
            rounds = [f"set server {half}/{AGAIN} state" for half in _halves(backend)]
            return tuple(f"{server} maint;{server} ready" for server in rounds)
        case _:
            return tuple(_map_commands(change, maps))


def _halves(backend: str) -> tuple[str, ...]:
    """Return the names of a backend's halves, HTTP first.

    HAProxy may show one more: of a configuration rendered when each engine had both. No request
    comes to it.
    """
    group = backend.rstrip(digits).removesuffix(IDLE)
    has_grpc = any(engine.group == group and engine.grpc_paths for engine in ENGINES.values())
    return (backend, f"{backend}{GRPC}") if has_grpc else (backend,)


def _target_commands(change: SetTarget, maps: Maps) -> tuple[str, ...]:
    http, *others = (_server(half, change.index) for half in _halves(change.backend))
    to = change.endpoint
    file = maps.certificate(http)
    return (
        f"set ssl ca-file {file} <<\n{pem(to.certificate)}",
        f"commit ssl ca-file {file}",
        # HAProxy may have kept connections to the previous replica. It closes them only when the
        # address changes, so it is changed even if the next replica has the same one.
        *(f"set server {half} addr {to.address} port {_NOBODY_S_PORT}" for half in (http, *others)),
        f"set server {http} addr {to.address} port {to.http_port}",
        *(f"set server {grpc} addr {to.address} port {to.grpc_port}" for grpc in others),
        *_room_commands(change),
        # Deleting a key that is not there is an error, so the key is added first.
        f"add map {maps.replicas} {http} -",
        f"del map {maps.replicas} {http}",
        f"add map {maps.replicas} {http} {to.digest}",
    )


def _room_commands(change: SetTarget | SetConcurrency) -> tuple[str, ...]:
    return tuple(
        f"set maxconn server {_server(half, change.index)} {change.concurrency}"
        for half in _halves(change.backend)
    )


def _map_commands(change: MapChange, maps: Maps) -> Iterator[str]:
    match change:
        case AddRoute(service, backend) | MoveRoute(service, backend):
            verb = "add" if isinstance(change, AddRoute) else "set"
            yield f"{verb} map {maps.services} {service} {backend}"
        case RemoveRoute(service):
            yield f"del map {maps.services} {service}"
        case MarkComplete():
            yield f"add map {maps.services} {COMPLETE_KEY} yes"
        case SetAdapter(entry, there):
            yield f"{'add' if there else 'del'} map {maps.adapters} {entry}{' 0' * there}"
        case SetTerms():
            yield from _terms_commands(change, maps)


def _terms_commands(change: SetTerms, maps: Maps) -> Iterator[str]:
    for (name, _), path in zip(_TERMS, maps.terms, strict=True):
        text, before = (_term_text(getattr(terms, name)) for terms in (change.terms, change.before))
        if text is None and before is not None:
            yield f"del map {path} {change.service}"
        elif text != before:
            yield f"{'add' if before is None else 'set'} map {path} {change.service} {text}"


def _term_text(term: bool | int | str | None) -> str | None:
    """Return a term as its map has it; None where it has none."""
    if isinstance(term, bool):
        return "yes" if term else None
    return None if term in {None, ""} else quote(str(term), safe="")


def entry_commands(
    path: Path, shown: Mapping[str, str], wanted: Mapping[str, str]
) -> Sequence[str]:
    """Return commands that turn a map with the entries ``shown`` into one with ``wanted``.

    Missing entries are added first, a mark as the last of them.
    """
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


def limit_entries(limits: Iterable[SubjectLimits]) -> Mapping[str, str]:
    """Return the entries of the map of limits that hold at each request.

    A subject's value is ``CONCURRENT,REQUESTS_PER_MINUTE,MODELS``: of models ``m`` if only those
    may be asked that have an entry ``SUBJECT=OWNER/NAME``. A subject with a name that can be none
    is left out.
    """
    entries = {}
    for subject in limits:
        held = subject.limits
        if (held.concurrent, held.requests_per_minute, held.models) == (None, None, None):
            continue
        name = subject_of(subject.tenant, subject.person, subject.key_id)
        if not can_be(name):
            continue
        counts = (held.concurrent, held.requests_per_minute)
        most = [str(_UNLIMITED if count is None else count) for count in counts]
        entries[name] = ",".join((*most, "-" if held.models is None else "m"))
        entries |= {f"{name}={model}": "yes" for model in held.models or ()}
    return entries


def key_entry(key: KeyGrant) -> str:
    """Return a key's value in the map of keys: ``TENANT[/SERVICE],KEY_ID,PERSON``."""
    return f"{key.opens},{key.key_id},{key.person}"


def map_text(entries: Mapping[str, str]) -> str:
    """Return the text of a map's file."""
    return "".join(f"{key} {value}\n" for key, value in sorted(entries.items()))


def files_needed(configuration: str) -> int:
    """Return how many open files HAProxy wants at its start; with fewer it ends at once."""
    return len(_CHECKED.findall(configuration)) + _OWN_FILES


def files_left(settings: GatewaySettings, most_files: int) -> int:
    """Return how many of so many open files are left for connections; 0 if HAProxy can't start."""
    return max(0, most_files - len(servers(settings)) - _OWN_FILES)


def most_files_of(configuration: str) -> int:
    """Return for how many open files a configuration was rendered."""
    match = _MOST_FILES.search(configuration)
    return int(match[1]) if match else MOST_FILES


def servers(settings: GatewaySettings) -> tuple[str, ...]:
    """Return each server that a replica may get, as ``BACKEND/rN``; without halves for gRPC."""
    return tuple(
        _server(f"{engine.group}{number}", index)
        for engine in ENGINES.values()
        for number in range(1, settings.backends + 1)
        for index in range(settings.servers)
    )


def _server(backend: str, index: int) -> str:
    return f"{backend}/r{index + 1}"


WHO = "show info"
"""The command that shows the process; ``process_of`` reads its answer."""


def questions(maps: Maps) -> tuple[str, ...]:
    """Return the commands that show everything; ``parse`` reads their answers, in this order.

    Administrative states come before the counters: a server that is seen to drain with nothing in
    flight had nothing in flight after it began to drain.
    """
    return (*_map_questions(maps), "show servers state", "show stat -1 6 -1")


def _map_questions(maps: Maps) -> tuple[str, ...]:
    others = (maps.asked, maps.replicas, maps.failed_calls, maps.adapters)
    shown = (maps.services, *maps.terms, *others)
    return tuple(f"show map {path}" for path in shown)


@dataclass(frozen=True)
class LastLook:
    """What a look at a process of HAProxy has shown, so that the next look may be a glance.

    Attributes:
        process: distinguishes it from every other process, as ``process_of`` reads it.
        lines: how many servers each backend of the group has, by name.
        routed: the backends to which a route led.
        live: how many servers of the routed backends were not in maintenance.
        idle: the backends without servers, as they were last seen.
        quiet: services of which HAProxy need not say any more that requests waited for them.
        unused: backends with servers that no request has come to since HAProxy began, as they were
            last seen: without a route none can come.
    """

    process: str
    lines: Mapping[str, int] = field(hash=False)
    routed: frozenset[str]
    live: int
    idle: Mapping[str, Backend] = field(default_factory=dict, hash=False)
    quiet: frozenset[str] = frozenset()
    unused: Mapping[str, Backend] = field(default_factory=dict, hash=False)

    @classmethod
    def of(cls, process: str, gateway: Gateway) -> "LastLook":
        """Build it from a look at that process."""
        idle = {name: backend for name, backend in gateway.backends.items() if not backend.servers}
        lines = {
            name: len(backend.servers)
            for name, backend in gateway.backends.items()
            if backend.servers
        }
        routed = _routed(gateway.routes) & lines.keys()
        modes = [server.mode for name in routed for server in gateway.backends[name].servers]
        live = sum(mode is not ServerMode.MAINT for mode in modes)
        waits = {name for name, backend in idle.items() if backend.sessions}
        quiet = (service for service in gateway.asked if gateway.routes.get(service) not in waits)
        unused = {
            name: replace(backend, servers=(VACANT,) * count)
            for name, count in lines.items()
            if name not in routed and _is_unused(backend := gateway.backends[name])
        }
        return cls(process, lines, routed, live, idle, frozenset(quiet), unused)

    def with_changes(self, changes: Iterable[GatewayChange]) -> "LastLook":
        """Return it after changes that the launcher itself has made."""
        made = tuple(changes)
        new = {change.backend for change in made if isinstance(change, AddRoute | MoveRoute)}
        used = new | {change.backend for change in made if isinstance(change, ServerChange)}
        unused = {name: place for name, place in self.unused.items() if name not in used}
        return replace(self, routed=self.routed | (new & self.lines.keys()), unused=unused)


def _is_unused(backend: Backend) -> bool:
    """Whether no request has come to a backend, and none of its servers could have one."""
    is_vacant = all(server.mode is ServerMode.MAINT for server in backend.servers)
    return is_vacant and not backend.arrived and not backend.sessions


def quiet_commands(maps: Maps, known: LastLook) -> tuple[str, ...]:
    """Return the commands that take marks away; HAProxy sets a mark again while a request waits."""
    return tuple(f"del map {maps.asked} {service}" for service in sorted(known.quiet))


def glance_questions(maps: Maps, known: LastLook) -> tuple[str, ...]:
    """Return the commands that ``parse_glance`` reads the answers to; () if a glance costs more.

    Servers are expensive: each is a line of a hundred figures, and most servers are in maintenance
    in backends without a route. A glance leaves those out. In return, the live servers of a backend
    with a route come twice, and the names of all figures come with each of its halves. Where there
    are idle backends, each backend with servers that was ever used is asked for alone.
    """
    routed = sorted(known.routed)
    if known.idle:
        rest = sorted(known.lines.keys() - known.routed - known.unused.keys())
        return (
            *_map_questions(maps),
            *(f"show stat {half} 6 -1 no-maint" for name in rest for half in _halves(name)),
            *(question for name in routed for question in _whole_questions(name)),
        )
    left_out = sum(lines for name, lines in known.lines.items() if name not in known.routed)
    if left_out <= known.live + _MORE_LINES * len(routed):
        return ()
    # The answers for a single backend come later and override the general ones.
    asked = (*_map_questions(maps), "show stat -1 6 -1 no-maint")
    for name in routed:
        asked = (*asked, *_whole_questions(name))
    return asked


def _whole_questions(name: str) -> tuple[str, ...]:
    return (f"show servers state {name}", *_stat_questions(name))


def _stat_questions(name: str) -> tuple[str, ...]:
    return tuple(f"show stat {half} 6 -1" for half in _halves(name))


def idle_questions(text: str, known: LastLook) -> tuple[str, ...]:
    """Return what else a glance must ask: for idle backends where requests wait, or have waited.

    ``text``: the answers so far. Raises as ``parse_glance``.
    """
    shown = _parse_shown(text)
    names = {
        shown.services.routes.get(service, "") for service in shown.services.asked
    } & known.idle.keys()
    names |= {name for name, backend in known.idle.items() if backend.sessions}
    return tuple(question for name in sorted(names) for question in _stat_questions(name))


def process_of(text: str) -> str:
    """Read from ``show info`` the name of the process: ``HOST-PID-START``.

    No other process is ever called so, of no host (a container) that is restarted and gives out the
    same process ids again. Raises ValueError for anything else.
    """
    matches = [found for pattern in _OF_PROCESS if (found := pattern.search(text))]
    if len(matches) < len(_OF_PROCESS):
        raise ValueError("no process")
    host, number, start_s = (match[1] for match in matches)
    # As `boot_id` in usage.lua.
    return f"{_NO_HOST.sub('_', host)[:_HOST_BYTES]}-{int(number)}-{int(start_s)}"


def number_of(process: str) -> int:
    """Return a process's id, given its name."""
    return int(process.rsplit("-", 2)[1])


def parse(text: str) -> Gateway:
    """Read the answers to ``questions``.

    Raises KeyError, ValueError or IndexError for anything else.
    """
    shown = _parse_shown(text)
    names = [name for name, rows in shown.rows.items() if "r1" in rows]
    lined = {name: shown.backend(name) for name in names if not name.endswith(GRPC)}
    if not lined:
        raise ValueError("no backend of the group")
    idle = {name: shown.vacant(name, 0) for name in shown.rows if _IDLE.fullmatch(name)}
    return shown.gateway(lined | idle)


def parse_glance(text: str, known: LastLook) -> Gateway | None:
    """Read the answers to ``glance_questions``; None if they don't show everything.

    They don't if a route leads to a backend that had none, or if a server is in use where no route
    leads. Raises KeyError, ValueError or IndexError for anything else.
    """
    shown = _parse_shown(text)
    if not _routed(shown.services.routes) & known.lines.keys() <= known.routed:
        return None
    backends: dict[str, Backend] = {}
    for name, lines in known.lines.items():
        if name in known.routed:
            backends[name] = shown.backend(name)
        elif name in known.unused and name not in shown.rows:
            backends[name] = known.unused[name]
        elif shown.is_vacant(name):
            backends[name] = shown.vacant(name, lines)
        else:
            return None
    asked = {name: shown.vacant(name, 0) for name in known.idle if name in shown.rows}
    return shown.gateway({**backends, **known.idle, **asked})


def _routed(routes: Mapping[str, str]) -> frozenset[str]:
    return frozenset(routes.values())


def _numbers(shown: Mapping[str, str]) -> Mapping[str, int]:
    return {service: int(value) for service, value in shown.items()}


class _Row(NamedTuple):
    """A line of ``show stat``; what it calls sessions are requests.

    Attributes:
        statuses: how many answers had status 2xx, 4xx and 5xx, as text: few lines need them, as
            few need the others.
        sent: bytes that have come from a server, or from HAProxy in its place.
        at_once: requests that a server gets at the same time, as text; "" of others.
        tried_again: how often a request was sent again, to the same server and to another one,
            since there was no connection; each of them was one of ``total``.
        unanswered: requests that a server has not answered, or not to the end, as text.
        said: what the operating system said of the last health check's connection, or the text of
            its result.
    """

    queued: int
    sessions: int
    total: int
    status: str
    place: str
    statuses: tuple[str, str, str]
    check: str
    sent: str
    tried_again: tuple[str, str]
    at_once: str
    unanswered: str
    said: str

    @property
    def answers(self) -> int:
        """Answers of a server."""
        return sum(map(int, self.statuses))

    @property
    def errors(self) -> int:
        """Answers of a server that say that it has failed."""
        return int(self.statuses[-1])


_NO_ROW = _Row(0, 0, 0, "", "", ("0", "0", "0"), "", "0", ("0", "0"), "", "0", "")
"""The line of a server in a half that its backend does not have."""


@dataclass(frozen=True)
class _Shown:
    """HAProxy's answers, parsed.

    Attributes:
        services: what it has of services: a gateway without backends.
        digests: digests of replicas' certificates, by server.
        failed: failed calls of gRPC, by server.
        rows: lines of ``show stat``, by backend and server.
        admin: administrative states, by backend and server.
    """

    services: Gateway
    digests: Mapping[str, str]
    failed: Mapping[str, int]
    rows: Mapping[str, Mapping[str, _Row]]
    admin: Mapping[str, Mapping[str, int]]

    def gateway(self, backends: Mapping[str, Backend]) -> Gateway:
        """Return the gateway that was shown, with these backends."""
        return replace(self.services, backends=backends)

    def backend(self, name: str) -> Backend:
        """Return a backend with all its servers, which were all shown."""
        http, admin = self.rows[name], self.admin[name]
        grpc = self.rows.get(f"{name}{GRPC}", dict.fromkeys(http, _NO_ROW))
        lines = [f"r{number}" for number in range(1, len(http) - 1)]
        servers = tuple(
            _parse_server(
                http[line],
                grpc[line],
                admin[line],
                self.digests.get(f"{name}/{line}", ""),
                self.failed.get(f"{name}{GRPC}/{line}", 0),
            )
            for line in lines
        )
        return self._backend(name, servers, lines)

    def _halves(self, name: str) -> tuple[Mapping[str, _Row], ...]:
        """Return the lines of each half of a backend."""
        grpc = self.rows.get(f"{name}{GRPC}")
        return (self.rows[name],) if grpc is None else (self.rows[name], grpc)

    def is_vacant(self, name: str) -> bool:
        """Whether all servers of a backend are in maintenance."""
        halves = self._halves(name)
        return all(half.keys() == {AGAIN, "BACKEND"} for half in halves)

    def vacant(self, name: str, lines: int) -> Backend:
        """Return a backend with ``lines`` servers that were only shown to be in maintenance."""
        return self._backend(name, (VACANT,) * lines, ())

    def _backend(self, name: str, servers: tuple[Server, ...], lines: Sequence[str]) -> Backend:
        """Return a backend that counts each request once.

        HAProxy counts a request that goes through ``again`` twice: there, and where it came in
        again.
        """
        halves = self._halves(name)
        sessions = sum(half["BACKEND"].sessions - half[AGAIN].sessions for half in halves)
        arrived = sum(half["BACKEND"].total - half[AGAIN].total for half in halves)
        carried = [half[line] for half in halves for line in lines]
        answered = sum(row.total - row.sessions for row in carried)
        tries = sum(int(count) for row in carried for count in row.tried_again)
        return Backend(
            sessions,
            sum(half["BACKEND"].queued for half in halves),
            servers,
            arrived=arrived,
            answered=answered,
            given_up=arrived - (answered - tries) - sessions,
        )


def _parse_shown(text: str) -> _Shown:
    # splitlines() would split at ten other characters, too, and a row may contain a replica's text.
    lines = iter(text.split("\n"))
    routes, terms = _parse_map(lines), _parse_terms(lines)
    asked, digests, failed, adapters = (_parse_map(lines) for _ in range(4))
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
    services = Gateway(
        routes,
        {},
        complete,
        terms,
        asked=frozenset(asked),
        adapter_entries=_numbers(adapters),
    )
    return _Shown(services, digests, _numbers(failed), rows, admin)


def _parse_terms(lines: Iterator[str]) -> Mapping[str, Terms]:
    terms: dict[str, dict[str, Any]] = {}
    for name, read in _TERMS:
        for service, text in _parse_map(lines).items():
            terms.setdefault(service, {})[name] = read(text)
    return {service: Terms(**fields) for service, fields in terms.items()}


def _parse_rows(header: str, lines: Iterable[str], rows: dict[str, dict[str, _Row]]) -> None:
    """Parse lines of ``show stat``; a csv.DictReader would take ten times as long."""
    columns = header.split(",")
    names = (
        "qcur",
        "scur",
        "stot",
        "status",
        "addr",
        "check_status",
        "bout",
        "wretr",
        "wredis",
        "slim",
        "eresp",
        "last_chk",
    )
    queued, sessions, total, status, place, check, sent, same, other, most, unanswered, said = map(
        columns.index, names
    )
    good, refused, failed = (columns.index(f"hrsp_{digit}xx") for digit in (2, 4, 5))
    for line in csv.reader(lines):
        rows.setdefault(line[0], {})[line[1]] = _Row(
            int(line[queued]),
            int(line[sessions]),
            int(line[total]),
            line[status],
            line[place],
            (line[good], line[refused], line[failed]),
            line[check],
            line[sent],
            (line[same], line[other]),
            line[most],
            line[unanswered],
            line[said],
        )


def _parse_states(lines: Iterable[str], admin: dict[str, dict[str, int]]) -> None:
    """Parse lines of ``show servers state``."""
    for line in lines:
        fields = line.split(maxsplit=7)
        admin.setdefault(fields[1], {})[fields[3]] = int(fields[6])


def _parse_server(http: _Row, grpc: _Row, admin: int, digest: str, failed: int) -> Server:
    """``failed``: how many calls of gRPC have failed, which is not seen by their status."""
    address, _, port = http.place.rpartition(":")
    return Server(
        address.strip("[]"),
        int(port),
        _mode(admin),
        http.status.split()[0] in {"UP", "DRAIN"},
        http.sessions + grpc.sessions,
        http.queued + grpc.queued,
        digest,
        http.answers + grpc.answers,
        http.errors + grpc.errors + failed,
        http.check.endswith("TOUT"),
        int(http.sent) + int(grpc.sent),
        int(http.at_once) if http.at_once else None,
        int(http.unanswered) + int(grpc.unanswered),
        http.check.endswith("L4CON") and http.said.startswith(_REFUSED),
    )


def _mode(admin: int) -> ServerMode:
    if admin & _FORCED_MAINT:
        return ServerMode.MAINT
    return ServerMode.DRAIN if admin & _FORCED_DRAIN else ServerMode.READY


def without_digests(text: str) -> str:
    """Remove digests from a text for the log: a digest could identify the user who has the key."""
    return re.sub(r"[0-9a-f]{64}", "DIGEST", text)


def parse_map(text: str) -> Mapping[str, str]:
    """Read the answer to ``show map``; raises ValueError for anything else."""
    return _parse_map(iter(text.split("\n")))


def _parse_map(lines: Iterator[str]) -> dict[str, str]:
    """Parse lines such as ``0x55d0 tenant/service triton3``, until an empty one."""
    found = {}
    for line in takewhile(bool, lines):
        address, key, value = line.split()
        if not address.startswith("0x"):
            raise ValueError(line)
        found[key] = value
    return found


def old_workers(text: str) -> tuple[int, ...]:
    """Read from the master's ``show proc`` the ids of processes that a reload has replaced."""
    _, _, rest = text.partition("# old workers\n")
    rows = takewhile(lambda line: line and not line.startswith("#"), rest.split("\n"))
    return tuple(int(row.split()[0]) for row in rows)
