"""Tests the study of cheap hours by hand."""

from fractions import Fraction

from slicewise.slurm_plugin.rules.accounting.begin_times import Rate
from studies.energy import cheap_hours
from studies.energy.cheap_hours import Job


def test_a_job_that_can_wait_is_begun_in_the_cheap_hours_and_others_are_not() -> None:
    hour_s = 3600
    rates = [Rate(0, 10 * hour_s, Fraction(2)), Rate(10 * hour_s, 40 * hour_s, Fraction(1))]
    waits, goes = Job(0, 90 * 60, 1, can_wait=True), Job(60, hour_s, 1)
    assert waits.limit_s == 2 * hour_s
    begins = cheap_hours._begins((waits, goes), rates)
    assert begins == {waits: 10 * hour_s}
    assert cheap_hours._started((waits, goes), 1, begins) == [10 * hour_s, 60]
    # One GPU for both: who begins first is first.
    assert cheap_hours._started((waits, goes), 1, {}) == [0, 90 * 60]
    figures = cheap_hours._figures((waits, goes), (10 * hour_s, 60), {"money": rates})
    assert figures["money"] == 90 * 60
    assert (figures["waiters_mean_h"], figures["others_mean_h"], figures["late"]) == (10, 0, 0)
