"""What HAProxy writes of requests that wait for a start: it holds one, one is answered."""

import re
from dataclasses import dataclass

HELD = "held"
"""First word of a line of the ring: a backend holds requests."""
ANSWERED = "answered"
"""First word of a line of the ring: a replica begins to answer a request that was held."""
_LINE = re.compile(rf"(?:{HELD}|{ANSWERED} ([0-9a-f]{{1,64}})) ([a-z0-9]{{1,64}}) ([0-9]{{1,16}})")


@dataclass(frozen=True)
class StartLine:
    """One such line.

    Attributes:
        backend: the backend that holds, or whose request is answered.
        at_s: when that was, in Unix seconds of the gateway's host.
        replica: the digest of the certificate of the replica that answers; None: it holds.
    """

    backend: str
    at_s: float
    replica: str | None = None


def parse_start_line(text: str) -> StartLine | None:
    """Read a line of the ring; None if it is another one."""
    match = _LINE.fullmatch(text)
    return StartLine(match[2], int(match[3]) / 1000, match[1]) if match is not None else None
