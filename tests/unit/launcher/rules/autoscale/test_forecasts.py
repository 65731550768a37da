"""Tests the forecast of requests in parallel, and what is learnt from its errors."""

from itertools import pairwise

import pytest

from slicewise.launcher.rules.autoscale.forecasts import (
    Errors,
    Forecasts,
    SeenLoad,
    at_once,
    expected,
    learn_forecasts,
    learn_rest,
)

HORIZON_S = 32.0
STEP_S = 4
CALM, BURSTY = (10.0, 10.0, 10.0), 40


@pytest.mark.parametrize(
    ("load", "rate", "horizon_s", "at_once_then"),
    [(8, 2.0, 0.001, 8), (0, 2.0, 1000.0, 10), (40, 2.0, 1000.0, 10), (40, 0.0, 5.0, 14.7)],
)
def test_what_is_there_ends_and_what_comes_takes_its_place(
    load: int, rate: float, horizon_s: float, at_once_then: float
):
    """In the long run Little's law: rate times service time."""
    found = expected(load, rate, horizon_s, service_s=5.0)
    assert found == pytest.approx(at_once_then, rel=0.01)


def seen(load: int) -> SeenLoad:
    """A load of which no request has waited."""
    return SeenLoad(load, load)


def lived(loads: list[int], forecasts: tuple[float, ...] = CALM) -> Forecasts:
    """A look each second."""
    known = Forecasts()
    for second, load in enumerate(loads):
        known = learn_forecasts(known, seen(load), float(second), HORIZON_S, forecasts)
    return known


def reckoned(errors: Errors, worth_per_s: float = 20.0) -> float:
    return at_once(errors.busy.after, 1.0, CALM[0], worth_per_s)


def test_bursts_that_were_seen_are_reckoned_with():
    calm = lived([10] * 1200)
    bursty = lived([BURSTY if second % 120 < 10 else 10 for second in range(1200)])
    assert reckoned(calm.errors[0]) < 20
    assert reckoned(bursty.errors[0]) > 0.9 * BURSTY


def test_a_forecast_that_is_always_too_high_is_mended():
    errors = lived([10] * 1200, forecasts=(14.0, 14.0, 14.0)).errors[0]
    assert (
        at_once(errors.busy.after, 1.0, 14.0, 1.0)
        < 14
        < at_once(Errors().busy.after, 1.0, 14.0, 1.0)
    )


def test_the_average_that_scatters_least_is_believed_not_the_one_that_is_nearest():
    """An offset is in the distribution of its surprises; scatter costs headroom."""
    known = Forecasts()
    for second in range(1200):
        scatters = 7.0 if second % 8 < STEP_S else 13.0
        known = learn_forecasts(
            known, seen(10), float(second), HORIZON_S, (scatters, 30.0, scatters)
        )
    assert known.best == 1


def test_nothing_is_judged_before_a_start_would_have_ended_and_few_steps_are_kept():
    assert lived([10] * 40).errors == Forecasts().errors
    judged = lived([10] * 200)
    assert judged.errors[0].weight > 1
    assert len(judged.under_way) <= 11


def test_a_pause_in_looking_is_no_surprise():
    known = lived([10] * 30)
    after = learn_forecasts(known, seen(500), 3000.0, HORIZON_S, CALM)
    assert after.errors == known.errors
    assert [step.most for step in after.under_way] == [seen(500)]


def test_what_is_worth_more_gets_more_and_never_less():
    errors = lived([BURSTY if second % 300 < 10 else 10 for second in range(3000)]).errors[0]
    found = [reckoned(errors, 2.0**power) for power in range(-10, 20)]
    assert all(less <= more for less, more in pairwise(found))
    assert found[-1] > 3 * found[10]


def test_short_requests_leave_little_of_the_assumed_bursts():
    assert at_once(Errors().busy.after, 0.01, 0.0, 100.0) < at_once(
        Errors().busy.after, 1.0, 0.0, 100.0
    )


QUIET = (0.1, 0.1, 0.1)


def test_what_a_busy_service_does_says_nothing_of_a_quiet_one():
    bursty = lived([BURSTY if second % 120 < 10 else 10 for second in range(1200)])
    assert bursty.errors[0].of(QUIET[0], wakes=False) == Errors().quiet
    rare = lived([1 if second % 300 < 10 else 0 for second in range(1200)], QUIET)
    assert rare.errors[0].of(CALM[0], wakes=False) == Errors().busy
    assert rare.errors[0].weight > 1


def test_requests_that_wait_for_a_quiet_service_are_no_surprise():
    """One request a second waits for a minute; each takes a second: two would be in parallel."""
    known = Forecasts()
    for second in range(240):
        waiting = second if second < 60 else 0
        load = SeenLoad(waiting, min(waiting, 2))
        known = learn_forecasts(known, load, float(second), HORIZON_S, QUIET)
    assert 0 < at_once(known.errors[0].quiet.after, 1.0, QUIET[0], 20.0) < 5
    as_seen = Forecasts()
    for second in range(240):
        load = second if second < 60 else 0
        as_seen = learn_forecasts(as_seen, seen(load), float(second), HORIZON_S, QUIET)
    assert at_once(as_seen.errors[0].quiet.after, 1.0, QUIET[0], 20.0) > 40


WAKES_S = 62


def woken(load: int, seconds: int = 120, *, wakes: bool) -> Forecasts:
    """A request comes after a minute without any, and ``load`` more a second later."""
    known = lived([0] * WAKES_S, QUIET)
    for second in range(WAKES_S, WAKES_S + seconds):
        now = 1 if second == WAKES_S else load if second < 80 else 0
        woke = wakes and second == WAKES_S
        known = learn_forecasts(known, seen(now), float(second), HORIZON_S, QUIET, wakes=woke)
    return known


def test_what_follows_a_wake_is_learnt_once_and_apart_from_other_quiet_moments():
    plain, known = (woken(30, wakes=wakes).errors[0] for wakes in (False, True))
    assert plain.waking == Errors().waking
    assert sum(known.waking.after) == sum(known.waking.within) == pytest.approx(1)
    # One surprise less is among the quiet ones, and it is a large one.
    assert sum(known.quiet.within) < sum(plain.quiet.within) - 0.5
    crowd, other = (
        at_once(one.of(QUIET[0], wakes=True).within, 1.0, QUIET[0], 20.0) for one in (known, plain)
    )
    assert crowd > 2 * other


def test_a_step_of_a_wake_begins_with_its_request():
    """It is not joined to the step before, in which nothing came."""
    steps = woken(30, 1, wakes=True).under_way
    assert [step.at_s for step in steps if step.wakes] == [WAKES_S]
    assert steps[-1].most == seen(1)


def test_the_later_of_many_wakes_count_most():
    known, at_s = Forecasts(), 0.0
    for load in (30, *((1,) * 200)):
        for second in range(80):
            now = load if second < 10 else 0
            known = learn_forecasts(known, seen(now), at_s, HORIZON_S, QUIET, wakes=not second)
            at_s += 1
    weight = sum(known.errors[0].waking.within)
    assert 30 < weight < 34
    assert at_once(known.errors[0].waking.within, 1.0, QUIET[0], 20.0) < 10


def test_a_rest_keeps_what_wakes_were_followed_by():
    known = woken(30, wakes=True)
    rested = learn_rest(known, 10_000.0, 1.0, 9_000.0, HORIZON_S)
    assert rested.errors[0].quiet != known.errors[0].quiet
    assert rested.errors[0].waking == known.errors[0].waking
