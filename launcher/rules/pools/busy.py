"""Computes whose requests the replicas of pools have worked on, between two looks."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

GAP_S = 5.0
"""Seconds between two looks beyond which nobody knows what went on between them."""
_HOUR_S = 3600

Run = tuple[int, int, int]
"""A run of a replica: its array job id, slot index, and when it began."""
Parts = Mapping[str, float]
"""Parts of 1, by ``tenant/service``."""


@dataclass(frozen=True, order=True)
class Used:
    """An hour of a replica's run, and a service that used it beside the one whose slot it is.

    Attributes:
        hour_s: when the hour begins, in Unix seconds.
        service: ``tenant/service``.
    """

    run: Run
    hour_s: int
    service: str


@dataclass(frozen=True)
class PoolLook:
    """What the replicas of pools worked on.

    Attributes:
        at_s: Unix seconds.
        parts: of each replica's run that worked for another service than its own, the part of all
            its requests in flight that was the other's.
    """

    at_s: float
    parts: Mapping[Run, Parts]


NOTHING_BUSY = PoolLook(0.0, {})


def used_ms(before: PoolLook, now: PoolLook) -> Mapping[Used, float]:
    """Milliseconds of replicas' time that were other services' between two looks, by wall hour.

    What a look has seen counts for half of the time to the other. A gap counts for nobody, and so
    does time that a clock goes back.
    """
    gap_s = now.at_s - before.at_s
    if not 0 < gap_s <= GAP_S:
        return {}
    middle_s = before.at_s + gap_s / 2
    sums_ms = defaultdict[Used, float](float)
    for look, from_s, until_s in ((before, before.at_s, middle_s), (now, middle_s, now.at_s)):
        for hour_s, length_s in _hours(from_s, until_s):
            for run, parts in look.parts.items():
                for service, part in parts.items():
                    sums_ms[Used(run, hour_s, service)] += 1000 * length_s * part
    return sums_ms


def _hours(from_s: float, until_s: float) -> Iterator[tuple[int, float]]:
    """The hours in that time, which is less than one, with the seconds in each."""
    first_s, last_s = (int(at_s // _HOUR_S) * _HOUR_S for at_s in (from_s, until_s))
    if first_s == last_s:
        yield first_s, until_s - from_s
    else:
        yield first_s, last_s - from_s
        yield last_s, until_s - last_s
