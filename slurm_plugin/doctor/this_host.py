"""Looks at this host: files, users, ports, munge, and whether a name or an address is its own."""

import os
import pwd
import re
import shutil
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from cluster.language.errors import SlicewiseError
from cluster.rpc.munge import Munge
from cluster.settings.file import Settings, settings_file
from cluster.slurm.fields import numbers
from slurm_plugin.doctor.facts import FileFacts, HostFacts

_IPV4 = Path("/proc/sys/net/ipv4")
_NAMESPACES = Path("/proc/sys/user/max_user_namespaces")
_NODE_PROGRAMS = ("openssl", "unshare")
_PROOF = b"slicewise doctor"
_TTL_S = 60
_PASSWORD = re.compile(r"://[^\s/@:]*:[^\s@]+@|\bPGPASSWORD=.|[?&]password=")
"""Of a URL, or for all that libpq connects to."""


def is_here(name: str) -> bool:
    """Whether a host's name or address is this host's: only then can a socket be bound to it."""
    with suppress(OSError):
        for family, kind, _, _, address in socket.getaddrinfo(name, 0, type=socket.SOCK_DGRAM):
            with suppress(OSError), socket.socket(family, kind) as probe:
                probe.bind(address)
                return True
    return False


def host_facts(
    settings: Settings, module: Path, *, is_controller: bool, needs_munge: bool
) -> HostFacts:
    """Return what is to be checked of this host; ``module`` is slicewise.lua."""
    return HostFacts(
        files=tuple(_files(settings, module, is_controller=is_controller)),
        users=_users(settings, is_controller=is_controller),
        munge=_munge(settings) if needs_munge else "",
        client_ports=_client_ports(),
        kept_ports=_kept_ports(),
    )


def _files(settings: Settings, module: Path, *, is_controller: bool) -> Iterator[FileFacts]:
    slurm, launcher = settings.daemon.slurm_user, settings.daemon.launcher_user
    operators = ("root", slurm)
    yield from _file(settings_file(), "own", operators)
    yield from _file(settings_file().parent, "own", operators)
    yield from _environment(settings_file().parent / "environment")
    yield from _file(settings.gateway.directory / "identity.pem", "secret", (launcher, "root"))
    if settings.database.url_file is not None:
        yield from _file(settings.database.url_file, "secret", (slurm, "root"))
    if settings.launcher.url_file is not None:
        yield from _file(settings.launcher.url_file, "secret", (launcher, "root"))
    if is_controller:
        yield from _file(settings.daemon.run_dir, "own", (slurm,))
        yield from _file(module, "own", operators)
        yield from _web_secrets(settings)


def _web_secrets(settings: Settings) -> Iterator[FileFacts]:
    """Yield the page's secrets; the daemon alone reads the key of Slurm's tokens."""
    web = settings.web
    for path in filter(None, (web.proxy_secret_file, web.oidc.client_secret_file)):
        yield from _file(path, "secret", ("root", web.user))
    if web.slurm_jwt_key is not None:
        yield from _file(web.slurm_jwt_key, "secret", (settings.daemon.slurm_user, "root"))


def _environment(path: Path) -> Iterator[FileFacts]:
    """Yield the file of variables that all units read: who can change it says what they run."""
    text = ""
    with suppress(OSError):
        text = path.read_text(encoding="utf-8", errors="replace")
    holds = any(_PASSWORD.search(line) for line in text.splitlines() if line[:1] != "#")
    for one in _file(path, "secret" if holds else "own", ("root",)):
        yield replace(one, holds_password=holds)


def _file(path: Path, duty: str, owners: tuple[str, ...]) -> Iterator[FileFacts]:
    """Yield what there is to say of a file; nothing if it is not here, or not to be seen."""
    with suppress(OSError):
        found = path.stat()
        yield FileFacts(str(path), duty, found.st_mode & 0o7777, _name(found.st_uid), owners)


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _users(settings: Settings, *, is_controller: bool) -> Mapping[str, bool]:
    daemon = settings.daemon
    asked = {f"launcher_user={daemon.launcher_user}": daemon.launcher_user}
    if is_controller:
        asked[f"slurm_user={daemon.slurm_user}"] = daemon.slurm_user
    return {key: _exists(name) for key, name in asked.items()}


def _exists(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _munge(settings: Settings) -> str:
    """Return why this user's own credential can't be made and read here; "" if it can."""
    munge = Munge(settings.daemon.munge_socket)
    try:
        munge.decode(munge.encode(_PROOF, os.getuid(), _TTL_S))
    except SlicewiseError as error:
        return error.refusal.message
    return ""


def _client_ports() -> tuple[int, int] | None:
    with suppress(OSError, ValueError):
        first, last = (_IPV4 / "ip_local_port_range").read_text(encoding="ascii").split()
        return int(first), int(last)
    return None


def _kept_ports() -> frozenset[int]:
    with suppress(OSError, SlicewiseError):
        text = (_IPV4 / "ip_local_reserved_ports").read_text(encoding="ascii").strip()
        return frozenset(numbers(text))
    return frozenset()


def missing_programs(pythons: Iterable[str]) -> tuple[str, ...]:
    """Return which programs that a replica's script runs are not on PATH here."""
    wanted = (*dict.fromkeys(pythons), *_NODE_PROGRAMS)
    return tuple(name for name in wanted if shutil.which(name) is None)


def user_namespaces() -> int | None:
    """Return how many namespaces this host's users may make; None if it does not say."""
    with suppress(OSError, ValueError):
        return int(_NAMESPACES.read_text(encoding="ascii"))
    return None
