"""The replay of the present policy beside the past."""

from itertools import combinations

import pytest
from builders.site_world import BEGIN_S, past
from hypothesis import given
from hypothesis import strategies as st

from slicewise.simulation.rules.runs.self_check import (
    ComparedJob,
    compared_jobs,
    kendall_tau,
    queue_order,
    self_check,
)


def test_only_jobs_that_started_in_both_are_compared() -> None:
    history = (
        past("a", started_s=BEGIN_S + 5),
        past("a"),
        past("a", 1, 3, started_s=BEGIN_S + 9),
        past("a", started_s=BEGIN_S),
    )
    found = compared_jobs(history, {0: BEGIN_S + 7, 1: BEGIN_S + 8, 2: BEGIN_S + 3})
    assert found == (
        ComparedJob(BEGIN_S, BEGIN_S + 5, BEGIN_S + 7),
        ComparedJob(BEGIN_S + 3, BEGIN_S + 9, BEGIN_S + 3),
    )


def test_the_error_is_the_median_of_what_each_job_is_off() -> None:
    jobs = [
        ComparedJob(0.0, 10.0, 12.0),
        ComparedJob(0.0, 20.0, 15.0),
        ComparedJob(5.0, 30.0, 90.0),
    ]
    found = self_check(jobs, 0.5, 0.6, never_started=2)
    assert found is not None
    assert (found.jobs, found.never_started, found.wait_error_s) == (3, 2, 5.0)
    assert found.wait_mean_of_history_s == pytest.approx(55 / 3)
    assert found.wait_mean_s == pytest.approx(112 / 3)
    assert (found.wait_p99_of_history_s, found.wait_p99_s) == (25.0, 85.0)
    assert (found.utilisation_of_history, found.utilisation) == (0.5, 0.6)
    assert found.start_order == 1.0


def test_without_starts_there_is_nothing_to_compare() -> None:
    assert self_check([], 0.0, 0.5, never_started=0) is None


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=2, max_size=30))
def test_kendall_s_tau_is_what_counting_all_pairs_gives(pairs: list[tuple[int, int]]) -> None:
    def sign(value: int) -> int:
        return (value > 0) - (value < 0)

    every = list(combinations(pairs, 2))
    wanted = sum(sign(a[0] - b[0]) * sign(a[1] - b[1]) for a, b in every) / len(every)
    assert kendall_tau([(float(a), float(b)) for a, b in pairs]) == pytest.approx(wanted)


def test_the_order_of_the_queue_is_that_of_jobs_that_waited_at_the_same_time():
    first, second = ComparedJob(0.0, 50.0, 60.0), ComparedJob(10.0, 60.0, 55.0)
    third, later = ComparedJob(20.0, 70.0, 90.0), ComparedJob(70.0, 71.0, 1.0)
    # The third agrees with both others; the last one came when none of them waited.
    assert queue_order([later, third, first, second]) == 2 / 3
    assert queue_order([first, later]) is None
    # Of two that started at the same moment nobody knows which was first.
    assert queue_order([first, ComparedJob(1.0, 50.0, 61.0)]) is None
