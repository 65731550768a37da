"""Tests how much the free parts of GPUs are worth to expected requests."""

import pytest

from slicewise.cluster.language.gpus.layouts import Placement
from slicewise.cluster.language.gpus.mig_profiles import board
from studies.placement.outlook import outlook

A100 = board("A100-80GB")
EVEN = {"1g.10gb": 4.0, "2g.20gb": 2.0, "3g.40gb": 1.0, "4g.40gb": 1.0, "7g.80gb": 1.0}


def test_an_empty_gpu_is_not_fragmented_and_a_full_one_serves_nobody():
    seen = outlook(A100, EVEN)
    full = seen.geometry.occupancy([Placement("7g.80gb", 0, 8)])
    assert seen.unserved[0] == 0
    assert full is not None
    assert seen.unserved[full] == pytest.approx(1)


def test_unserved_is_the_part_of_the_demand_of_which_nothing_fits():
    seen = outlook(A100, {"1g.10gb": 3.0, "3g.40gb": 2.0, "4g.40gb": 0.0})
    used = seen.geometry.occupancy([Placement("1g.10gb", 0, 1), Placement("1g.10gb", 4, 1)])
    assert used is not None
    assert seen.expected == ("1g.10gb", "3g.40gb")
    assert seen.places[used] == (5, 0)
    assert seen.unserved[used] == pytest.approx(2 / 5)
    assert seen.stranded[used] == pytest.approx(6 * 2 / 5)


def test_the_last_places_are_worth_most_and_more_than_will_be_asked_for_nothing():
    seen = outlook(A100, {"1g.10gb": 15.0, "7g.80gb": 1.0})
    small, large = seen.losses([3, 1])
    assert small[1] == pytest.approx(1000, abs=1)
    assert small[2] > small[1]
    assert large[1] == pytest.approx(7000 * (1 - (15 / 16) ** 16))
    assert all(loss == 0 for loss in seen.losses([40, 40])[0])


def test_without_a_forecast_all_profiles_are_alike():
    assert outlook(A100, {}) == outlook(A100, dict.fromkeys(A100.profiles, 2.0))
