"""What a service keeps warm: replicas that serve while no present request needs them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from slicewise.cluster.language.units import counted

MOST_DAYS = 2
"""Days that are kept of a service: the present one and the one before; metrics have the others."""
_SLICE_HOUR = 3_600_000
"""A slice-hour, in millislice-seconds."""


@dataclass(frozen=True)
class WarmDay:
    """What was kept warm on one day.

    Attributes:
        day: such as 2026-11-30, by UTC.
        millislice_s: millislices times seconds.
        spared: requests that would have waited without that, at least; None if it can't be told,
            as in a pool.
    """

    day: Annotated[str, Field(max_length=10)]
    millislice_s: int
    spared: int | None = None


def warm_words(replicas: float, days: Sequence[WarmDay]) -> str:
    """Say how many replicas are kept warm now, and what was on each day, which are oldest first."""
    now = f"{replicas:g} {'replica' if replicas == 1 else 'replicas'} now"
    return "; ".join((now, *map(_day_words, reversed(days))))


def _day_words(day: WarmDay) -> str:
    hours = f"{day.millislice_s / _SLICE_HOUR:,.1f} slice-hours on {day.day} UTC"
    if day.spared is None:
        return hours
    return f"{hours} spared at least {counted(day.spared, 'request')} a wait"
