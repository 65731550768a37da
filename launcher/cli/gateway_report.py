"""The doctor's section about the gateway and the launcher."""

import asyncio
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from grp import getgrnam
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from jinja2 import TemplateError

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.language.file_access import Need, Person, Right
from slicewise.cluster.language.findings import Finding, SectionReport, error, failure
from slicewise.cluster.runtime.host_look import (
    disabled_units,
    holders,
    parent_of,
    person,
    processes,
    running_as,
    space,
    way_to,
)
from slicewise.cluster.runtime.section_look import looked, unread
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.cluster.settings.file import Settings
from slicewise.cluster.settings.gateway import GatewaySettings
from slicewise.cluster.settings.read import load_settings
from slicewise.launcher.gateway import haproxy
from slicewise.launcher.gateway.certificates import answer_at, certificate_facts, identity_facts
from slicewise.launcher.gateway.files import STATISTICS
from slicewise.launcher.gateway.identity import KEY, ends_s, require_key
from slicewise.launcher.gateway.runtime_api import most_files_of
from slicewise.launcher.rules.gateway.checks import GatewayFacts, gateway_checks, identity_checks
from slicewise.launcher.scripts.render import CONFIGURATION, Owners, gateway_files, owners_of

SECTIONS = ("gateway",)
_Seen = TypeVar("_Seen")
_PROC = Path("/proc")
_NAMES = (b"/slicewise", b"slicewise.launcher.main")
"""How the program is called in a process's arguments, before the word launcher."""
_PROGRAM = Path(__file__).resolve().parents[1] / "main.py"
_READ_BY_HAPROXY = ("hold.lua", "sequence.lua", "openai.lua", "usage.lua", "allowances.lua")
_UNITS = ("slicewise-launcher.service", "haproxy.service", "haproxy-slicewise.socket")
_STOPPED = ("T", "t")
"""States of a process that a signal or a debugger has stopped."""
_START_TICKS = 19
"""Place of a process's start, in ticks since boot, behind its name in /proc/PID/stat."""


def reports(
    sections: Collection[str], _node: str | None, _host_root: Path
) -> tuple[SectionReport, ...]:
    """Look at the gateway, if this is its host."""
    if "gateway" not in sections:
        return ()
    try:
        settings = load_settings()
    except SlicewiseError:
        return ()  # Another section says so.
    directory = settings.gateway.directory
    if not directory.is_dir():
        skipped = f"{directory} is not here: run slicewise doctor on the gateway's host"
        return (
            looked(
                "gateway",
                lambda: SectionReport(
                    "gateway", tuple(identity_checks(identity_facts(settings.gateway))), skipped
                ),
            ),
        )
    return (
        looked(
            "gateway",
            lambda: SectionReport("gateway", (*_findings(settings), *_database(settings))),
        ),
    )


def _database(settings: Settings) -> Iterator[Finding]:
    """Say why the launcher's own database can't be read: without it the launcher runs on."""
    # Imported here: SQLAlchemy takes longer to import than everything else.
    from slicewise.launcher.process.leadership import own_store  # noqa: PLC0415

    try:
        if store := own_store(settings):
            store.load()
    except SlicewiseError as raised:
        finding = failure(raised)
        yield replace(finding, what=f"The launcher's database: {finding.what}")


class _Look:
    """Looks at one thing after the other: what can't be read of one hides nothing of the others."""

    def __init__(self) -> None:
        self.failed: dict[Finding, None] = {}

    def at(self, look: Callable[[], _Seen], otherwise: _Seen) -> _Seen:
        try:
            return look()
        except SlicewiseError as raised:
            self.failed[failure(raised)] = None
        except OSError as raised:
            self.failed[unread(raised)] = None
        return otherwise


