"""One unary call of gRPC on a connection to a replica, read as strictly as any stranger.

gRPC over HTTP/2: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md. The answer's
message is not read: a call says by its status what came of it.
"""

from dataclasses import dataclass
from urllib.parse import unquote

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import ProtocolError

from slicewise.launcher.probing.bounded_tls import BoundedTls

PROTOCOL = "h2"
"""The name by which ALPN calls HTTP/2."""


@dataclass(frozen=True)
class CallStatus:
    """How a call has ended: 0 is well; else ``message`` says why."""

    code: int
    message: str


async def called(tls: BoundedTls, path: str, message: bytes) -> CallStatus:
    """Call ``path`` with a Protobuf's bytes, and wait for its end.

    Raises OSError, IncompleteReadError and TooLongError as the connection does, and ValueError if
    the server gives the call up or says what servers of gRPC do not say.
    """
    connection = H2Connection(H2Configuration(client_side=True, header_encoding=None))
    connection.initiate_connection()
    stream = connection.get_next_available_stream_id()
    connection.send_headers(
        stream,
        (
            (":method", "POST"),
            (":scheme", "https"),
            (":path", path),
            (":authority", "localhost"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
        ),
    )
    connection.send_data(stream, b"\0" + len(message).to_bytes(4, "big") + message, end_stream=True)
    headers = dict[bytes, bytes]()
    while True:
        await tls.write(connection.data_to_send())
        try:
            events = connection.receive_data(await tls.part())
        except ProtocolError as error:
            raise ValueError(f"no answer of gRPC: {error!r}") from error
        for event in events:
            match event:
                case ConnectionTerminated() | StreamReset():
                    raise ValueError("the call was given up")
                case ResponseReceived() | TrailersReceived():
                    # A call that fails at once has its status in the first headers.
                    headers |= {bytes(name): bytes(value) for name, value in event.headers}
                case StreamEnded():
                    return _status(headers)
                case _:
                    pass


def _status(headers: dict[bytes, bytes]) -> CallStatus:
    code = headers.get(b"grpc-status", b"")
    if not (code.isdigit() and len(code) <= _CODE_DIGITS):
        raise ValueError("an answer without a status of gRPC")
    message = headers.get(b"grpc-message", b"").decode("ascii", "replace")
    return CallStatus(int(code), unquote(message))


_CODE_DIGITS = 9
