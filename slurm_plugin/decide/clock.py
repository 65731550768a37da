"""Whether the wall clock was set: it is compared with the one that only goes on."""

from dataclasses import dataclass

STEP_S = 60.0
"""What it moves by less than that against the other one is followed: clocks are slewed."""

SETTLED_S = 3600.0
"""A wall clock that was set counts as right once it has gone on undisturbed for so long."""


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
