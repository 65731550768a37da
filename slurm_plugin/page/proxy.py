"""A reverse proxy that has logged its users in, and names them in a header of each request."""

import secrets
from collections.abc import Sequence
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Protocol

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, SlicewiseError
from slicewise.cluster.settings.file import WebSettings
from slicewise.slurm_plugin.rules.common.connection_places import origin_of

SECRET_HEADER = "X-Slicewise-Secret"  # noqa: S105 -- its name
_FORWARDED = "X-Forwarded-For"
_SHORTEST = 16


class Headers(Protocol):
    """The headers of a request."""

    def getall(self, key: str, default: Sequence[str]) -> Sequence[str]:
        """Every value of a header."""


class Proxy:
    """The site's proxies. Raises SlicewiseError (SW-SETTINGS) if their secret can't be read."""

    def __init__(self, settings: WebSettings) -> None:
        self._header = settings.proxy_header
        self._networks = settings.proxy_networks
        path = settings.proxy_secret_file
        self._secret = b"" if path is None else secret_in(path, "web.proxy_secret_file")

    def named(self, headers: Headers, peer: str) -> str | None:
        """The user whom a proxy names, None if none does.

        A header of a peer that is no proxy, or does not know the secret, is not overlooked: it is
        an attack, or a proxy that nobody set up. Raises InvalidInputError (SW-WEB-PROXY).
        """
        if not self._header or not (said := headers.getall(self._header, ())):
            return None
        if not self._is_proxy(peer):
            raise _refused(f"{peer or 'This peer'} is none of web.proxies, and names a user.")
        if not self._is_secret_in(headers):
            raise _refused(f"The proxy at {peer} does not know the secret of proxy_secret_file.")
        if len(said) > 1 or not said[0].strip():
            raise _refused(f"The proxy at {peer} names no user, or several.")
        return said[0]

    def visitor(self, headers: Headers, peer: str) -> str:
        """The host that a request is counted for: behind a proxy, whom the proxy had before it.

        Every user of the proxy's host connects from its address: the secret tells them apart.
        """
        is_proxys = self._is_proxy(peer) and self._is_secret_in(headers)
        known = headers.getall(_FORWARDED, ()) if is_proxys else ()
        address = known[-1].rpartition(",")[2].strip() if known else peer
        return origin_of(address).host

    def _is_secret_in(self, headers: Headers) -> bool:
        given = _bytes(headers.getall(SECRET_HEADER, ("",))[0])
        return bool(self._secret) and secrets.compare_digest(given, self._secret)

    def _is_proxy(self, peer: str) -> bool:
        try:
            found = ip_address(peer.partition("%")[0])
        except ValueError:
            return False
        if isinstance(found, IPv6Address):
            found = found.ipv4_mapped or found
        return any(found in network for network in self._networks)


def secret_in(path: Path, setting: str) -> bytes:
    """The secret in a file. Raises SlicewiseError (SW-SETTINGS) without one."""
    try:
        secret = path.read_bytes().strip()
    except OSError as error:
        raise SlicewiseError(
            Code.SETTINGS,
            f"{setting}: {path}: {error.strerror}.",
            "The web server's user must be able to read it.",
        ) from None
    if len(secret) < _SHORTEST:
        raise SlicewiseError(
            Code.SETTINGS,
            f"{setting}: {path} has {len(secret)} bytes, and needs {_SHORTEST} at least.",
            f"Make one: openssl rand -hex 32 > {path}",
        )
    return secret


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _refused(why: str) -> InvalidInputError:
    return InvalidInputError(
        Code.WEB_PROXY, why, "See web.proxies and web.proxy_secret_file in slicewise.toml"
    )
