"""How long requests took, as HAProxy counts them by service, in the texts of its Runtime API.

The configuration counts each answer that HAProxy passes on in the table ``timings``, in the bucket
of the time since its request came, waiting included. Streams of requests are not counted.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

TIMINGS = "timings"
SHOW_TIMINGS = f"show table {TIMINGS}"

BOUNDS_MS = (
    *(2, 5, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 700),
    *(1000, 1500, 2000, 3000, 5000, 10_000, 30_000, 60_000, 120_000),
)
"""Upper bounds of the buckets in milliseconds, inclusive; one more bucket has all longer times."""
BUCKETS = len(BOUNDS_MS) + 1
ERRORS, CAME = BUCKETS, BUCKETS + 1
"""Counters after those of the buckets: answers that say the server failed, and requests."""
COUNTERS = BUCKETS + 2
SLOWEST_SPAN_S, SLOWEST_SPANS = 600, 2
"""Seconds of a span by HAProxy's clock, and of how many spans the longest time is kept. Each has
two tags, its number and that time. One span is as long as figures of quality cover at most."""

_ENTRY = re.compile(r"^0x[0-9a-f]+: key=(\S+) (.*)$", re.MULTILINE)
_COUNT = re.compile(r"\bgpc(\d+)=(\d+)")
_TAG = re.compile(r"\bgpt(\d+)=(\d+)")
_NOW = re.compile(r"\bconn_cur=(\d+)")


@dataclass(frozen=True)
class Timings:
    """Requests of one service since HAProxy began to count.

    Attributes:
        buckets: answers that were passed on to clients, by time, see ``BOUNDS_MS``.
        errors: answers of status 5xx, or of a gRPC status that says that the server failed.
        came: requests.
        now: requests that have not ended yet.
        slowest_ms: the longest time of an answer in the last one or two spans; None if unknown.
    """

    buckets: tuple[int, ...] = (0,) * BUCKETS
    errors: int = 0
    came: int = 0
    now: int = 0
    slowest_ms: int | None = None

    @property
    def answered(self) -> int:
        """Requests whose answer was passed on to the client."""
        return sum(self.buckets)

    @property
    def unanswered(self) -> int:
        """Requests that have ended without an answer to pass on.

        The gateway refused them or gave them up, their replica ended, or their client hung up.
        """
        return max(0, self.came - self.answered - self.now)


def timings_of(shown: str) -> Mapping[str, Timings]:
    """Read the answer to ``SHOW_TIMINGS``, by ``tenant/service``.

    A configuration without that table has none.
    """
    return {key: _timings(values) for key, values in _ENTRY.findall(shown)}


def _timings(values: str) -> Timings:
    counts = {int(number): int(count) for number, count in _COUNT.findall(values)}
    now = _NOW.search(values)
    return Timings(
        tuple(counts.get(number, 0) for number in range(BUCKETS)),
        counts.get(ERRORS, 0),
        counts.get(CAME, 0),
        int(now[1]) if now is not None else 0,
        _slowest_ms(values),
    )


def _slowest_ms(values: str) -> int | None:
    tags = {int(number): int(value) for number, value in _TAG.findall(values)}
    spans = [(tags.get(2 * slot, 0), tags.get(2 * slot + 1, 0)) for slot in range(SLOWEST_SPANS)]
    newest = max(span for span, _ in spans)
    return max(ms for span, ms in spans if span >= newest - 1) if newest else None
