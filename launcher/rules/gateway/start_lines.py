"""What HAProxy writes of requests that wait for a start: it holds one, one is answered."""

import re
from dataclasses import dataclass
from typing import Literal

HELD = "held"
"""First word of a line of the ring: a backend holds requests."""
ANSWERED = "answered"
"""First word of a line of the ring: a replica begins to answer a request that was held."""
_LINE = re.compile(rf"({HELD}|{ANSWERED}) ([a-z0-9]{{1,64}}) ([0-9]{{1,16}})")


@dataclass(frozen=True)
class StartLine:
    """One such line.

    Attributes:
        name: the backend that holds, or the digest of the certificate of the replica that answers.
        at_s: when that was, in Unix seconds of the gateway's host.
    """

    what: Literal["held", "answered"]
    name: str
    at_s: float


def parse_start_line(text: str) -> StartLine | None:
    """Read a line of the ring; None if it is another one."""
    match = _LINE.fullmatch(text)
    if match is None:
        return None
    return StartLine("held" if match[1] == HELD else "answered", match[2], int(match[3]) / 1000)
