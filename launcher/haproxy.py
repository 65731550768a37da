"""The only door to HAProxy: its Runtime API on a unix socket, and the check of a configuration."""

import asyncio
import csv
import os
import shutil
from asyncio.subprocess import PIPE
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from cluster.errors import InvalidInputError, OutsideError, UnreachableError
from launcher.decide.gateway import Backend, Gateway, Mode, Server
from launcher.decide.routing import (
    AddRoute,
    Change,
    EndSessions,
    MarkComplete,
    RemoveRoute,
    SendRound,
    SetHealthy,
    SetMode,
    SetTarget,
)

DEADLINE_S = 2.0
_READ_LIMIT = 64 * 1024 * 1024
_FORCED_DRAIN, _FORCED_MAINT = 0x08, 0x01
"""Bits of srv_admin_state (management guide, "show servers state")."""
_QUIET = ("no need to change", "changed from")
"""``set server addr`` answers in words also when all is well."""
AGAIN = "again"
"""The server of each backend that leads back into HAProxy, used while no replica is up."""
COMPLETE_KEY = ".complete"
"""In the map beside the services; no ``tenant/service`` is like it."""


class HaproxyRuntime:
    """Reads and changes the pool of backends ``pool1`` ... at run time.

    Every call raises UnreachableError (SW-GATEWAY-DOWN), or OutsideError (SW-GATEWAY-FAILED) with
    HAProxy's own words.
    """

    def __init__(self, socket: Path, services_map: Path) -> None:
        self._socket = socket
        self._map = services_map

    async def observe(self) -> Gateway:
        """Routes, servers and requests.

        Administrative states are read before the counters: a server that is seen to drain with
        nothing in flight had nothing in flight after it began to drain.
        """
        text = await self._ask(f"show map {self._map};show servers state;show stat")
        try:
            return parse(text)
        except (KeyError, ValueError, IndexError) as error:
            raise OutsideError(
                "SW-GATEWAY-FAILED",
                f"HAProxy's state can't be read: {type(error).__name__} {error}.",
                "Run HAProxy with the configuration of: slicewise gateway render",
            ) from error

    async def apply(self, changes: Iterable[Change]) -> None:
        """Make the changes, in order; stops at the first that fails."""
        for change in changes:
            for command in commands(change, self._map):
                answer = (await self._ask(command)).strip()
                if answer and not any(words in answer for words in _QUIET):
                    raise OutsideError(
                        "SW-GATEWAY-FAILED", f"HAProxy refused {command!r}: {answer}"
                    )

    def keep(self, routes: Mapping[str, str]) -> None:
        """Write the routes into the map's file, if it says others: HAProxy starts with them.

        Not the mark of completeness: a service may come while HAProxy is down. Raises OSError if
        this user may not write there.
        """
        text = "".join(f"{service} {backend}\n" for service, backend in sorted(routes.items()))
        if self._map.read_text(encoding="utf-8") != text:
            replace_file(self._map, text)

    async def _ask(self, command: str) -> str:
        try:
            async with asyncio.timeout(DEADLINE_S):
                return await self._exchange(command)
        except PermissionError as error:
            raise UnreachableError(
                "SW-GATEWAY-DOWN",
                f"{self._socket} may not be used by this user.",
                "Only root and the launcher's user may: slicewise gateway render --socket-user.",
            ) from error
        except (OSError, TimeoutError) as error:
            raise UnreachableError(
                "SW-GATEWAY-DOWN",
                f"HAProxy does not answer on {self._socket}: {type(error).__name__}.",
                "Is it running, with the configuration of: slicewise gateway render?",
            ) from error

    async def _exchange(self, command: str) -> str:
        reader, writer = await asyncio.open_unix_connection(str(self._socket), limit=_READ_LIMIT)
        try:
            writer.write(f"{command}\n".encode())
            await writer.drain()
            return (await reader.read(-1)).decode("utf-8", "replace")
        finally:
            writer.close()


