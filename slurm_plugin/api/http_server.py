"""Serves HTTP by aiohttp, one request per connection, within limits that hold whoever connects.

aiohttp has no limit on connections, on the time that a question may take, or on the time in which
an answer must be read: these are kept here, at the connection. What it can't parse is refused like
everything else.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol

from aiohttp import web

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import Refusal
from slicewise.slurm_plugin.common.log import report_failure
from slicewise.slurm_plugin.common.sockets import BACKLOG, BUSY, failure, too_long

_HEAD_BYTES = 32 * 1024
"""Most bytes of a request line and headers, with room to spare."""
_LINGER_S = 0.5
"""Seconds for which a refused peer may go on sending: closing with unread bytes would reset the
connection, and the refusal would be lost."""
_SILENT = logging.getLogger("slicewise.http")
"""aiohttp's own log: anything that can connect could fill it."""
_SILENT.setLevel(logging.CRITICAL + 1)


@dataclass(frozen=True)
class HttpLimits:
    """Limits of one connection.

    Attributes:
        question_s: seconds from the connection to the end of its question.
        answer_s: seconds from an answer's beginning until it is read.
        body_bytes: most bytes of a question's body; a longer one is refused unread.
        refused: most connections that are told at one time why they are refused; further ones are
            closed.
    """

    question_s: float
    answer_s: float
    body_bytes: int
    refused: int


class Places(Protocol):
    """Decides which connections may stay; it may drop others for a new one."""

    def enter(self, connection: "Connection") -> bool:
        """Whether there is room for a new connection."""

    def busy(self, connection: "Connection") -> None:
        """Note that the connection's question is there."""

    def idle(self, connection: "Connection") -> None:
        """Note that the answer is ready: the connection lasts until the peer has read it."""

    def leave(self, connection: "Connection") -> None:
        """Free the place, if the connection still has one."""


@dataclass(frozen=True)
class Question:
    """A whole request, and the connection that it came by."""

    request: web.BaseRequest
    body: bytes
    connection: "Connection"


Handle = Callable[[Question], Awaitable[web.StreamResponse]]
"""Answers a question. It calls ``connection.answers`` before it writes."""


