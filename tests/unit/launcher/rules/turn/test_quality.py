"""Tests how well a service answered: percentiles, share in time, errors, cold starts."""

from dataclasses import replace

import pytest

from slicewise.launcher.rules.gateway.timings import BOUNDS_MS, BUCKETS, Timings
from slicewise.launcher.rules.turn.quality import (
    NONE_YET,
    SPAN_S,
    Counts,
    QualityWindow,
    followed,
    quality,
)

BEGIN = Counts(0.0)
START = QualityWindow(BEGIN, BEGIN, BEGIN)


def counts(at_s: float, *, cold_starts: int = 0, errors: int = 0, **by_bound: int) -> Counts:
    """``up_to_100=3``: three answers in the bucket that ends at 100 ms."""
    buckets = [0] * BUCKETS
    for name, count in by_bound.items():
        bound = name.removeprefix("up_to_")
        buckets[BUCKETS - 1 if bound == "ever" else BOUNDS_MS.index(int(bound))] = count
    answered = sum(buckets)
    return Counts(at_s, Timings(tuple(buckets), errors, answered), cold_starts)


def test_percentiles_lie_within_their_buckets() -> None:
    found = quality(followed(START, counts(10.0, up_to_20=90, up_to_100=10)), 100.0)
    assert found is not None
    assert 15 < found.p50_ms <= 20
    assert 70 < found.p95_ms <= 100
    assert (found.answered, found.span_s, found.objective_met_share) == (100, 10, 1.0)


@pytest.mark.parametrize(("slowest_ms", "p95_ms"), [(31, 31), (49, 49), (50, 50), (None, 50)])
def test_no_percentile_is_above_the_slowest_answer(slowest_ms: int | None, p95_ms: float) -> None:
    """A service with one answer in 31 ms was shown with a p95 of 49."""
    seen = counts(10.0, up_to_50=1)
    seen = replace(seen, timings=replace(seen.timings, slowest_ms=slowest_ms))
    found = quality(followed(START, seen), None)
    assert found is not None
    assert 30 <= found.p50_ms <= found.p95_ms <= p95_ms


@pytest.mark.parametrize(("objective_ms", "share"), [(28_000, 0.0), (29_000, 1.0), (30_000, 1.0)])
def test_one_answer_is_shown_as_one(objective_ms: float, share: float) -> None:
    """It was shown with a p50 of 20 s and a p95 of 29 s, and in part in time."""
    seen = counts(10.0, up_to_30000=1)
    seen = replace(seen, timings=replace(seen.timings, slowest_ms=29_000))
    found = quality(followed(START, seen), objective_ms)
    assert found is not None
    assert found.p50_ms == found.p95_ms == 29_000
    assert found.objective_met_share == share


def test_what_was_no_slower_than_the_objective_is_all_in_time() -> None:
    """Of two answers, each within the objective, a tenth was late: their bucket reaches further."""
    seen = counts(10.0, up_to_30000=2)
    seen = replace(seen, timings=replace(seen.timings, slowest_ms=29_000))
    found = quality(followed(START, seen), 29_000)
    assert found is not None
    assert (found.p95_ms, found.objective_met_share) == (29_000, 1.0)


@pytest.mark.parametrize(
    ("objective_ms", "share"), [(15.0, 0.0), (17.5, 0.45), (20.0, 0.9), (85.0, 0.95), (500.0, 1.0)]
)
def test_the_share_in_time(objective_ms: float, share: float) -> None:
    found = quality(followed(START, counts(10.0, up_to_20=90, up_to_100=10)), objective_ms)
    assert found is not None
    assert found.objective_met_share == pytest.approx(share)


def test_what_took_longer_than_any_bound_is_never_in_time() -> None:
    found = quality(followed(START, counts(10.0, up_to_ever=1)), 1e9)
    assert found is not None
    assert (found.objective_met_share, found.p95_ms) == (0.0, BOUNDS_MS[-1])


def test_without_an_objective_or_requests() -> None:
    found = quality(followed(START, counts(10.0, up_to_5=1)), None)
    assert found is not None
    assert found.objective_met_share is None
    assert quality(followed(START, Counts(10.0)), 100.0) is None


def test_only_the_last_minutes_count() -> None:
    window = followed(START, counts(1.0, up_to_5=7))
    for at_s in (SPAN_S, 2 * SPAN_S):
        window = followed(window, counts(at_s, up_to_5=7))
    assert quality(window, None) is None
    found = quality(followed(window, counts(2 * SPAN_S + 5, up_to_5=7, errors=1)), None)
    assert found is not None
    assert (found.answered, found.errors) == (0, 1)
    assert SPAN_S <= found.span_s <= 2 * SPAN_S


def test_a_gateway_that_was_restarted_counts_from_zero() -> None:
    window = followed(START, counts(10.0, up_to_5=50, cold_starts=2))
    found = quality(followed(window, counts(15.0, up_to_20=3, cold_starts=3)), None)
    assert found is not None
    assert (found.answered, found.cold_starts) == (3, 3)
    assert 15 < found.p50_ms <= 20


def test_unanswered_requests_are_those_that_have_ended() -> None:
    gone = Counts(5.0, replace(NONE_YET, came=10, now=4))
    found = quality(followed(START, gone), None)
    assert found is not None
    assert (found.answered, found.unanswered, found.p50_ms) == (0, 6, None)
