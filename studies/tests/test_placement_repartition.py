"""Tests the replay of repartitioning: GPUs that are cut beforehand, by each policy."""

import random

import pytest

from studies.placement import pods, repartition
from studies.placement.pods import Request


def test_the_lists_own_order_stays_and_begins_anywhere():
    names = ["1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"]
    listed = [Request(0.0, name, 60.0) for name in names]
    found = [one.profile for one in pods.in_order(listed, 7, 1, 1.0, random.Random(1))]  # noqa: S311
    first = names.index(found[0])
    assert found == [names[(first + number) % 5] for number in range(7)]


def test_where_demand_turns_around_only_cutting_anew_helps_and_costs_what_is_drained():
    """Two days of 1g, then two of 7g: the first layout is for the mean of both."""
    day_s = 86_400
    small = [Request(n * day_s / 100, "1g.10gb", 3_600.0) for n in range(200)]
    large = [Request(2 * day_s + n * day_s / 100, "7g.80gb", 600.0) for n in range(200)]
    found = repartition.outcomes(small + large, small + large, 1, 0.0)
    assert found["never"].accepted_ratio < 0.6
    assert found["slicewise"].accepted_ratio > found["never"].accepted_ratio + 0.3
    assert found["slicewise"].repartitions >= 1
    assert found["never"].repartitions == found["never"].drained_slice_hours == 0
    least = found["slicewise"].repartitions * repartition.REPARTITION_S / 3_600
    assert least <= found["slicewise"].drained_slice_hours <= 7 * least


@pytest.mark.parametrize("policy", ["never", "twice_daily", "slicewise"])
def test_what_waits_too_long_is_turned_away(policy: str):
    whole = [Request(float(n), "7g.80gb", repartition.PATIENCE_S + 600.0) for n in range(3)]
    assert repartition.outcomes(whole, whole, 1, 0.0)[policy].accepted_ratio == pytest.approx(1 / 3)
