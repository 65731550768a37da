"""One HTTP request and its response, within a deadline, by the standard library.

Commands import this: aiohttp would take longer to import than all the rest of a command.
"""

import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

Place = Path | tuple[str, int]
"""A Unix socket, or a host and a port."""

_HEADERS = {"Content-Type": "application/json", "Connection": "close"}


class UnsentError(OSError):
    """No connection was made, so nothing was sent; ``__cause__`` says why."""


class _Deadline(socket.socket):
    """A socket that waits until a deadline in all, however slowly the peer sends."""

    until_s = 0.0

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        """Read; raises TimeoutError at the deadline."""
        self.settimeout(left_s(self.until_s))
        return super().recv_into(buffer, nbytes or 0, flags)


class _TlsSocket(_Deadline, ssl.SSLSocket):
    """The same with TLS."""


def left_s(until_s: float) -> float:
    """Seconds until the deadline; TimeoutError if there are none."""
    left = until_s - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


@contextmanager
def exchange(
    place: Place,
    method: str,
    target: str,
    body: bytes,
    until_s: float,
    *,
    headers: Mapping[str, str] = _HEADERS,
    tls_to: str | None = None,
    trust: ssl.SSLContext | None = None,
) -> Iterator[HTTPResponse]:
    """Send a request; the response's body is to be read inside.

    With ``tls_to``, the name of a host, TLS is spoken: with who ``trust`` believes to be that host,
    without it with whatever certificate is shown. Raises
    UnsentError if no connection is made, OSError, TimeoutError at ``until_s`` (of the monotonic
    clock), and HTTPException for what is no HTTP, or has more headers than 100 lines of 64 KiB.
    """
    connection = HTTPConnection("localhost")
    with closing(connection):
        try:
            connection.sock = _connected(place, until_s)
            if tls_to is not None:
                connection.sock = _with_tls(connection.sock, tls_to, trust or _anybody(), until_s)
        except (OSError, UnicodeError) as error:
            raise UnsentError from error
        # What is busy answers and closes before it has read the request.
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.request(method, target, body or None, dict(headers))
        yield connection.getresponse()


def _anybody() -> ssl.SSLContext:
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    return anybody


def _with_tls(plain: socket.socket, host: str, trust: ssl.SSLContext, until_s: float) -> _TlsSocket:
    trust.sslsocket_class = _TlsSocket
    made = trust.wrap_socket(plain, server_hostname=host or None)
    assert isinstance(made, _TlsSocket)  # noqa: S101 -- as the context was told
    made.until_s = until_s
    return made


def _connected(place: Place, until_s: float) -> _Deadline:
    if isinstance(place, Path):
        made = _Deadline(socket.AF_UNIX, socket.SOCK_STREAM)
    else:
        plain = socket.create_connection(place, left_s(until_s))
        made = _Deadline(fileno=plain.detach())
    made.until_s = until_s
    try:
        made.settimeout(left_s(until_s))
        if isinstance(place, Path):
            made.connect(str(place))
    except OSError:
        made.close()
        raise
    return made