def _findings(site: Settings) -> Iterator[Finding]:
    settings, launcher_user = site.gateway, site.daemon.launcher_user
    file, key = settings.directory / CONFIGURATION, settings.directory / KEY
    look = _Look()
    text = look.at(lambda: _text(file), None) or ""
    owners = owners_of(text)
    if text:
        look.at(lambda: asyncio.run(haproxy.check_configuration(file)), None)
    ends = look.at(lambda: {str(key): float(ends_s(key))}, dict[str, float]())
    if ends:
        look.at(lambda: require_key(settings), None)
    info = look.at(lambda: dict(asyncio.run(haproxy.process_facts(settings))), dict[str, str]())
    is_other = bool(info) and not look.at(lambda: asyncio.run(haproxy.is_ours(settings)), True)
    launchers = dict(_launchers())
    worker = running_as(int(info.get("Pid", 0)))
    port = settings.bind.rpartition(":")[2]
    stale: tuple[str, ...] = ()
    try:
        stale = look.at(lambda: tuple(_stale(settings, owners, most_files_of(text))), stale)
    except TemplateError as raised:
        yield error(
            Code.PACKAGE,
            f"The gateway's files can't be rendered: {type(raised).__name__}: {raised}",
            "templates of Slicewise are missing, or of another version",
            advice="Install the same version again.",
        )
    facts = GatewayFacts(
        stale=stale,
        ends_s=ends,
        version=info.get("Version", ""),
        loaded_s=float(info.get("Start_time_sec", 0)),
        rendered_s=_written_s(file),
        rendered_files=most_files_of(text) if text else 0,
        running_files=int(info.get("Ulimit-n", 0)),
        launcher_s=_launcher_s(launcher_user, launchers),
        program_s=_installed_s(_PROGRAM),
        is_other=is_other,
        has_master=settings.master_socket.exists(),
        bind=settings.bind,
        held=asyncio.run(haproxy.held_address()),
        certificate=look.at(lambda: certificate_facts(settings), None),
        identity=look.at(lambda: identity_facts(settings), None),
        url=settings.url,
        answered=answer_at(settings.url) if info and not is_other else "",
        holders=holders([int(port)] if port.isdecimal() else []),
        haproxy_users=("root", *([worker.name] if worker else []), *filter(None, [owners.user])),
        launchers_as=tuple(
            sorted({launcher.name for launcher in launchers.values()} - {launcher_user})
        ),
        stopped=tuple(
            pid
            for pid, launcher in sorted(launchers.items())
            if launcher.name == launcher_user and _state(_PROC / str(pid)) in _STOPPED
        ),
        needs=(*_launchers_needs(site, owners, launchers), *_haproxys_needs(site, owners, info)),
        spaces=(
            *space(settings.directory, "the gateway's files"),
            *space(settings.runtime_socket.parent, "HAProxy's sockets"),
        ),
        disabled=disabled_units(_UNITS),
    )
    yield from look.failed
    yield from gateway_checks(facts, owners.options, wall_s())


def _stale(settings: GatewaySettings, owners: Owners, most_files: int) -> Iterator[str]:
    for name, wanted in gateway_files(settings, owners, most_files=most_files).items():
        if _text(settings.directory / name) != wanted:
            yield name


def _text(file: Path) -> str | None:
    with suppress(FileNotFoundError):
        return file.read_text(encoding="utf-8", errors="replace")
    return None


def _written_s(file: Path) -> float:
    with suppress(OSError):
        return file.stat().st_mtime
    return 0.0


def _installed_s(file: Path) -> float:
    """Return when the file came here: packages keep the time of their build as that of writing."""
    with suppress(OSError):
        return file.stat().st_ctime
    return 0.0


def _launchers() -> Iterator[tuple[int, Person]]:
    """Yield the processes that are launchers, and as whom they run."""
    for process in _PROC.iterdir():
        if process.name.isdigit() and _is_launcher(process):
            pid = int(process.name)
            if (who := running_as(pid)) is not None:
                yield pid, who


def _is_launcher(process: Path) -> bool:
    with suppress(OSError):
        words = (process / "cmdline").read_bytes().split(b"\0")
        return any(a.endswith(_NAMES) and b == b"launcher" for a, b in pairwise(words))
    return False


def _launcher_s(user: str, launchers: Mapping[int, Person]) -> float | None:
    """Return the Unix second at which the user's newest launcher began; None without one."""
    if (wanted := person(user)) is None:
        return None
    began = [
        _began_s(_PROC / str(pid))
        for pid, launcher in launchers.items()
        if launcher.uid == wanted.uid
    ]
    return max(began, default=None)


