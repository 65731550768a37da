"""Tests the replay's baselines against cases computed from their formulas."""

from collections.abc import Iterable

import pytest

from studies.autoscale.dynamo import Dynamo
from studies.autoscale.hpa import Hpa
from studies.autoscale.kpa import Kpa
from studies.autoscale.peak_hold import PeakHold
from studies.autoscale.policy import Policy, Seen
from studies.autoscale.ray import Ray
from studies.autoscale.seasonal import Seasonal

NOTHING = Seen(0.0, 0, 0, 0.0, 0, 0, 0, 0, 0, 0, (), ())


def told(
    policy: Policy, loads: Iterable[float], ready: int | None = None, begin: int = 0
) -> list[int]:
    """Answers while the load is that in each second; ``ready`` follows the wish unless given."""
    answers, work_s, running = [], 0.0, begin if ready is None else ready
    for second, load in enumerate(loads):
        look = NOTHING._replace(
            at_s=float(second),
            waiting=round(load),
            work_s=work_s,
            ready=running,
            busy=[0] * running,
        )
        answers.append(policy.wanted(look))
        work_s += load
        running = answers[-1] if ready is None else ready
    return answers


class TestKpa:
    def test_a_steady_load_is_divided_by_the_share_of_concurrency(self):
        # 10 requests / (4 · 0.7) = 3.6
        assert told(Kpa(4, 0.7), [10.0] * 200, ready=4)[-1] == 4

    def test_panic_takes_the_short_window_and_keeps_the_peak_for_a_stable_window(self):
        # The mean of 6 s at 20 is 20, twice what 2 ready ones are for: panic.
        loads = [2.0] * 100 + [20.0] * 6 + [2.0] * 58
        answers = told(Kpa(1, 1.0), loads, ready=2)
        assert answers[98] == 2
        assert answers[106] == 20
        assert answers[-1] == 20

    def test_panic_ends_a_stable_window_after_the_last_second_over_the_threshold(self):
        loads = [2.0] * 100 + [20.0] * 6 + [2.0] * 80
        answers = told(Kpa(1, 1.0), loads, ready=2)
        # The window of 6 s is at 2 · 2 or more until second 111, looked at each second one.
        ended = answers.index(2, 106)
        assert ended == 110 + 60 + 2

    def test_without_panic_the_stable_window_counts(self):
        # 7 is not twice 4: the mean of 60 s rises by 0.05 a second.
        answers = told(Kpa(1, 1.0), [4.0] * 100 + [7.0] * 10, ready=4)
        assert answers[-1] == 5

    def test_it_falls_to_half_at_most(self):
        answers = told(Kpa(1, 1.0), [1.0] * 200, ready=9)
        assert answers[-1] == 4

    def test_a_restart_with_more_than_one_ready_begins_in_panic_at_that_count(self):
        answers = told(Kpa(1, 1.0), [1.0] * 64, ready=5)
        assert answers[:61] == [5] * 61
        assert answers[62] == 2

    def test_zero_comes_after_a_silent_window_and_the_grace(self):
        answers = told(Kpa(1, 1.0), [1.0] * 100 + [0.0] * 120, begin=1)
        assert answers[99 + 60 + 30] == 1
        assert answers[100 + 60 + 30] == 0

    def test_a_request_at_zero_wakes_it_at_once(self):
        answers = told(Kpa(1, 1.0), [0.0] * 101 + [1.0] * 3)
        assert answers[100] == 0
        assert max(answers[101:]) == 1
        assert answers[102] == 1


