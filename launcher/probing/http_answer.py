"""Parses the head of an HTTP/1.1 answer, as strictly as a foreign server's answer must be read."""

from dataclasses import dataclass

HEAD_BYTES = 16 * 1024
_MOST_LINES = 100
_FIRST_FINAL, _BEYOND_STATUS = 200, 600


@dataclass(frozen=True)
class Head:
    """The head of an answer.

    Attributes:
        status: a final status: 200 to 599.
        body_bytes: length of the body; None if it lasts until the connection ends.
    """

    status: int
    body_bytes: int | None


def parse_head(head: bytes) -> Head:
    """Parse status line and headers, with the empty line after them.

    Raises ValueError for what no engine sends: an interim answer (1xx), which others could
    follow without end, a body in chunks, and anything that is no HTTP/1.
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
    for line in lines:
        name, _, value = line.partition(b":")
        match name.lower():
            case b"transfer-encoding":
                raise ValueError("an answer in chunks")
            case b"content-length":
                lengths.add(_number(value.strip()))
    if len(lengths) > 1:
        raise ValueError("an answer of two lengths")
    return Head(status, lengths.pop() if lengths else None)


def _number(digits: bytes) -> int:
    if not digits.isdigit():
        raise ValueError("an answer that is no HTTP")
    return int(digits)
