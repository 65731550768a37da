"""Tests the launcher's decision with another forecaster, and how forecasters are summed up."""

import numpy as np
import pytest

from studies.autoscale.policy import Seen
from studies.autoscale.slicewise import Slicewise
from studies.autoscale.workload import Starts, Workload
from studies.forecasters.contest import FORECASTERS, effect, fitted, quality
from studies.forecasters.series import series_of
from studies.forecasters.simple import ToldFuture
from studies.forecasters.swapped import SwappedForecast
from studies.forecasters.verdict import chosen, standings

RNG = np.random.default_rng(2)


def seen(at_s: float, load: int, arrived: int) -> Seen:
    return Seen(at_s, 0, load, 0.0, arrived, arrived - load, 0, 0, 3, 0, [load], [])


def test_the_launcher_expects_what_the_forecaster_says():
    policy = SwappedForecast(2, 0.99, ToldFuture(np.full(500, 17.0)), begin_s=100)
    for at_s in range(120):
        policy.wanted(seen(float(at_s), 4, 4 + at_s))
    made = policy._memory.forecasts.under_way[-1].forecasts
    assert made == pytest.approx((17.0,) * 3, rel=1e-3)


def test_the_usual_rate_stays_the_launcher_s_own():
    policy, own = SwappedForecast(2, 0.99, ToldFuture(np.full(500, 17.0)), 0), Slicewise(2, 0.99)
    for at_s in range(60):
        for one in (policy, own):
            one.wanted(seen(float(at_s), 4, 4 + at_s))
    assert policy._memory.arrivals.usual_rate == own._memory.arrivals.usual_rate


@pytest.fixture(scope="module")
def even() -> Workload:
    arrivals = np.sort(np.random.default_rng(7).uniform(0, 1500, 3000))
    return Workload(
        *("even", arrivals, np.full(arrivals.size, 4.0), 1500),
        concurrency=2,
        starts=Starts(np.full(50, 1.0), np.full(50, 19.0)),
        first_replicas=5,
        warm_s=0,
    )


def test_a_steady_load_costs_as_much_with_any_forecast_of_its_mean(even: Workload):
    series = series_of(even, 3600)
    found = {}
    for name in ("product", "product_again", "holt_winters"):
        forecaster, _ = fitted(name, series, RNG)
        found[name] = effect(name, even, series, forecaster, 0.95)["slice_hours"]
    assert found["product_again"] == pytest.approx(found["product"], rel=0.05)
    assert found["holt_winters"] == pytest.approx(found["product"], rel=0.15)


def test_who_is_told_the_future_loses_nearly_nothing(even: Workload):
    series = series_of(even, 3600)
    losses = {name: quality(series, fitted(name, series, RNG)[0]) for name in ("told", "product")}
    assert losses["told"].own == 0.0
    # What is left are the errors that are assumed at first.
    assert losses["told"].learnt < 0.3 * losses["product"].learnt
    assert losses["product"].own is None
    assert 0.0 <= losses["product"].exceeded < 0.2


def result(name: str, hours: float, attained: float = 0.999, trace: str = "a") -> dict:
    return {
        "trace": trace,
        "seed": 1,
        "forecaster": name,
        "trained_s": 30.0,
        "pinball": {"learnt": hours / 100, "own": None},
        "points": [
            {"attainment": 0.9, "slice_hours": hours / 2},
            {"attainment": attained, "slice_hours": hours},
        ],
    }


def test_the_simplest_within_two_percent_is_chosen():
    results = [result("product", 10.0), result("last_value", 9.9), result("gru", 9.8)]
    found = {one.forecaster: one for one in standings(results)}
    assert found["gru"].all_hours == pytest.approx(0.98)
    assert found["last_value"].pinball_ratio == pytest.approx(0.99)
    assert found["gru"].trained_min == 0.5
    order = tuple(FORECASTERS)
    assert chosen(standings(results), order) == "last_value"
    dearer = [results[0], result("last_value", 10.3), result("gru", 9.9)]
    assert chosen(standings(dearer), order) == "product"


def test_one_that_misses_what_the_product_attains_is_not_chosen():
    results = [result("product", 10.0), result("last_value", 5.0, attained=0.96)]
    found = {one.forecaster: one for one in standings(results)}
    assert (found["last_value"].missed, found["last_value"].asked) == (1, 2)
    assert chosen(standings(results), ("last_value", "product")) == "product"


def test_a_control_is_never_chosen():
    results = [result("product", 10.0), result("told", 5.0), result("product_again", 9.0)]
    assert chosen(standings(results), ("told", "product_again", "product")) == "product"
