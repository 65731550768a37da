"""Tests of a call of gRPC: what is sent, and what a server may answer."""

from asyncio import IncompleteReadError
from collections.abc import Callable, Sequence
from typing import cast

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, RequestReceived, StreamEnded
from hypothesis import given
from hypothesis import strategies as st

from slicewise.launcher.probing.bounded_tls import BoundedTls
from slicewise.launcher.probing.grpc_call import CallStatus, called

PATH, MESSAGE = "/a.B/C", b"\x12\x01m"
WELL = ((":status", "200"), ("content-type", "application/grpc"))
Answer = Callable[[H2Connection], None]


class Server:
    """The other end of the connection: it answers once it has the whole call."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._http2 = H2Connection(H2Configuration(client_side=False))
        self._http2.initiate_connection()
        self.events: list[Event] = []

    async def write(self, data: bytes) -> None:
        events = self._http2.receive_data(data)
        self.events += events
        if any(isinstance(event, StreamEnded) for event in events):
            self._answer(self._http2)

    async def part(self) -> bytes:
        if sent := self._http2.data_to_send():
            return sent
        raise IncompleteReadError(b"", None)


class Stranger(Server):
    """One that sends these bytes and ends."""

    def __init__(self, sent: bytes) -> None:
        super().__init__(lambda _http2: None)
        self._sent = sent

    async def part(self) -> bytes:
        sent, self._sent = self._sent, b""
        if sent:
            return sent
        raise IncompleteReadError(b"", None)


async def result(server: Server) -> CallStatus:
    return await called(cast("BoundedTls", server), PATH, MESSAGE)


def ended(trailers: Sequence[tuple[str, str]]) -> Answer:
    def answer(http2: H2Connection) -> None:
        http2.ping(b"12345678")
        http2.send_headers(1, WELL)
        http2.send_data(1, b"\0\0\0\0\0")
        http2.send_headers(1, trailers, end_stream=True)

    return answer


async def test_what_is_sent_is_a_call_of_one_message():
    server = Server(ended((("grpc-status", "0"),)))
    assert await result(server) == CallStatus(0, "")
    (request,) = (event for event in server.events if isinstance(event, RequestReceived))
    headers = dict(request.headers)
    assert (headers[b":method"], headers[b":path"]) == (b"POST", PATH.encode())
    assert (headers[b"content-type"], headers[b"te"]) == (b"application/grpc", b"trailers")
    data = b"".join(event.data for event in server.events if isinstance(event, DataReceived))
    assert data == b"\0\0\0\0\x03" + MESSAGE


@pytest.mark.parametrize("message", ["no weights: 5%25", 1000 * "w"])
async def test_a_refusal_has_its_reason(message: str):
    trailers = (("grpc-status", "13"), ("grpc-message", message))
    expected = CallStatus(13, message.replace("%25", "%"))
    assert await result(Server(ended(trailers))) == expected
    at_once = Server(lambda http2: http2.send_headers(1, (*WELL, *trailers), end_stream=True))
    assert await result(at_once) == expected


@pytest.mark.parametrize(
    "answer",
    [
        lambda http2: http2.reset_stream(1),
        lambda http2: http2.close_connection(),
        ended((("x", "1"),)),
        ended((("grpc-status", "x"),)),
        ended((("grpc-status", 5000 * "1"),)),
    ],
    ids=["reset", "closed", "no status", "a word", "too long a number"],
)
async def test_what_is_no_answer_of_grpc_is_refused(answer: Answer):
    with pytest.raises(ValueError, match=r"call was given up|status of gRPC"):
        await result(Server(answer))


async def test_headers_without_bounds_are_refused():
    headers = tuple((f"a{number}", 4000 * "w") for number in range(40))
    with pytest.raises(ValueError, match="no answer of gRPC"):
        await result(Server(ended((("grpc-status", "0"), *headers))))


@given(st.binary(max_size=64))
async def test_any_bytes_are_no_answer(sent: bytes):
    with pytest.raises((ValueError, IncompleteReadError)):
        await result(Stranger(sent))
