"""Tests by which steps history is shown: few enough points, of what is still kept."""

import pytest

from slicewise.slurm_plugin.rules.common.history import KEPT_S, history_steps

HOUR_S, DAY_S = 3600, 86_400
NOW_S = 1_793_487_600 + 7


@pytest.mark.parametrize(
    ("ago_s", "span_s", "stored_s", "step_s"),
    [
        (HOUR_S, HOUR_S, 10, 10),
        (2 * HOUR_S, 2 * HOUR_S, 10, 10),
        (3 * HOUR_S, 3 * HOUR_S, 60, 60),
        (DAY_S, HOUR_S, 60, 60),
        (DAY_S, DAY_S, 60, 300),
        (7 * DAY_S, 7 * DAY_S, 60, 900),
        (8 * DAY_S, HOUR_S, 3600, 3600),
        (31 * DAY_S, 31 * DAY_S, 3600, 3600),
        (365 * DAY_S, 365 * DAY_S, 3600, 12 * HOUR_S),
        (9000 * DAY_S, HOUR_S, 3600, 3600),
        (NOW_S, NOW_S, 3600, 28 * DAY_S),
    ],
)
def test_steps_are_the_finest_that_are_kept_and_few_enough(
    ago_s: int, span_s: int, stored_s: int, step_s: int
):
    since_s = NOW_S - ago_s
    found = history_steps(since_s, since_s + span_s, NOW_S, KEPT_S, 1000)
    assert (found.stored_s, found.step_s) == (stored_s, step_s)
    assert 0 < len(found.times_s) <= 1000
    assert found.times_s[0] <= since_s < found.times_s[0] + step_s
    assert all(at_s % step_s == 0 for at_s in found.times_s)


@pytest.mark.parametrize(("ago_s", "settled_s"), [(HOUR_S, 20), (DAY_S, 120), (60 * DAY_S, 120)])
def test_the_last_step_is_over_and_written(ago_s: int, settled_s: int):
    found = history_steps(NOW_S - ago_s, 2**40, NOW_S, KEPT_S, 1000)
    over_s = found.times_s[-1] + found.step_s
    assert over_s <= NOW_S - settled_s < over_s + found.step_s


def test_a_time_that_ends_before_it_begins_or_is_to_come_has_no_steps():
    assert history_steps(NOW_S, NOW_S - 60, NOW_S, KEPT_S, 1000).times_s == ()
    assert history_steps(NOW_S + 60, NOW_S + 90, NOW_S, KEPT_S, 1000).times_s == ()
