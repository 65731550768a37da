"""Detects that the host's wall clock was set, by comparing it with the monotonic clock."""

from collections.abc import Iterable
from dataclasses import dataclass

STEP_S = 60.0
"""Seconds up to which a step of the wall clock is followed, as clocks are slewed in normal use."""

SETTLED_S = 3600.0
"""Seconds without another step after which a wall clock that was set is believed."""


IDLE_S = 100 * 86_400.0
"""Seconds without any record after which a clock counts as set: sites idle for longer are rarer."""


@dataclass(frozen=True)
class Clock:
    """The trusted time, which follows the wall clock except for steps that are not yet believed.

    Attributes:
        offset_s: the trusted time less the monotonic clock's, in seconds.
        stepped_s: seconds by which the wall clock is ahead of the trusted time now; 0 if both
            agree.
        since_s: when that step was first seen, by the monotonic clock.
    """

    offset_s: float
    stepped_s: float = 0.0
    since_s: float = 0.0


def followed(before: Clock | None, wall_s: float, monotonic_s: float) -> Clock:
    """Update the trusted time by readings of both clocks; without ``before`` they are believed."""
    offset_s = wall_s - monotonic_s
    stepped_s = offset_s - before.offset_s if before else 0.0
    if before is None or abs(stepped_s) <= STEP_S:
        return Clock(offset_s)
    goes_on = abs(stepped_s - before.stepped_s) <= STEP_S
    since_s = before.since_s if goes_on else monotonic_s
    if monotonic_s - since_s >= SETTLED_S:
        return Clock(offset_s)
    return Clock(before.offset_s, stepped_s, since_s)


def distrusted(wall_s: float, database_s: float, known_s: Iterable[float | None]) -> str:
    """Return why a process without a history should not trust the wall clock; "" if it may.

    ``known_s`` are past times that the ledger recorded. They must not include the process's own
    records of the last ``SETTLED_S``, which a clock that was just set may have written. After that
    time without another step the clock is believed.
    """
    ahead_s = wall_s - database_s
    if abs(ahead_s) > STEP_S:
        return f"The host's clock is {ahead_s:+.0f} s ahead of PostgreSQL's: set one of them."
    newest_s = max((moment_s for moment_s in known_s if moment_s is not None), default=wall_s)
    if wall_s - newest_s > IDLE_S:
        days = (wall_s - newest_s) / 86_400
        return (
            f"By the host's clock the ledger's newest row is {days:.0f} days old. If the clock was"
            f" set wrongly, set it back; if it is right, it is trusted {SETTLED_S / 60:.0f} min"
            " after the first run that says this."
        )
    return ""
