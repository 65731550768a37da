"""Tests the arithmetic of the forecasters that are compared, and what they are judged by."""

from math import exp, sqrt

import numpy as np
import pytest

from studies.autoscale.workload import Starts, Workload
from studies.forecasters.errors import LearntErrors, pinball, surprises
from studies.forecasters.holt_winters import HoltWinters, Smoothing
from studies.forecasters.hybrid_histogram import HybridHistogram, window
from studies.forecasters.seasonal import SeasonalQuantile
from studies.forecasters.series import (
    LoadSeries,
    after_past,
    counted,
    counted_part,
    peaks_after,
    series_of,
)
from studies.forecasters.simple import HeldPeak, LastValue, ToldFuture

RNG = np.random.default_rng(1)


def series(load: list[float], horizon_s: float = 8.0, season_s: int = 100) -> LoadSeries:
    values = np.array(load, dtype=float)
    return LoadSeries(values, np.zeros(values.size), horizon_s, season_s, values.size, unit=2)


def test_load_counts_requests_from_their_arrival_until_they_are_answered():
    load, arrived = counted(np.array([0.0, 0.5, 2.0]), np.array([1.0, 2.0, 1.5]), 5)
    assert load.tolist() == [1, 1, 2, 1, 0]
    assert arrived.tolist() == [1, 1, 1, 0, 0]


def test_the_peak_is_that_from_a_start_s_end_until_a_quarter_later():
    load = np.array([0, 9, 0, 0, 1, 3, 2, 0, 0, 0], dtype=float)
    assert peaks_after(load, 4.0).tolist() == [3, 3, 2, 0, 0, 0, 0, 0, 0, 0]


def test_the_part_that_counts_begins_an_hour_after_the_run():
    arrivals = np.arange(0.0, 9000.0, 10.0)
    found = workload(arrivals, 9000)
    part = counted_part(found, series_of(found, 3600))
    assert (part.duration_s, part.warm_s) == (9000 - 2400, 3600)
    assert part.arrivals_s[0] == 0
    past = np.zeros(86_400)
    learnt = after_past(series_of(found, 3600), past, past, 86_400)
    assert (learnt.begin_s, learnt.split_s) == (86_400 + 2400, 86_400 + 6000)
    again = counted_part(found, learnt)
    assert again.arrivals_s.tolist() == part.arrivals_s.tolist()
    assert again.warm_s == part.warm_s


def workload(arrivals: np.ndarray, duration_s: int) -> Workload:
    return Workload(
        *("even", arrivals, np.full(arrivals.size, 25.0), duration_s),
        concurrency=2,
        starts=Starts(np.full(50, 2.0), np.full(50, 20.0)),
        first_replicas=1,
        warm_s=0,
    )


@pytest.mark.parametrize(
    ("share", "loss"),
    [(0.95, (0.95 * 2 + 0.05 * 1) / 2), (0.5, 0.75)],
)
def test_too_little_costs_more_than_too_much_where_the_quantile_is_high(share: float, loss: float):
    assert pinball(np.array([1.0, 4.0]), np.array([3.0, 3.0]), share) == pytest.approx(loss)


def test_errors_are_learnt_in_deviations_and_become_a_quantile():
    off = float(surprises(np.array(16.0), np.array(25.0)))
    assert off == pytest.approx(2 * (sqrt(25.375) - sqrt(16.375)))
    errors = LearntErrors()
    for _ in range(2000):
        errors.learn(16.0, 25.0)
    # A bin is a quarter wide: about a request and a half here.
    assert errors.quantile(16.0, 0.95) == pytest.approx(25.0, abs=1.5)
    assert errors.quantile(100.0, 0.95) == pytest.approx(121.3, abs=3.0)


def test_errors_of_a_quiet_service_are_learnt_apart():
    errors = LearntErrors()
    for _ in range(2000):
        errors.learn(16.0, 25.0)
    assert errors.quantile(0.5, 0.95) == pytest.approx(LearntErrors().quantile(0.5, 0.95))


def test_the_simple_ones():
    last, peak, told = LastValue(), HeldPeak(), ToldFuture(np.array([4.0, 7.0]))
    assert [last.look(0, 3, 0).middle, last.look(1, 5, 0).middle] == [3, 5]
    assert [peak.look(at_s, load, 0).high for at_s, load in ((0, 3), (1, 8), (300, 2))] == [3, 8, 8]
    assert peak.look(301, 2, 0).high == 2
    assert [told.look(at_s, 0, 0).middle for at_s in (0, 1, 2)] == [4, 7, 7]


def test_holt_and_winters_one_step():
    one = Smoothing(np.array([[0.5, 0.1, 0.0]]), 3600, first=10.0)
    one.learn(0, 20.0)
    assert one.level[0] == pytest.approx(15.0)
    assert one.trend[0] == pytest.approx(0.5)
    assert one.ahead(0, 2.0)[0] == pytest.approx(15 + 0.5 * (0.995 + 0.995**2))


def test_a_season_is_learnt_where_three_of_them_have_passed():
    one_season = [2.0] * 60 + [20.0] * 60
    found = HoltWinters()
    found.fit(series(one_season * 40, season_s=120), RNG)
    quiet = [found.look(at_s, 2 if at_s % 120 < 60 else 20, 0).middle for at_s in range(240)]
    assert quiet[55] > quiet[20] + 5  # eight seconds later the busy half begins
    short = HoltWinters()
    short.fit(series(one_season * 2, season_s=120), RNG)
    assert short._best.season.any() == np.False_


def test_the_seasonal_quantile_is_of_the_same_time_in_earlier_seasons():
    load = [float(second // 500 % 2 * 10 + second // 1000) for second in range(3000)]
    seasonal = SeasonalQuantile()
    seasonal.fit(series(load, horizon_s=20.0, season_s=1000), RNG)
    said = seasonal.look(3200, 99, 0)
    assert (said.middle, said.high) == (1.0, 2.0)
    new = SeasonalQuantile()
    new.fit(series([1.0] * 50, season_s=1000), RNG)
    assert new.look(50, 7, 0) == (7, None)


def test_idle_times_of_a_hybrid_histogram_say_from_when_until_when_a_level_is_warm():
    counts = np.zeros(240)
    counts[10] = 100
    assert window(counts) == (pytest.approx(0.9 * 600), pytest.approx(1.1 * 660))
    assert window(np.ones(240)) == (0.0, 14_400.0)


def test_a_level_of_the_hybrid_histogram_is_warm_when_it_usually_comes_again():
    found = HybridHistogram()
    # The second replica is used for ten seconds each 100.
    found.fit(series([4.0 if at_s % 100 < 10 else 1.0 for at_s in range(5000)]), RNG)
    said = [found.look(at_s, 3 if at_s < 5005 else 1, 0).middle for at_s in range(5000, 5200)]
    # It is idle for 91 s, in the bin from 60 to 120 s; warm from nine tenths of the one until
    # eleven tenths of the other. A start takes 8 s, and what is forecast lasts until 10 s from now.
    idle_s = [at_s - 4 for at_s in range(200)]
    warm = [load for idle, load in zip(idle_s, said, strict=True) if 44 <= idle <= 124]
    assert set(warm) == {4}
    assert {load for idle, load in zip(idle_s, said, strict=True) if 0 < idle < 44} == {2}
    assert said[199] == 2


def test_the_sum_of_a_fade_is_what_an_hour_leaves():
    errors = LearntErrors()
    errors.learn(16.0, 16.0)
    for _ in range(900):
        errors.learn(16.0, 25.0)
    first = errors._busy[np.flatnonzero(errors._busy)[0]]
    assert first == pytest.approx(exp(-1))
