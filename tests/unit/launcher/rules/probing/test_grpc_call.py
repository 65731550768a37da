"""Tests of the frames of a call of gRPC: what is sent, and what a server may answer."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.launcher.rules.probing import grpc_call
from slicewise.launcher.rules.probing.grpc_call import CallFrame, CallStatus

HEADERS, RESET, SETTINGS, PING, GOAWAY, CONTINUATION = 1, 3, 4, 6, 7, 9


def trailers(*headers: tuple[bytes, bytes]) -> bytes:
    """Headers with names of their own, as gRPC's own library sends them."""
    texts = (bytes((0x40, len(name))) + name + bytes((len(value),)) + value
             for name, value in headers)  # fmt: skip
    return b"".join(texts)


def last(block: bytes) -> CallFrame:
    return CallFrame(HEADERS, 5, 1, len(block))


def test_what_is_sent_is_a_call_of_one_message():
    sent = grpc_call.opening("/a.B/C", b"\x12\x01m")
    assert sent.startswith(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    frames, left = [], sent[24:]
    while left:
        frame = grpc_call.frame(left[: grpc_call.HEAD_BYTES])
        left = left[grpc_call.HEAD_BYTES :]
        frames.append((frame.type_code, frame.flags, frame.stream, left[: frame.length]))
        left = left[frame.length :]
    settings, headers, data = frames
    assert settings[:3] == (SETTINGS, 0, 0)
    assert headers[:3] == (HEADERS, 4, 1)
    assert b"\x04\x06/a.B/C" in headers[3]
    assert data == (0, 1, 1, b"\0\0\0\0\x03\x12\x01m")


def test_settings_and_pings_are_acknowledged_once():
    told = b"12345678"
    pong = b"\0\0\x08\x06\x01\0\0\0\0" + told
    assert grpc_call.reply(CallFrame(SETTINGS, 0, 0, 0), b"") == b"\0\0\0\x04\x01\0\0\0\0"
    assert grpc_call.reply(CallFrame(PING, 0, 0, 8), told) == pong
    assert grpc_call.reply(CallFrame(SETTINGS, 1, 0, 0), b"") == b""
    assert grpc_call.reply(CallFrame(PING, 1, 0, 8), b"12345678") == b""


def test_a_call_ends_with_its_status():
    # :status 200 and content-type stand in HTTP/2's own table; so may a size of the other one.
    block = bytes((0x20, 0x88, 0x5F, 16)) + b"application/grpc" + trailers((b"grpc-status", b"0"))
    assert grpc_call.status(last(block), block) == CallStatus(0, "")
    refused = trailers((b"grpc-status", b"13"), (b"grpc-message", b"no weights: 5%25"))
    assert grpc_call.status(last(refused), refused) == CallStatus(13, "no weights: 5%")
    long = trailers((b"grpc-status", b"13")) + b"\0\x0cgrpc-message\x7f\x49" + 200 * b"w"
    assert grpc_call.status(last(long), long) == CallStatus(13, 200 * "w")


@pytest.mark.parametrize(
    "frame",
    [
        CallFrame(HEADERS, 4, 1, 1),
        CallFrame(0, 1, 1, 5),
        CallFrame(8, 0, 1, 4),
        CallFrame(HEADERS, 5, 3, 1),
    ],
)
def test_it_goes_on_until_then(frame: CallFrame):
    assert grpc_call.status(frame, b"\x88") is None


@pytest.mark.parametrize(
    ("type_code", "flags", "payload"),
    [
        (GOAWAY, 0, b""),
        (RESET, 0, b""),
        (CONTINUATION, 4, b""),
        (HEADERS, 1, b""),
        (HEADERS, 0x0D, b""),
        (HEADERS, 5, b""),
        (HEADERS, 5, b"\x88"),
        (HEADERS, 5, trailers((b"grpc-status", b"x"))),
        (HEADERS, 5, b"\0\x8bgrpc-status\x010"),
        (HEADERS, 5, b"\0\x0bgrpc"),
        (HEADERS, 5, b"\x7f\x80\x01\x00"),
        (HEADERS, 5, b"\xff\xff\xff\xff\xff\xff\xff"),
    ],
)
def test_what_servers_of_grpc_do_not_say_is_refused(type_code: int, flags: int, payload: bytes):
    with pytest.raises(ValueError, match=r"call|headers?|number|status"):
        grpc_call.status(CallFrame(type_code, flags, 1, len(payload)), payload)


@given(st.binary(max_size=64))
def test_any_headers_are_a_status_or_a_value_error(block: bytes):
    with suppress(ValueError):
        assert grpc_call.status(last(block), block) is not None


def test_a_frame_that_nobody_agreed_on_is_refused():
    assert grpc_call.frame(b"\0\x40\0\x01\x05\0\0\0\x01") == CallFrame(1, 5, 1, 16384)
    with pytest.raises(ValueError, match="16385 bytes"):
        grpc_call.frame(b"\0\x40\x01\x01\x05\0\0\0\x01")


def test_a_path_that_has_no_room_in_a_byte_is_refused():
    with pytest.raises(ValueError, match="127 bytes"):
        grpc_call.opening("/" + 126 * "a", b"")
