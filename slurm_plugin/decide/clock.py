"""Whether the wall clock was set: it is compared with the one that only goes on."""

from collections.abc import Iterable
from dataclasses import dataclass

STEP_S = 60.0
"""What it moves by less than that against the other one is followed: clocks are slewed."""

SETTLED_S = 3600.0
"""A wall clock that was set counts as right once it has gone on undisturbed for so long."""


IDLE_S = 100 * 86_400.0
"""A site at which nobody wrote anything down for longer is rarer than a clock that was set."""


@dataclass(frozen=True)
class Clock:
    """What time it is, by the wall clock as long as nobody sets it.

    Attributes:
        offset_s: of the wall clock that is gone by, against the monotonic one.
        stepped_s: how far ahead of that the wall clock is now; 0 if it is the one gone by.
        since_s: since when it is so far ahead, by the monotonic clock.
    """

    offset_s: float
    stepped_s: float = 0.0
    since_s: float = 0.0


def followed(before: Clock | None, wall_s: float, monotonic_s: float) -> Clock:
    """After another look at both clocks; the first look is believed."""
    offset_s = wall_s - monotonic_s
    stepped_s = offset_s - before.offset_s if before else 0.0
    if before is None or abs(stepped_s) <= STEP_S:
        return Clock(offset_s)
    goes_on = before.stepped_s != 0.0 and abs(stepped_s - before.stepped_s) <= STEP_S
    since_s = before.since_s if goes_on else monotonic_s
    if monotonic_s - since_s >= SETTLED_S:
        return Clock(offset_s)
    return Clock(before.offset_s, stepped_s, since_s)


def distrusted(wall_s: float, database_s: float, known_s: Iterable[float | None]) -> str:
    """Why a process without a history should not go by the wall clock; "" if it may.

    ``known_s`` are times at which something was surely there, none of the last ``SETTLED_S`` that a
    clock which was just set may have written: after so long without another step it is believed.
    """
    ahead_s = wall_s - database_s
    if abs(ahead_s) > STEP_S:
        return f"The host's clock is {ahead_s:+.0f} s ahead of PostgreSQL's: set one of them."
    newest_s = max((one for one in known_s if one is not None), default=wall_s)
    if wall_s - newest_s > IDLE_S:
        days = (wall_s - newest_s) / 86_400
        return (
            f"By the clock nothing was written down for {days:.0f} days: was it set? Set it back,"
            f" or leave it: it is believed {SETTLED_S / 60:.0f} min after the first run to say so."
        )
    return ""