def replace_file(path: Path, text: str) -> None:
    """All or nothing: HAProxy never reads half a file. Raises OSError."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        with suppress(FileNotFoundError):
            shutil.copymode(path, draft)
        draft.replace(path)
    except OSError:
        with suppress(OSError):
            draft.unlink()
        raise


def commands(change: Change, services_map: Path) -> tuple[str, ...]:
    """The Runtime API's words for a change."""
    match change:
        case SetMode(backend, index, mode):
            return (f"set server {_server(backend, index)} state {mode}",)
        case SetHealthy(backend, index):
            return (f"set server {_server(backend, index)} health up",)
        case EndSessions(backend, index):
            return (f"shutdown sessions server {_server(backend, index)}",)
        case SetTarget(backend, index, address, port, concurrency):
            server = _server(backend, index)
            return (
                f"set server {server} addr {address} port {port}",
                f"set maxconn server {server} {concurrency}",
            )
        case SendRound(backend):
            server = f"set server {backend}/{AGAIN} state"
            return (f"{server} maint;{server} ready",)
        case AddRoute() | RemoveRoute() | MarkComplete():
            return (_map_command(change, services_map),)


def _map_command(change: AddRoute | RemoveRoute | MarkComplete, services_map: Path) -> str:
    match change:
        case AddRoute(service, backend):
            return f"add map {services_map} {service} {backend}"
        case RemoveRoute(service):
            return f"del map {services_map} {service}"
        case MarkComplete():
            return f"add map {services_map} {COMPLETE_KEY} yes"


def _server(backend: str, index: int) -> str:
    return f"{backend}/r{index + 1}"


def parse(text: str) -> Gateway:
    """The answers to ``show map``, ``show servers state`` and ``show stat``, one after another.

    Raises KeyError, ValueError or IndexError for anything else.
    """
    before_states, _, rest = text.partition("\n1\n# be_id ")
    states_text, _, stat_text = rest.partition("\n# pxname,")
    rows = tuple(csv.DictReader(f"pxname,{stat_text}".splitlines()))
    admin = _admin_states(states_text)
    servers: dict[str, dict[int, Server]] = {}
    totals: dict[str, Mapping[str, str]] = {}
    again: dict[str, int] = {}
    for row in rows:
        backend, name = row["pxname"], row["svname"]
        if name == "BACKEND":
            totals[backend] = row
        elif name == AGAIN:
            again[backend] = int(row["scur"])
        elif (backend, name) in admin:
            servers.setdefault(backend, {})[int(name[1:]) - 1] = _parse_server(
                row, admin[backend, name]
            )
    if not servers:
        raise ValueError("no backend of the pool")
    backends = {
        name: _parse_backend(totals[name], again[name], found) for name, found in servers.items()
    }
    routes = _parse_map(before_states)
    complete = routes.pop(COMPLETE_KEY, None) is not None
    return Gateway(routes, backends, complete)


def _parse_backend(row: Mapping[str, str], again: int, servers: Mapping[int, Server]) -> Backend:
    """What goes round ``again`` is in the backend twice: there, and where it came to."""
    in_order = tuple(servers[index] for index in range(len(servers)))
    return Backend(int(row["scur"]) - again, int(row["qcur"]), in_order)


def _parse_server(row: Mapping[str, str], admin: int) -> Server:
    address, _, port = row["addr"].rpartition(":")
    return Server(
        address.strip("[]"),
        int(port),
        _mode(admin),
        row["status"].split()[0] in {"UP", "DRAIN"},
        int(row["scur"]),
        int(row["qcur"]),
    )


def _mode(admin: int) -> Mode:
    if admin & _FORCED_MAINT:
        return Mode.MAINT
    return Mode.DRAIN if admin & _FORCED_DRAIN else Mode.READY


def _admin_states(text: str) -> Mapping[tuple[str, str], int]:
    rows = (line.split() for line in text.splitlines()[1:] if line.strip())
    return {(row[1], row[3]): int(row[6]) for row in rows}


def _parse_map(text: str) -> dict[str, str]:
    """Lines ``0x55d0 tenant/service pool3``."""
    rows = (line.split() for line in text.splitlines() if line.startswith("0x"))
    return {row[1]: row[2] for row in rows}


async def check_configuration(path: Path) -> None:
    """Let HAProxy itself read a configuration.

    Raises InvalidInputError (SW-GATEWAY-CONFIG) with its words, UnreachableError
    (SW-GATEWAY-PROGRAM) if the program is not there.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            "haproxy", "-c", "-f", str(path), stdout=PIPE, stderr=PIPE
        )
    except FileNotFoundError:
        raise UnreachableError(
            "SW-GATEWAY-PROGRAM", "The program haproxy is not on PATH.", "Install HAProxy >= 2.6."
        ) from None
    _, errors = await process.communicate()
    if process.returncode:
        raise InvalidInputError(
            "SW-GATEWAY-CONFIG", f"HAProxy rejects {path}: {errors.decode('utf-8', 'replace')}"
        )
