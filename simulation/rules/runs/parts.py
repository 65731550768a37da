"""Cuts a history into parts that follow one another, each simulated by itself.

Each part begins some time before its jobs count, on a site as full as it was then (by the history;
an empty one where it does not say). What is measured of the parts is joined to the figures of the
whole, and their spread gives the intervals.
"""

from dataclasses import dataclass

from slicewise.simulation.rules.site.simulated_site import SiteTimes

_SHORTEST_S = 2 * 86_400.0
"""A part is at least that long: a shorter one would mostly be warm-up."""


@dataclass(frozen=True)
class Part:
    """One part: jobs that come from ``start_s`` until the end of ``times`` count."""

    start_s: float
    times: SiteTimes


def parts_of(
    start_s: float,
    end_s: float,
    *,
    known_from_s: float,
    offsets: int,
    warm_up_s: float,
    tail_s: float,
) -> tuple[Part, ...]:
    """Cut the time into ``offsets`` parts of the same length, fewer if they were too short.

    Each goes on for up to ``tail_s`` after its end, with the jobs that come then, until all jobs
    that count have started. None begins before ``known_from_s``, unless its jobs do.
    """
    count = max(1, min(offsets, int((end_s - start_s) // _SHORTEST_S)))
    length_s = (end_s - start_s) / count
    parts = []
    for number in range(count):
        own_start_s, own_end_s = start_s + number * length_s, start_s + (number + 1) * length_s
        begin_s = min(own_start_s, max(known_from_s, own_start_s - warm_up_s))
        parts.append(Part(own_start_s, SiteTimes(begin_s, own_end_s, own_end_s + tail_s)))
    return tuple(parts)