def _launchers_needs(
    site: Settings, owners: Owners, launchers: Mapping[int, Person]
) -> Iterator[Need]:
    """Yield what the launcher reads, writes and connects to, with the groups that it runs with."""
    settings, launcher_user = site.gateway, site.daemon.launcher_user
    user = next(
        (launcher for launcher in launchers.values() if launcher.name == launcher_user), None
    )
    if user is None:
        groups = (_gid(name) for name in (owners.group, owners.socket_group))
        user = person(launcher_user, *(gid for gid in groups if gid is not None))
    if user is None:
        return
    read, write = Right.READ, Right.WRITE
    starts, routes = "the launcher does not start", "the launcher can't tell HAProxy of replicas"
    wanted: tuple[tuple[Path | None, Right, str], ...] = (
        (site.launcher.url_file, read, "a restart of the launcher loses what it has learnt"),
        (Path(sys.executable), read | Right.ENTER, starts),
        (_PROGRAM, read, starts),
        (settings.directory, write | Right.ENTER, "the launcher can't write the gateway's maps"),
        (settings.directory / KEY, read, "the launcher can't prove to replicas who it is"),
        (settings.runtime_socket, write, routes),
        (settings.master_socket, write, "the launcher sees no request of replaced processes"),
        (site.daemon.user_socket, write, "the launcher can't ask the daemon"),
        (site.daemon.munge_socket, write, "the launcher can't prove to the daemon who it is"),
    )
    for path, right, why in wanted:
        if path is not None:
            yield Need(way_to(path), user, right, why)


def _haproxys_needs(site: Settings, owners: Owners, info: Mapping[str, str]) -> Iterator[Need]:
    """Yield what HAProxy connects to as its own user, and reads as whoever starts it."""
    settings = site.gateway
    pid = int(info.get("Pid", 0))
    worker = running_as(pid) or person(owners.user)
    if worker is not None:
        own = settings.runtime_socket
        for path, why in (
            (settings.directory / STATISTICS, "HAProxy answers no question of statistics"),
            (own.with_name(f"{own.name}.again"), "HAProxy can't try a request again"),
            (own.with_name(f"{own.name}.health"), "HAProxy can't check replicas by gRPC"),
        ):
            yield Need(way_to(path), worker, Right.WRITE, why)
    if (starter := running_as(_master_of(pid))) is not None:
        files = (CONFIGURATION, *_READ_BY_HAPROXY, KEY)
        read = [settings.directory / name for name in files]
        read += sorted(settings.directory.glob("*.map"))
        read += [settings.certificate] if settings.certificate else []
        why = "HAProxy does not start, or will not start again"
        yield Need(way_to(settings.directory / "replicas"), starter, Right.ENTER, why)
        for path in read:
            yield Need(way_to(path), starter, Right.READ, why)


def _master_of(pid: int) -> int:
    """Return the process that reads files and starts workers: a master, mostly root's, or itself.

    0 without one.
    """
    parent = parent_of(pid)
    starter = running_as(parent)
    return parent if starter and parent in processes("haproxy", starter.name) else pid


def _gid(group: str) -> int | None:
    with suppress(KeyError):
        return getgrnam(group).gr_gid
    return None


def _state(process: Path) -> str:
    with suppress(OSError, IndexError):
        return _stat(process)[0]
    return ""


def _stat(process: Path) -> list[str]:
    """Return what stands behind the name, which may hold blanks, in /proc/PID/stat."""
    return (process / "stat").read_text(encoding="ascii").rpartition(")")[2].split()


def _began_s(process: Path) -> float:
    with suppress(OSError, ValueError, IndexError):
        ticks = _stat(process)
        uptime_s = float((_PROC / "uptime").read_text(encoding="ascii").split()[0])
        age_s = uptime_s - int(ticks[_START_TICKS]) / os.sysconf("SC_CLK_TCK")
        return wall_s() - age_s
    return wall_s()
