"""Looks at the page of this host: who answers, and the files that it must read."""

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from slicewise.cluster.language.file_access import Need, Right
from slicewise.cluster.language.host_findings import OWN_PROGRAMS, Holder, held_by_others
from slicewise.cluster.rpc.exchange import exchange
from slicewise.cluster.runtime.host_look import holders, person, way_to
from slicewise.cluster.settings.file import WebSettings, host_and_port, is_loopback
from slicewise.slurm_plugin.rules.site.facts import Answerer, WebFacts

_PATIENCE_S = 3.0


def page_facts(web: WebSettings, gateway_url: str, server: str) -> WebFacts:
    """Return what is to be checked of the page; ``server`` is what its server calls itself.

    Raises PermissionError if the user who asks can't read a file of the page.
    """
    for file in _files(web):
        with suppress(FileNotFoundError):
            file.open("rb").close()
    answered, there = _answer(web, server), holders([host_and_port(web.listen)[1]])
    held_by = _held_by(web, answered, there)
    if held_by:  # Whoever listens there in the page's place answers for it, also by silence.
        answered = "another"
    elif there and answered == "another":  # Only systemd listens there, or a page that fails.
        answered = "nobody"
    return WebFacts(
        listen=web.listen,
        user=web.user,
        has_user=person(web.user) is not None,
        answered=answered,
        held_by=held_by,
        needs=tuple(_needs(web)),
        is_plain=_is_plain(web),
        shared_name=_shared_name(web, gateway_url),
    )


def _answer(web: WebSettings, server: str) -> Answerer:
    """Return who answers there, within a while: any user may listen at a port that is free."""
    until_s, headers = time.monotonic() + _PATIENCE_S, {"Host": urlsplit(web.address).netloc}
    place = host_and_port(web.listen)
    try:
        with exchange(place, "GET", "/login", b"", until_s, headers=headers) as answer:
            return "page" if answer.headers.get("Server") == server else "another"
    except OSError:  # Also where systemd holds the port, and closes what came to a page that fails.
        return "nobody"
    except HTTPException:
        return "another"


def _held_by(web: WebSettings, answered: Answerer, there: Iterable[Holder]) -> str:
    """Return who listens in the page's place: any user's program can answer as the page does."""
    programs = ("",) if answered == "page" else (*OWN_PROGRAMS, "systemd")
    place, users = host_and_port(web.listen), {"root", web.user}
    return next((holder.text for holder in held_by_others(there, *place, users, programs)), "")


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


def _files(web: WebSettings) -> Iterator[Path]:
    files = (web.proxy_secret_file, web.oidc.client_secret_file)
    yield from filter(None, files)


def _needs(web: WebSettings) -> Iterator[Need]:
    """Yield what the page's user must read; nothing if this host has no such user."""
    if (user := person(web.user)) is None:
        return
    why = "the page's server does not start, or will not start again"
    for file in _files(web):
        yield Need(way_to(file), user, Right.READ, why)
