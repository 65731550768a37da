"""Parses the head of an HTTP/1.1 answer, as strictly as a foreign server's answer must be read."""

from dataclasses import dataclass

HEAD_BYTES = 16 * 1024
_MOST_LINES = 100
_MOST_SIZE_DIGITS = 8
_FIRST_FINAL, _BEYOND_STATUS = 200, 600


@dataclass(frozen=True)
class Head:
    """The head of an answer.

    Attributes:
        status: a final status: 200 to 599.
        body_bytes: length of the body; None if its chunks say it, or it lasts until the connection
            ends.
        is_chunked: whether the body comes in chunks, each behind a line with its length.
        is_last: whether the server ends the connection after it.
    """

    status: int
    body_bytes: int | None
    is_chunked: bool = False
    is_last: bool = False


def parse_head(head: bytes) -> Head:
    """Parse status line and headers, with the empty line after them.

    Raises ValueError for what no engine sends: an interim answer (1xx), which others could
    follow without end, a body whose length is said in two ways, and anything that is no HTTP/1.
    """
    first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n", _MOST_LINES + 1)
    if len(lines) > _MOST_LINES:
        raise ValueError(f"an answer of more than {_MOST_LINES} headers")
    version, _, rest = first.partition(b" ")
    if version not in {b"HTTP/1.0", b"HTTP/1.1"}:
        raise ValueError("an answer that is no HTTP")
    status = _number(rest[:3])
    if not _FIRST_FINAL <= status < _BEYOND_STATUS:
        raise ValueError(f"an answer of status {status}")
    lengths: set[int] = set()
    codings: list[bytes] = []
    is_last = version == b"HTTP/1.0"
    for line in lines:
        name, _, value = line.partition(b":")
        match name.lower():
            case b"transfer-encoding":
                codings.append(value.strip().lower())
            case b"content-length":
                lengths.add(_number(value.strip()))
            case b"connection":
                is_last = is_last or value.strip().lower() != b"keep-alive"
    if len(lengths) + len(codings) > 1:
        raise ValueError("an answer of two lengths")
    if codings not in ([], [b"chunked"]):
        raise ValueError("an answer in an unknown coding")
    return Head(status, lengths.pop() if lengths else None, bool(codings), is_last)


def parse_size(line: bytes) -> int:
    """Parse the line before a chunk; 0 means that none follows.

    Raises ValueError for a line that is more than a number, as no engine sends one.
    """
    digits = line.removesuffix(b"\r\n")
    if not 0 < len(digits) <= _MOST_SIZE_DIGITS or digits.strip(b"0123456789abcdefABCDEF"):
        raise ValueError("an answer that is no HTTP")
    return int(digits, 16)


def _number(digits: bytes) -> int:
    if not digits.isdigit():
        raise ValueError("an answer that is no HTTP")
    return int(digits)
