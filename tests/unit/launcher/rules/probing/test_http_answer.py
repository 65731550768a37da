"""Tests reading the head of a replica's answer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicewise.launcher.rules.probing.http_answer import Head, parse_head, parse_size


def head(*lines: str) -> bytes:
    return "\r\n".join((*lines, "", "")).encode()


def test_status_and_length_are_read() -> None:
    whole = head("HTTP/1.1 400 Bad Request", "content-LENGTH: 12", "Content-Type: x")
    assert parse_head(whole) == Head(400, 12)
    assert parse_head(head("HTTP/1.0 200")) == Head(200, None, is_last=True)
    assert (
        parse_head(head("HTTP/1.1 200 OK", "Content-Length: 5", "Content-Length:5")).body_bytes == 5
    )


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (["HTTP/1.1 100 Continue"], "status 100"),
        (["HTTP/1.1 199 X"], "status 199"),
        (["HTTP/1.1 600 X"], "status 600"),
        (["HTTP/1.1 ²00 X"], "no HTTP"),
        (["HTTP/2 200 OK"], "no HTTP"),
        (["SSH-2.0-OpenSSH_9.2"], "no HTTP"),
        ([""], "no HTTP"),
        (["HTTP/1.1 200 OK", "Transfer-Encoding: gzip, chunked"], "unknown coding"),
        (["HTTP/1.1 200 OK", *["Transfer-Encoding: chunked"] * 2], "two lengths"),
        (["HTTP/1.1 200 OK", "Transfer-Encoding: chunked", "Content-Length: 1"], "two lengths"),
        (["HTTP/1.1 200 OK", "Content-Length: -1"], "no HTTP"),
        (["HTTP/1.1 200 OK", "Content-Length: 1", "Content-Length: 2"], "two lengths"),
        (["HTTP/1.1 200 OK", *["a: b"] * 101], "more than 100 headers"),
        (["HTTP/1.1 200 OK", "Content-Length: " + "9" * 10_000], "4300 digits"),
    ],
)
def test_what_triton_never_sends_is_none(lines: list[str], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_head(head(*lines))


def test_chunks_are_told_from_a_body_until_the_end() -> None:
    whole = head("HTTP/1.1 200 OK", "transfer-encoding: Chunked")
    assert parse_head(whole) == Head(200, None, is_chunked=True)


def test_the_length_of_a_chunk_is_a_number_and_no_more() -> None:
    assert [parse_size(one) for one in (b"1F\r\n", b"0\r\n", b"fffffff\r\n")] == [31, 0, 2**28 - 1]
    for one in (b"\r\n", b"-1\r\n", b"0x1\r\n", b"1;a=b\r\n", b" 1\r\n", b"1_0\r\n", b"1" * 9):
        with pytest.raises(ValueError, match="no HTTP"):
            parse_size(one)


@given(st.binary(max_size=300))
def test_anything_is_a_head_or_a_value_error(text: bytes) -> None:
    for one in (text, b"HTTP/1.1 200 OK\r\n" + text, b"HTTP/1.1 200 OK\r\nContent-Length:" + text):
        try:
            found = parse_head(one)
        except ValueError:
            continue
        assert 200 <= found.status < 600
