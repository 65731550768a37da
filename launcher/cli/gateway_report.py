"""The doctor's section about the gateway and the launcher."""

import asyncio
import os
import pwd
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from cluster.language.errors import SlicewiseError
from cluster.language.findings import Finding, SectionReport, failure, looked
from cluster.settings.file import Settings, load_settings
from cluster.settings.gateway import GatewaySettings
from launcher.gateway import haproxy
from launcher.gateway.checks import GatewayFacts, gateway_checks
from launcher.gateway.identity import KEY, ends_s
from launcher.scripts.render import CONFIGURATION, Owners, gateway_files, owners_of

SECTIONS = ("gateway",)
_PROC = Path("/proc")
_NAMES = (b"/slicewise", b"launcher.main")
"""How the program is called in a process's arguments, before the word launcher."""
_PROGRAM = Path(__file__).resolve().parents[1] / "main.py"
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
        return (SectionReport("gateway", skipped=skipped),)
    user = settings.daemon.launcher_user
    return (
        looked(
            "gateway",
            lambda: SectionReport(
                "gateway", (*_findings(settings.gateway, user), *_database(settings))
            ),
        ),
    )


def _database(settings: Settings) -> Iterator[Finding]:
    """Say why the launcher's own database can't be read: without it the launcher runs on."""
    # Imported here: SQLAlchemy takes longer to import than everything else.
    from launcher.process.leadership import own_store  # noqa: PLC0415

    try:
        if store := own_store(settings):
            store.load()
    except SlicewiseError as error:
        found = failure(error)
        yield replace(found, what=f"The launcher's database: {found.what}")


def _findings(settings: GatewaySettings, launcher_user: str) -> Iterator[Finding]:
    file = settings.directory / CONFIGURATION
    text = _text(file) or ""
    owners = owners_of(text)
    if text:
        try:
            asyncio.run(haproxy.check_configuration(file))
        except SlicewiseError as error:
            yield failure(error)
    ends: dict[str, float] = {}
    for path in filter(None, (settings.certificate, settings.directory / KEY)):
        try:
            ends[str(path)] = ends_s(path)
        except SlicewiseError as error:
            yield failure(error)
    info: Mapping[str, str] = {}
    try:
        info = asyncio.run(haproxy.process_facts(settings))
    except SlicewiseError as error:
        yield failure(error)
    facts = GatewayFacts(
        stale=tuple(_stale(settings, owners)),
        ends_s=ends,
        version=info.get("Version", ""),
        loaded_s=float(info.get("Start_time_sec", 0)),
        rendered_s=_written_s(file),
        launcher_s=_launcher_s(launcher_user),
        program_s=_installed_s(_PROGRAM),
        has_master=settings.master_socket.exists(),
        bind=settings.bind,
        held=asyncio.run(haproxy.held_address()),
    )
    yield from gateway_checks(facts, owners.options, time.time())


def _stale(settings: GatewaySettings, owners: Owners) -> Iterator[str]:
    for name, wanted in gateway_files(settings, owners).items():
        if _text(settings.directory / name) != wanted:
            yield name


def _text(file: Path) -> str | None:
    with suppress(FileNotFoundError):
        return file.read_text(encoding="utf-8")
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


def _launcher_s(user: str) -> float | None:
    """Return the Unix second at which the user's newest launcher began; None without one."""
    try:
        uid = pwd.getpwnam(user).pw_uid
    except KeyError:
        return None
    began = [
        _began_s(process)
        for process in _PROC.iterdir()
        if process.name.isdigit() and _is_launcher(process, uid)
    ]
    return max(began, default=None)


def _is_launcher(process: Path, uid: int) -> bool:
    with suppress(OSError):
        words = (process / "cmdline").read_bytes().split(b"\0")
        is_one = any(a.endswith(_NAMES) and b == b"launcher" for a, b in pairwise(words))
        return is_one and process.stat().st_uid == uid
    return False


def _began_s(process: Path) -> float:
    with suppress(OSError, ValueError, IndexError):
        ticks = (process / "stat").read_text(encoding="ascii").rpartition(")")[2].split()
        uptime_s = float((_PROC / "uptime").read_text(encoding="ascii").split()[0])
        age_s = uptime_s - int(ticks[_START_TICKS]) / os.sysconf("SC_CLK_TCK")
        return time.time() - age_s
    return time.time()
