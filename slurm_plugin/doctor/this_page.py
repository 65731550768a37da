"""Looks at the page of this host: who answers, and the files that it must read."""

import os
import pwd
from collections.abc import Iterator, Mapping
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from cluster.settings.file import WebSettings, host_and_port, is_loopback
from slurm_plugin.doctor.facts import Answerer, WebFacts

_PATIENCE_S = 3.0
_READ, _ENTER = 0o4, 0o1
_ACL = "system.posix_acl_access"


def page_facts(
    web: WebSettings, gateway_url: str, config: Mapping[str, str], server: str
) -> WebFacts:
    """Return what is to be checked of the page; ``server`` is what its server calls itself.

    ``config`` is slurm.conf as slurmctld has it, empty if it does not answer. Raises
    PermissionError if the user who asks can't read a file of the page.
    """
    for file in _files(web):
        with suppress(FileNotFoundError):
            file.open("rb").close()
    user = _user(web.user)
    return WebFacts(
        listen=web.listen,
        user=web.user,
        has_user=user is not None,
        answered=_answer(web, server),
        unread=tuple(_unread(web, user)) if user else (),
        is_plain=_is_plain(web),
        shared_name=_shared_name(web, gateway_url),
        tokens_by=str(web.slurm_jwt_key.resolve()) if web.slurm_jwt_key and config else "",
        slurms_tokens_by=_slurms_key(config),
        auth_alt={key: text for key, text in config.items() if key.startswith("AuthAlt")},
    )


def _answer(web: WebSettings, server: str) -> Answerer:
    """Return who answers there."""
    connection = HTTPConnection(*host_and_port(web.listen), timeout=_PATIENCE_S)
    try:
        connection.request("GET", "/login", headers={"Host": urlsplit(web.address).netloc})
        called = connection.getresponse().headers.get("Server")
    except (HTTPException, ConnectionResetError, BrokenPipeError):
        return "another"
    except OSError:
        return "nobody"
    finally:
        connection.close()
    return "page" if called == server else "another"


def _is_plain(web: WebSettings) -> bool:
    return urlsplit(web.address).scheme == "http" and not _is_here(_host(web.address))


def _shared_name(web: WebSettings, gateway_url: str) -> str:
    """Return the host of both addresses; on loopback they are for one person."""
    host = _host(web.address)
    return host if host == _host(gateway_url) and not _is_here(host) else ""


def _host(url: str) -> str:
    return (urlsplit(url).hostname or "").removesuffix(".")


def _is_here(host: str) -> bool:
    return is_loopback(f"[{host}]:1" if ":" in host else f"{host}:1")


# Files


def _user(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def _files(web: WebSettings) -> Iterator[Path]:
    files = (web.proxy_secret_file, web.oidc.client_secret_file)
    yield from filter(None, files)


def _unread(web: WebSettings, user: pwd.struct_passwd) -> Iterator[str]:
    """Yield the files that the page's user can't read, though they are there."""
    groups = frozenset(os.getgrouplist(user.pw_name, user.pw_gid))
    for file in _files(web):
        with suppress(OSError):
            path = file.resolve(strict=True)
            ways = ((path, _READ), *((parent, _ENTER) for parent in path.parents))
            if user.pw_uid and not all(
                _may(one, right, user.pw_uid, groups) for one, right in ways
            ):
                yield str(file)


def _may(path: Path, right: int, uid: int, groups: frozenset[int]) -> bool:
    found = path.stat()
    if _ACL in os.listxattr(path):
        return True  # It may: who is named there is not looked at.
    as_whom = 6 if found.st_uid == uid else 3 if found.st_gid in groups else 0
    return bool(found.st_mode >> as_whom & right)


# Slurm's tokens


def _slurms_key(config: Mapping[str, str]) -> str:
    """Return the file with which Slurm signs tokens; "" if it makes none."""
    if "auth/jwt" not in config.get("AuthAltTypes", "").split(","):
        return ""
    words = dict(one.partition("=")[::2] for one in config.get("AuthAltParameters", "").split(","))
    default = Path(config.get("StateSaveLocation", "/"), "jwt_hs256.key")
    return str(Path(words.get("jwt_key") or default).resolve())
