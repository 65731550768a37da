"""Tests the load of bursts: it is drawn by the figures that it is to have."""

import numpy as np
import pytest

from studies.autoscale.bursts import LOADS, Bursts, drawn
from studies.autoscale.curves import one_setting


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_most_seconds_are_empty_and_most_requests_come_ten_a_second(seed: int):
    load = LOADS["bursts"]
    arrivals, service = drawn(load, np.random.default_rng(seed))
    seconds = np.bincount(arrivals.astype(int), minlength=int(load.hours * 3600))
    minutes = seconds.reshape(-1, 60).sum(axis=1)
    assert np.all(np.diff(arrivals) >= 0)
    assert set(service.tolist()) == {1.25}
    assert 0.68 < (seconds == 0).mean() < 0.84
    assert 0.55 < seconds[seconds >= 10].sum() / seconds.sum() < 0.7
    assert minutes.min() == 0
    assert 500 < minutes.max() < 900


def test_the_same_seed_draws_the_same():
    first, again = (drawn(Bursts(hours=1), np.random.default_rng(7))[0] for _ in range(2))
    assert np.array_equal(first, again)


def test_one_setting_is_the_cheapest_that_attains_the_share_in_the_mean():
    def points(*pairs: tuple[float, float]) -> list[dict[str, float]]:
        return [
            {"target": target, "attainment": share, "slice_hours": hours, "p95_ms": 0, "wakes": 1}
            for target, (share, hours) in zip((0.9, 0.95, 0.99), pairs, strict=True)
        ]

    loads = {
        "a": points((0.85, 1.0), (0.95, 2.0), (1.0, 3.0)),
        "b": points((0.89, 10.0), (0.93, 20.0), (0.97, 30.0)),
    }
    chosen, stated = one_setting(loads, is_stated=False), one_setting(loads, is_stated=True)
    assert chosen["90"] is not None
    assert chosen["90"]["target"] == 0.95
    assert chosen["99"] is None
    assert stated["90"] is not None
    assert stated["90"]["attainment"] == {"a": 0.85, "b": 0.89}