class HttpServer:
    """Serves one socket. ``no_question`` gives the refusal of what is no HTTP request."""

    def __init__(
        self,
        places: Places,
        handle: Handle,
        limits: HttpLimits,
        no_question: Callable[["Connection"], Refusal],
    ) -> None:
        self.places = places
        self.limits = limits
        self.no_question = no_question
        self.refused: set[Connection] = set()
        self._handle = handle
        self.tls: ssl.SSLContext | None = None
        self.open: set[Connection] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._listening: asyncio.Server | None = None

    async def start_unix(self, listener: socket.socket) -> None:
        """Listen on a bound Unix socket."""
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_unix_server(
            self._connection_maker(), sock=listener, backlog=BACKLOG
        )

    async def start_tcp(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        """Listen on a TCP port; raises OSError if it can't be.

        A connection has its place, and its time for a question runs, from when it is accepted:
        asyncio's own servers with TLS see it only once its handshake is done.
        """
        loop = asyncio.get_running_loop()
        self.tls = tls
        self._listening = await loop.create_server(
            self._connection_maker(), host, port, backlog=BACKLOG
        )

    async def start_held(self, listener: socket.socket) -> None:
        """Listen on a TCP port that is held open already."""
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_server(
            self._connection_maker(), sock=listener, backlog=BACKLOG
        )

    async def stop(self) -> None:
        """Stop listening, and end every connection and its handler."""
        if self._listening is not None:
            self._listening.close()
        for connection in tuple(self.open):
            connection.drop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Do that beside everything else, until the server stops."""
        self._end_with_this(asyncio.get_running_loop().create_task(work))

    def _end_with_this(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _connection_maker(self) -> Callable[[], "Connection"]:
        manager = web.Server(self._answer, request_factory=self._request)
        return lambda: Connection(self, manager)

    def _request(self, *parts: Any) -> web.BaseRequest:
        loop = asyncio.get_running_loop()
        message, payload, protocol, writer, task = parts
        return web.BaseRequest(
            *(message, payload, protocol, writer, task, loop),
            client_max_size=self.limits.body_bytes,
        )

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        assert isinstance(connection, Connection)  # noqa: S101 -- the maker makes no other
        task: asyncio.Task[Any] | None = asyncio.current_task()
        assert task is not None  # noqa: S101 -- a coroutine has one
        self._end_with_this(task)
        try:
            body = await request.read()
        except web.HTTPRequestEntityTooLarge:
            return connection.refuse(too_long(self.limits.body_bytes), _TOO_LARGE)
        connection.asks()
        try:
            response = await self._handle(Question(request, body, connection))
        finally:
            connection.rests()
        response.force_close()
        response.headers["Server"] = SERVER
        return response


SERVER = "slicewise"
"""In place of the names and versions of Python and aiohttp."""
_TOO_LARGE = HTTPStatus.REQUEST_ENTITY_TOO_LARGE


class Connection(web.RequestHandler):
    """One connection, which takes one question.

    While its handler works, the connection keeps its place, even if the peer goes: otherwise a peer
    that asks and goes could have any number of handlers work.

    Attributes:
        gone: set when the connection has ended.
    """

    __slots__ = (
        "_deadline",
        "_early",
        "_has_asked",
        "_plain",
        "_received",
        "_server",
        "_works",
        "gone",
        "wire",
    )

    def __init__(self, server: HttpServer, manager: web.Server) -> None:
        super().__init__(
            manager,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=0,
            access_log=_SILENT,
            logger=_SILENT,
            lingering_time=_LINGER_S,
            auto_decompress=False,
        )
        self._server = server
        self._received = 0
        self._early: bytearray | None = None
        self._has_asked = self._works = False
        self.gone = asyncio.Event()
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def address(self) -> str:
        """The peer's numeric address; "" if it has none."""
        return str((self.wire.get_extra_info("peername") or ("",))[0])

    @property
    def is_open(self) -> bool:
        """Whether the peer is still there."""
        return self in self._server.open

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection, if there is a place for it."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 -- a stream's is one
        # That of TLS can't be aborted once it is closed.
        self.wire = self._plain = transport
        self._server.open.add(self)
        if not self._server.places.enter(self):
            if self._server.tls is None:
                self.refuse(BUSY, HTTPStatus.SERVICE_UNAVAILABLE)
            else:  # A word would take a handshake.
                self.drop()
            return
        self._wait(self._server.limits.question_s)
        if self._server.tls is None:
            super().connection_made(transport)
        else:
            # What is there already is for TLS to read.
            transport.pause_reading()
            self._early = bytearray()
            self._server.begin(self._speak_tls(transport, self._server.tls))

    async def _speak_tls(self, plain: asyncio.Transport, tls: ssl.SSLContext) -> None:
        limits, error = self._server.limits, None
        try:
            wire = await asyncio.get_running_loop().start_tls(
                *(plain, self, tls),
                server_side=True,
                ssl_handshake_timeout=limits.question_s,
                ssl_shutdown_timeout=_LINGER_S,
            )
        except OSError as raised:  # asyncio tells a protocol of its end only after a handshake.
            wire, error = None, raised
        except asyncio.CancelledError:
            plain.abort()
            wire = None
        if wire is None or wire.is_closing():
            self.connection_lost(error)
        else:
            self.wire, early, self._early = wire, self._early, None
            super().connection_made(wire)
            if early:
                self.data_received(bytes(early))

    def data_received(self, data: bytes) -> None:
        """Take a part of a question; more than the longest is refused unread.

        What follows a whole question is thrown away.
        """
        if self._has_asked or self in self._server.refused:
            return
        if self._early is not None:
            # asyncio passes on what came with the handshake before it says that TLS is there.
            self._early += data
            return
        self._received += len(data)
        if self._received > self._server.limits.body_bytes + _HEAD_BYTES:
            self.refuse(too_long(self._server.limits.body_bytes), _TOO_LARGE)
        else:
            super().data_received(data)

    def eof_received(self) -> bool:  # type: ignore[override]  # aiohttp always closes
        """Whether it stays open: while a handler works, its peer may still want the answer.

        With TLS it never does.
        """
        return self._works and self.wire.can_write_eof()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Free everything that the connection held."""
        self._wait(None)
        self.gone.set()
        self._server.open.discard(self)
        self._server.refused.discard(self)
        self._leave()
        super().connection_lost(exc)

    def asks(self) -> None:
        """Note that the question is there: how long its answer takes is not the peer's matter."""
        self._wait(None)
        self._has_asked = self._works = True
        self._server.places.busy(self)

    def answers(self) -> None:
        """Note that the answer is ready: from now on the peer must read it."""
        self.rests()
        if self._is_served():
            self._wait(self._server.limits.answer_s)
            self._server.places.idle(self)

    def streams(self) -> None:
        """Note that the answer goes on until the peer goes: the end of what it sends ends it."""
        self._works = False

    def rests(self) -> None:
        """Note that no handler works for the connection: its place is free if it has gone."""
        self._works = False
        if not self._is_served():
            self._leave()

    def drop(self) -> None:
        """Close the connection without an answer."""
        self._leave()
        self._plain.abort()

    def _is_served(self) -> bool:
        return self in self._server.open and self not in self._server.refused

    def _leave(self) -> None:
        if not self._works:
            self._server.places.leave(self)

    def refuse(self, refusal: Refusal, status: HTTPStatus) -> web.Response:
        """Say why without waiting for the question's end, give up the place, and close.

        The response that is returned goes nowhere: it ends a handler. A connection that has gone,
        or was refused before, is told nothing.
        """
        if not self._is_served():
            return web.Response()
        server, self.transport = self._server, None
        self._leave()
        if len(server.refused) >= server.limits.refused:
            self._plain.abort()
            return web.Response()
        server.refused.add(self)
        body = failure(refusal).model_dump_json().encode()
        self.wire.write(
            f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\n"
            "X-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
            + body
        )
        with suppress(OSError):  # The peer may be gone.
            if self.wire.can_write_eof():
                self.wire.write_eof()
        if not self.wire.is_reading():
            self.wire.resume_reading()
        self._wait(_LINGER_S)
        return web.Response()

    def handle_error(
        self,
        request: web.BaseRequest,  # noqa: ARG002 -- aiohttp's words
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002
    ) -> web.StreamResponse:
        """Refuse what aiohttp can't parse; an error of ours is logged, and its text is not sent."""
        if status == HTTPStatus.BAD_REQUEST or isinstance(exc, _PEERS_FAULTS):
            return self.refuse(self._server.no_question(self), HTTPStatus.BAD_REQUEST)
        self.log_exception(exc_info=exc)
        return self.refuse(_FAILED, HTTPStatus.INTERNAL_SERVER_ERROR)

    def log_exception(self, *_: object, exc_info: BaseException | None = None) -> None:
        """Log what went wrong in our own code as every other failure of the daemon."""
        report_failure("request_failed", exc_info or TimeoutError())

    def _wait(self, seconds: float | None) -> None:
        """Drop the connection after so many seconds, in place of what was set before."""
        if self._deadline is not None:
            self._deadline.cancel()
        loop = asyncio.get_running_loop()
        self._deadline = None if seconds is None else loop.call_later(seconds, self.drop)


_PEERS_FAULTS = (web.RequestPayloadError, OSError)
_FAILED = Refusal(Code.INTERNAL, "The daemon failed; its log says how.")
