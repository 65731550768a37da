"""TLS connections on which a bounded number of bytes is read, in small steps.

A tenant controls what a replica sends, within TLS, too. An event loop's own TLS would process all
of it, 256 KiB at a time. A session to resume takes 18 bytes and 3 microseconds, and there may be
millions.
"""

import asyncio
from asyncio import IncompleteReadError, StreamReader, StreamWriter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from ssl import MemoryBIO, SSLContext, SSLEOFError, SSLWantReadError
from typing import TypeVar

_Result = TypeVar("_Result")

_STEP_BYTES = 4096
_BESIDE_BYTES = 24 * 1024
"""Bytes allowed beside the answer: handshake, certificates and heads."""


class TooLongError(ValueError):
    """The other side was about to send more than is read."""

    def __init__(self, most_bytes: int) -> None:
        super().__init__(f"an answer of more than {most_bytes} bytes")


class NotLetInError(ConnectionError):
    """The other side has ended the connection as soon as it knew who asks."""


class BoundedTls:
    """A TLS connection; ``shake_hands`` comes first.

    Each call raises OSError for what is no TLS, or is not accepted by the context; reading raises
    NotLetInError if the other side does not accept us.
    """

    def __init__(
        self, reader: StreamReader, writer: StreamWriter, context: SSLContext, most_bytes: int
    ) -> None:
        self._reader, self._writer = reader, writer
        self.allow(most_bytes)
        self._come, self._go = MemoryBIO(), MemoryBIO()
        self._tls = context.wrap_bio(self._come, self._go)
        self._read = bytearray()
        self._is_let_in = True

    def allow(self, most_bytes: int) -> None:
        """Let the next answer have ``most_bytes``."""
        self._most_bytes = most_bytes
        # Twice as much, as records may be small, and each has 22 bytes beside its content.
        self._left = 2 * most_bytes + _BESIDE_BYTES

    async def shake_hands(self) -> None:
        """Do the handshake; raises OSError unless the other side is the one that is expected.

        By TLS 1.3 the other side looks later who we are. It then sends sessions to resume, or ends.
        """
        await self._done(self._tls.do_handshake)
        self._is_let_in = False

    @property
    def protocol(self) -> str:
        """The protocol that both sides have chosen by ALPN; "" is none."""
        return self._tls.selected_alpn_protocol() or ""

    async def write(self, data: bytes) -> None:
        """Send ``data``; wait while the other side does not read."""
        self._tls.write(data)
        await self._flush()

    async def until(self, end: bytes, most_bytes: int) -> bytes:
        """Return what comes up to and with ``end``; raises TooLongError, IncompleteReadError."""
        while (place := self._read.find(end)) < 0:
            if len(self._read) > most_bytes:
                raise TooLongError(most_bytes)
            await self._more(None)
        return self._taken(place + len(end))

    async def exactly(self, count: int) -> bytes:
        """Return ``count`` bytes; raises TooLongError, IncompleteReadError."""
        while len(self._read) < count:
            await self._more(count)
        return self._taken(count)

    async def part(self) -> bytes:
        """Return what has come, or comes next; raises TooLongError, IncompleteReadError."""
        if not self._read:
            await self._more(None)
        return self._taken(len(self._read))

    async def rest(self, most_bytes: int) -> bytes:
        """Return all bytes until the connection ends; raises TooLongError."""
        try:
            while len(self._read) <= most_bytes:
                await self._more(None)
        except IncompleteReadError as ended:
            return ended.partial
        raise TooLongError(most_bytes)

    def _taken(self, count: int) -> bytes:
        data = bytes(self._read[:count])
        del self._read[:count]
        return data

    async def _more(self, expected: int | None) -> None:
        try:
            part = await self._done(lambda: self._tls.read(_STEP_BYTES))
        except SSLEOFError:
            # The connection ended without TLS's closing message.
            part = b""
        except ConnectionError:
            if self._is_let_in:
                raise
            part = b""
        if not (part or self._is_let_in):
            raise NotLetInError
        if not part:
            raise IncompleteReadError(self._taken(len(self._read)), expected)
        self._read += part

    async def _done(self, call: Callable[[], _Result]) -> _Result:
        while True:
            try:
                result = call()
            except SSLWantReadError:
                await self._flush()
                await self._feed()
            else:
                await self._flush()
                return result

    async def _feed(self) -> None:
        if not self._left:
            raise TooLongError(self._most_bytes)
        # Other replicas are asked meanwhile, even if bytes have already come.
        await asyncio.sleep(0)
        part = await self._reader.read(min(_STEP_BYTES, self._left))
        self._left -= len(part)
        if part:
            self._is_let_in = True
            self._come.write(part)
        else:
            self._come.write_eof()

    async def _flush(self) -> None:
        if self._go.pending:
            self._writer.write(self._go.read())
            await self._writer.drain()


@asynccontextmanager
async def connected(
    address: str, port: int, context: SSLContext, most_bytes: int
) -> AsyncIterator[BoundedTls]:
    """Open a connection on which about twice ``most_bytes`` are read at most, whatever they are.

    Raises OSError, and TooLongError for a handshake that is longer.
    """
    reader, writer = await asyncio.open_connection(address, port, limit=_STEP_BYTES)
    try:
        tls = BoundedTls(reader, writer, context, most_bytes)
        await tls.shake_hands()
        yield tls
    finally:
        writer.transport.abort()
