"""Writes and reads the frames of one unary call of gRPC, as strictly as a server must be read.

HTTP/2 is RFC 9113, its headers' compression RFC 7541, gRPC over it
https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md. The answer's message is not read:
a call says by its status what came of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import unquote

PROTOCOL = "h2"
"""The name by which ALPN calls HTTP/2."""
HEAD_BYTES = 9
"""Bytes of a frame's head."""
MOST_FRAME_BYTES = 16_384
"""Bytes of a frame beside its head, at most: nobody has agreed on more."""
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _CONTINUATION = 0, 1, 3, 4, 6, 7, 9
_END_STREAM = _ACK = 1
_END_HEADERS = 4
_PADDED_OR_PRIORITY = 0x28
_STREAM = 1
# No table of headers that were sent before, and no pushed answers.
_OUR_SETTINGS = bytes((0, 1, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0))
_METHOD_POST, _SCHEME_HTTPS = 0x83, 0x87
_PATH, _AUTHORITY, _NEW_NAME = 4, 1, 0
_STATIC_HEADERS = 61
_LONGEST_TEXT = 0x7E
_LONGEST_NUMBER_BITS = 28
_MORE, _REST = 0x80, 0x7F
_INDEXED, _NEW, _SIZE_MASK, _SIZE = 0x80, 0x40, 0xE0, 0x20
"""How a header's first byte begins: it stands in a table, is new to it, or is the table's size."""


@dataclass(frozen=True)
class CallFrame:
    """The head of a frame: what follows has ``length`` bytes."""

    type_code: int
    flags: int
    stream: int
    length: int


@dataclass(frozen=True)
class CallStatus:
    """How a call has ended: 0 is well; else ``message`` says why."""

    code: int
    message: str


def opening(path: str, message: bytes) -> bytes:
    """Return all that a client sends for a call, whose message is a Protobuf's bytes."""
    headers = bytes((_METHOD_POST, _SCHEME_HTTPS))
    headers += bytes((_PATH,)) + _text(path.encode("ascii"))
    headers += bytes((_AUTHORITY,)) + _text(b"localhost")
    for name, value in ((b"content-type", b"application/grpc"), (b"te", b"trailers")):
        headers += bytes((_NEW_NAME,)) + _text(name) + _text(value)
    return b"".join(
        (
            _PREFACE,
            _frame(_SETTINGS, 0, 0, _OUR_SETTINGS),
            _frame(_HEADERS, _END_HEADERS, _STREAM, headers),
            _frame(_DATA, _END_STREAM, _STREAM, b"\0" + len(message).to_bytes(4, "big") + message),
        )
    )


def frame(head: bytes) -> CallFrame:
    """Read a frame's head; raises ValueError for one that is too long."""
    length = int.from_bytes(head[:3], "big")
    if length > MOST_FRAME_BYTES:
        raise ValueError(f"a frame of {length} bytes")
    return CallFrame(head[3], head[4], int.from_bytes(head[5:], "big") & 0x7FFFFFFF, length)


def reply(frame: CallFrame, payload: bytes) -> bytes:
    """Return what has to be sent for a frame; b"" is nothing."""
    if frame.type_code in {_SETTINGS, _PING} and not frame.flags & _ACK:
        return _frame(frame.type_code, _ACK, 0, payload if frame.type_code == _PING else b"")
    return b""


def status(frame: CallFrame, payload: bytes) -> CallStatus | None:
    """Return how the call has ended by this frame; None if it goes on.

    Raises ValueError if the server gives the call up, or says what servers of gRPC do not say.
    """
    if frame.type_code in {_GOAWAY, _RESET}:
        raise ValueError("the call was given up")
    if frame.type_code == _CONTINUATION or (
        frame.type_code == _HEADERS
        and (frame.flags & _PADDED_OR_PRIORITY or not frame.flags & _END_HEADERS)
    ):
        raise ValueError("headers in several parts")
    is_last = frame.type_code == _HEADERS and frame.flags & _END_STREAM
    if frame.stream != _STREAM or not is_last:
        return None
    headers = dict(_headers(payload))
    code = headers.get(b"grpc-status", b"")
    if not code.isdigit():
        raise ValueError("an answer without a status")
    return CallStatus(
        int(code), unquote(headers.get(b"grpc-message", b"").decode("ascii", "replace"))
    )


def _frame(type_code: int, flags: int, stream: int, payload: bytes) -> bytes:
    length = len(payload).to_bytes(3, "big")
    return length + bytes((type_code, flags)) + stream.to_bytes(4, "big") + payload


def _text(value: bytes) -> bytes:
    if len(value) > _LONGEST_TEXT:
        raise ValueError(f"a header of {len(value)} bytes")
    return bytes((len(value),)) + value


class _Block:
    """A block of headers while it is read."""

    def __init__(self, block: bytes) -> None:
        self._left = memoryview(block)

    def __bool__(self) -> bool:
        return bool(self._left)

    def byte(self) -> int:
        if not self._left:
            raise ValueError("headers without an end")
        first, self._left = self._left[0], self._left[1:]
        return first

    def number(self, first: int, bits: int) -> int:
        """Read an integer that begins in the last ``bits`` of ``first``."""
        most = (1 << bits) - 1
        number, shift = first & most, 0
        if number < most:
            return number
        while shift < _LONGEST_NUMBER_BITS:
            part = self.byte()
            number += (part & _REST) << shift
            shift += 7
            if part < _MORE:
                return number
        raise ValueError("a number without an end")

    def text(self) -> bytes:
        """Read a text; raises ValueError for Huffman's code, which servers of gRPC do not use."""
        first = self.byte()
        length = self.number(first, 7)
        if first & _MORE or length > len(self._left):
            raise ValueError("a header that can't be read")
        text, self._left = bytes(self._left[:length]), self._left[length:]
        return text


def _headers(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield headers by name; of those whose names stand in HTTP/2's own table none is needed."""
    left = _Block(block)
    while left:
        first = left.byte()
        if first & _INDEXED:
            left.number(first, 7)
        elif first & _SIZE_MASK == _SIZE:
            left.number(first, 5)
        else:
            name = left.number(first, 6 if first & _NEW else 4)
            if name > _STATIC_HEADERS:
                raise ValueError("a header that was not sent")
            yield b"" if name else left.text(), left.text()