class TestHpa:
    def test_it_decides_each_15_s_on_the_mean_since(self):
        answers = told(Hpa(2, 0.5), [3.0] * 31, ready=3)
        assert answers == [3] * 31

    def test_within_the_tolerance_nothing_changes(self):
        # 10.9 / 10 replicas of target 1 is 9 % more; 11.1 is 11 %.
        assert told(Hpa(1, 1.0), [10.9] * 16, ready=10)[-1] == 10
        assert told(Hpa(1, 1.0), [11.1] * 16, ready=10)[-1] == 12

    def test_it_rises_to_double_or_four(self):
        assert told(Hpa(1, 1.0), [30.0] * 16, begin=1)[-1] == 4
        assert told(Hpa(1, 1.0), [30.0] * 16, begin=8)[-1] == 16

    def test_it_falls_to_the_largest_recommendation_of_300_s(self):
        answers = told(Hpa(1, 1.0), [10.0] * 300 + [2.0] * 400, begin=10)
        assert answers[300 + 300] == 10
        assert answers[300 + 300 + 15] == 2

    def test_zero_and_from_zero(self):
        answers = told(Hpa(1, 1.0), [1.0] * 15 + [0.0] * 315 + [3.0] * 30, begin=1)
        assert answers[315] == 1
        assert answers[330] == 0
        assert answers[345] == 3


class TestRay:
    def test_a_rise_must_last_for_30_s(self):
        # Pushed at second 10, the mean is over the target from there on.
        answers = told(Ray(1, 1.0), [2.0] * 60, ready=1)
        assert answers.index(2) == 10 + 30

    def test_a_short_rise_is_forgotten(self):
        answers = told(Ray(1, 1.0), [2.0] * 15 + [0.0] * 45, ready=1)
        assert max(answers) == 1

    def test_a_fall_must_last_for_600_s_and_stops_at_one(self):
        answers = told(Ray(1, 1.0), [3.0] * 100 + [0.0] * 2000, begin=3)
        # Pushed at 110, the mean of 30 s is 2; the last number counts, but not zero from three.
        assert answers.index(1) == 110 + 600
        assert 2 not in answers
        assert answers.index(0) == 110 + 600 + 601

    def test_from_zero_one_at_once(self):
        answers = told(Ray(1, 1.0), [0.0] * 50 + [5.0], ready=0)
        assert answers[-2:] == [0, 1]


class TestDynamo:
    @pytest.mark.parametrize(
        ("busy", "waiting", "wish"),
        [
            ((4, 1), 0, 2),  # 1.0 is not above 1.0
            ((4, 1), 1, 3),  # (4 + 0.5) / 4
            ((2, 2), 0, 1),  # 0.5 is below 0.6
            ((3, 0), 0, 2),  # 0.75 is not: all must be below
        ],
    )
    def test_one_more_or_one_less(self, busy: tuple[int, ...], waiting: int, wish: int):
        policy = Dynamo(4, 1.0)
        look = NOTHING._replace(busy=busy, waiting=waiting, ready=2)
        policy.wanted(look)
        assert policy.wanted(look._replace(at_s=4.0)) == 2
        assert policy.wanted(look._replace(at_s=5.0)) == wish

    def test_nothing_is_decided_while_the_last_decision_is_carried_out(self):
        policy = Dynamo(4, 1.0)
        look = NOTHING._replace(busy=(4,), waiting=40, ready=1)
        policy.wanted(look)
        assert policy.wanted(look._replace(at_s=5.0)) == 2
        assert policy.wanted(look._replace(at_s=10.0, starting=1)) == 2
        full = look._replace(at_s=15.0, ready=2, busy=(4, 4))
        assert policy.wanted(full._replace(draining=1)) == 2
        assert policy.wanted(full) == 3

    def test_it_keeps_one(self):
        assert set(told(Dynamo(4, 1.0), [0.0] * 100)) == {1}


class TestPeakHold:
    def test_up_at_once_and_down_when_the_peak_has_passed(self):
        answers = told(PeakHold(2, 0.5), [1.0] * 400 + [5.0] + [1.0] * 400, begin=0)
        assert answers[399] == 1
        assert answers[400 : 400 + 300] == [5] * 300
        assert answers[400 + 300] == 1


class TestSeasonal:
    def test_the_same_minutes_of_an_hour_ago_count_beside_the_last_five(self):
        answers = told(Seasonal(2, 1.0), [*[10.0] * 60, *[1.0] * 4000], ready=1)
        assert answers[1000] == 1
        assert answers[3600] == 5
        assert answers[3900] == 1

    def test_a_quantile_leaves_the_highest_out(self):
        answers = told(Seasonal(1, 0.9), [*[1.0] * 280, *[10.0] * 20, 1.0], ready=1)
        assert answers[-1] == 1
