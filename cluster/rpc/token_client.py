"""Asks a daemon on another host by https; a token of Slurm says which user asks.

The token goes to nobody but who shows a certificate that this host believes. It is in no argument,
no file and no log.
"""

import os
import re
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from http import HTTPStatus
from http.client import HTTPResponse
from pathlib import Path
from threading import Lock

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, OutsideError
from slicewise.cluster.rpc import exchange as http
from slicewise.cluster.runtime.tls import CURVE
from slicewise.cluster.settings.file import DaemonSettings, host_and_port

_VARIABLE = "SLURM_JWT"
_TOKEN = re.compile(r"[\w-]{1,2048}\.[\w-]{1,1536}\.[\w-]{1,256}", re.ASCII)
_LIFESPAN_S = 300
"""Of a token that is made here; who asks again within half of it uses it again."""
_SAID_LIMIT = 300
_HOSTS_FILE = ssl.get_default_verify_paths().openssl_cafile


@contextmanager
def exchange(
    settings: DaemonSettings, place: str, method: str, target: str, body: bytes, *, until_s: float
) -> Iterator[HTTPResponse]:
    """Send a request to ``place``, one of ``connect``, as the user of this process.

    Raises what ``rpc.exchange`` raises; InvalidInputError (SW-TOKEN) if there is no token,
    OutsideError (SW-SETTINGS) if ``certificate_authority`` can't be read.
    """
    trust = trust_of(settings)
    token = _tokens.token(until_s)
    headers = {
        "Content-Type": "application/json",
        "Connection": "close",
        "Authorization": f"Bearer {token}",
    }
    where = host_and_port(place)
    with http.exchange(
        *(where, method, target, body, until_s), headers=headers, tls_to=where[0], trust=trust
    ) as response:
        if response.status == HTTPStatus.UNAUTHORIZED:
            _tokens.forget(token)
        yield response


def trust_of(settings: DaemonSettings) -> ssl.SSLContext:
    """Whom commands of this host believe to be the daemon. Raises OutsideError (SW-SETTINGS)."""
    trusted = settings.certificate_authority
    try:
        return _trust(trusted, _changed_ns(trusted or Path(_HOSTS_FILE)))
    except OSError as error:
        is_read = isinstance(error, ssl.SSLError)
        why = "no PEM file with certificates" if is_read else error.strerror
        raise OutsideError(
            Code.SETTINGS,
            f"daemon.certificate_authority: {trusted}: {why}.",
            "Put there what signs daemon.certificate, readable by every user of this host.",
        ) from None


@lru_cache(maxsize=1)
def _trust(trusted: Path | None, changed_ns: int) -> ssl.SSLContext:  # noqa: ARG001 -- of the key
    """Read once for each state of the file: what a host trusts takes 40 ms."""
    trust = ssl.create_default_context(cafile=trusted)
    trust.minimum_version = ssl.TLSVersion.TLSv1_3
    trust.set_ecdh_curve(CURVE)
    return trust


def _changed_ns(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0


class _OwnTokens:
    """Tokens of the user who runs this process: that of SLURM_JWT, else one that Slurm makes."""

    def __init__(self) -> None:
        self._made = ""
        self._renew_s = 0.0
        self._lock = Lock()

    def token(self, until_s: float) -> str:
        """A token that is valid for some time yet. Raises InvalidInputError (SW-TOKEN)."""
        given = os.environ.get(_VARIABLE, "")
        # Servers of Slurm have the word ``daemon`` there.
        if _TOKEN.fullmatch(given):
            return given
        with self._lock:
            now_s = time.monotonic()
            if not self._made or now_s >= self._renew_s:
                self._made, self._renew_s = _made(until_s), now_s + _LIFESPAN_S / 2
            return self._made

    def forget(self, token: str) -> None:
        """Make another at the next question: the daemon refused this one."""
        with self._lock:
            if self._made == token:
                self._made = ""


_tokens = _OwnTokens()


def _made(until_s: float) -> str:
    environment = {name: text for name, text in os.environ.items() if name != _VARIABLE}
    try:
        done = subprocess.run(
            ("scontrol", "token", f"lifespan={_LIFESPAN_S}"),
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=http.left_s(until_s),
            env=environment,
            stdin=subprocess.DEVNULL,
        )
    except OSError:
        raise _none("scontrol can't be run on this host") from None
    except subprocess.TimeoutExpired:
        raise _none("scontrol did not end in time") from None
    token = done.stdout.strip().removeprefix(f"{_VARIABLE}=")
    if done.returncode or not _TOKEN.fullmatch(token):
        said = "".join(sign for sign in done.stderr.strip() if sign.isprintable())
        raise _none(f"scontrol token made none: {said[:_SAID_LIMIT]!r}")
    return token


def _none(why: str) -> InvalidInputError:
    return InvalidInputError(
        Code.TOKEN,
        f"There is no token of Slurm's to ask the daemon on another host with: {why}.",
        f"Set {_VARIABLE} to one that an operator has made for you; slurm.conf needs"
        " AuthAltTypes=auth/jwt.",
    )
