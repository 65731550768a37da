"""Computes how well a service answered lately, from counters that only grow."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

from slicewise.cluster.rpc.messages import ServiceQuality
from slicewise.launcher.rules.gateway.timings import BOUNDS_MS, Timings

SPAN_S = 300.0
"""Seconds that the figures cover at least; at most twice as many."""


NONE_YET = Timings()


@dataclass(frozen=True)
class Counts:
    """What was counted of a service until a moment, in seconds of a clock that nothing sets."""

    at_s: float
    timings: Timings = NONE_YET
    cold_starts: int = 0


@dataclass(frozen=True)
class QualityWindow:
    """The counts of three moments: figures cover the time from ``first`` to ``last``.

    ``middle`` becomes the first once it is old enough.
    """

    first: Counts
    middle: Counts
    last: Counts


def followed(before: QualityWindow, now: Counts) -> QualityWindow:
    """Add a look. HAProxy's counters start again at 0 when it is started or reloaded."""
    if now.timings.came < before.last.timings.came:
        before = _from_zero(before)
    if now.at_s - before.middle.at_s >= SPAN_S:
        return QualityWindow(before.middle, now, now)
    return replace(before, last=now)


def _from_zero(before: QualityWindow) -> QualityWindow:
    """What was counted before the restart is lost; cold starts are counted by the launcher."""
    first = Counts(before.first.at_s, cold_starts=before.first.cold_starts)
    middle = Counts(before.middle.at_s, cold_starts=before.middle.cold_starts)
    return QualityWindow(first, middle, Counts(before.last.at_s))


def quality(window: QualityWindow, objective_ms: float | None) -> ServiceQuality | None:
    """Compute the figures; None if there were no requests.

    ``objective_ms`` is within how many milliseconds an answer is in time.
    """
    first, last = window.first, window.last
    pairs = zip(first.timings.buckets, last.timings.buckets, strict=True)
    buckets = tuple(max(0, after - before) for before, after in pairs)
    answered = sum(buckets)
    slowest_ms = last.timings.slowest_ms
    is_measured = answered and objective_ms is not None
    service_quality = ServiceQuality(
        span_s=round(last.at_s - first.at_s),
        answered=answered,
        p50_ms=_percentile(buckets, 0.5, slowest_ms) if answered else None,
        p95_ms=_percentile(buckets, 0.95, slowest_ms) if answered else None,
        objective_met_share=_share_within(buckets, objective_ms or 0.0, slowest_ms)
        if is_measured
        else None,
        errors=max(0, last.timings.errors - first.timings.errors),
        unanswered=max(0, last.timings.unanswered - first.timings.unanswered),
        cold_starts=last.cold_starts - first.cold_starts,
    )
    return (
        service_quality
        if answered
        or service_quality.errors
        or service_quality.unanswered
        or service_quality.cold_starts
        else None
    )


def _bounds(buckets: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """Each bucket's lower and upper bound, and its count; the last one counts as its lower."""
    yield from zip((0, *BOUNDS_MS), (*BOUNDS_MS, BOUNDS_MS[-1]), buckets, strict=True)


def _end(low: int, high: int, slowest_ms: int | None) -> int:
    """No bucket reaches beyond the slowest answer, where that is known."""
    return high if slowest_ms is None or high == low else min(high, max(low, slowest_ms))


def _percentile(buckets: tuple[int, ...], share: float, slowest_ms: int | None) -> float:
    """Return the time in ms of the answer at that share, by rank, even within each bucket."""
    left = ceil(share * sum(buckets))
    for low, high, count in _bounds(buckets):
        if count and left <= count:
            return round(low + (_end(low, high, slowest_ms) - low) * left / count, 1)
        left -= count
    return float(BOUNDS_MS[-1])


def _share_within(buckets: tuple[int, ...], limit_ms: float, slowest_ms: int | None) -> float:
    """Return the share of answers within the limit, taking each bucket as evenly filled.

    Of one answer, no part is in time and the rest late.
    """
    if sum(buckets) == 1:
        return float(not buckets[-1] and _percentile(buckets, 1.0, slowest_ms) <= limit_ms)
    within = 0.0
    for low, high, count in _bounds(buckets):
        end = _end(low, high, slowest_ms)
        if end <= limit_ms and high > low:
            within += count
        elif low < limit_ms < end:
            within += count * (limit_ms - low) / (end - low)
    return round(within / sum(buckets), 4)
