"""What is measured of a run: sums over time, waits, and what was due to guarantees."""

from dataclasses import replace

import pytest

from slicewise.simulation.rules.runs.measure import Guarantee, RunSums, Yardstick, joined, measured
from slicewise.simulation.rules.site.records import ReplayedJob, ReplayedRun, SiteRecord

HUNDRED = Yardstick(0.0, 100.0, 10, (Guarantee(0.0, {"a": 6, "b": 2}),), grace_s=5, steps=4)
"""A hundred seconds on a cluster of ten millislices."""


def one(
    number: int,
    tenant: str,
    cost: int,
    submit_s: float,
    *runs: tuple[float, float | None],
    run_s: float = 10.0,
    **more: object,
) -> ReplayedJob:
    found = tuple(ReplayedRun(start_s, end_s) for start_s, end_s in runs)
    return ReplayedJob(number, tenant, cost, submit_s, run_s, found, **more)  # type: ignore[arg-type]


def measure(*jobs: ReplayedJob, by: Yardstick = HUNDRED, stopped_s: float = 200.0) -> RunSums:
    return measured(SiteRecord(0.0, stopped_s, jobs), by)


def test_what_jobs_hold_is_summed_within_the_time_that_counts() -> None:
    found = measure(
        one(0, "a", 4, 10, (20.0, 60.0)), one(-1, "b", 2, 0, (0.0, None)), one(2, "a", 1, 150)
    )
    assert found.tenants["a"].held_millislice_s == 4 * 40
    assert found.tenants["b"].held_millislice_s == 2 * 100
    assert found.held_millislice_s == 360
    assert found.idle_millislice_s == 1000 - 360
    # What was there at the beginning holds, and does not count as a job; what came later neither.
    assert (len(found.tenants["a"].waits_s), len(found.tenants["b"].waits_s)) == (1, 0)


def test_idle_is_wanted_while_jobs_wait_and_up_to_what_they_ask_for() -> None:
    found = measure(one(0, "a", 4, 10, (20.0, 60.0)), one(1, "b", 20, 50.0, (60.0, 60.0)))
    assert found.idle_wanted_millislice_s == 10 * 4 + 10 * 6


def test_waits_last_until_the_first_start_or_the_end_of_waiting() -> None:
    found = measure(
        one(0, "a", 1, 10, (25.0, 30.0), (50.0, 60.0)),
        one(1, "a", 1, 20),
        one(2, "a", 1, 30, given_up_s=37.0),
    ).tenants["a"]
    assert found.waits_s == (15.0, 180.0, 7.0)
    assert found.started == 1
    # In lengths of the run of ten seconds; who gave up has none.
    assert found.slowdowns == (5.0, 19.0)


def test_a_requeued_job_waits_again_and_holds_nothing_meanwhile() -> None:
    job = one(0, "a", 4, 0, (0.0, 10.0), (140.0, 150.0))
    by = replace(HUNDRED, end_s=300.0)
    found = measure(job, by=by, stopped_s=300.0)
    assert found.held_millislice_s == 80
    # Slurm may not start it again for two minutes; that is no wait for others' GPUs.
    assert found.idle_wanted_millislice_s == 4 * 10
    last = replace(job, runs=job.runs[:1], waits_again=True)
    again = measure(last, by=by, stopped_s=300.0)
    assert again.idle_wanted_millislice_s == 4 * (300 - 130)
    assert again.tenants["a"].slowdowns == (31.0,)
    gone = measure(replace(last, given_up_s=100.0), by=by, stopped_s=300.0)
    assert gone.idle_wanted_millislice_s == 0


def test_borrowed_is_what_is_held_beyond_the_guarantee_and_lent_what_is_left_unused() -> None:
    found = measure(one(0, "b", 6, 0, (0.0, 100.0)))
    assert found.tenants["b"].borrowed_millislice_s == 400
    # Of eight unused, six are guaranteed to a, and two to nobody.
    assert found.tenants["a"].lent_millislice_s == pytest.approx(400 * 6 / 8)


def test_a_job_within_the_guarantee_is_late_beyond_grace_and_a_minute() -> None:
    found = measure(one(0, "a", 6, 10, (76.0, 80.0)), one(1, "b", 2, 10, (74.0, 80.0)))
    assert (found.tenants["a"].own_waited_s, found.tenants["a"].late_jobs) == (66.0, 1)
    assert (found.tenants["b"].own_waited_s, found.tenants["b"].late_jobs) == (64.0, 0)


def test_what_exceeds_the_guarantee_is_not_owed() -> None:
    jobs = (
        one(0, "a", 4, 0, (0.0, 90.0)),
        one(1, "a", 4, 5),  # beside the first it is more than six
        one(2, "a", 2, 6),
    )
    found = measure(*jobs).tenants["a"]
    # The second is owed once the first has ended; the third all the time.
    assert (found.own_waited_s, found.late_jobs) == (194.0, 2)


def test_a_run_that_begins_before_the_wait_of_a_requeue_is_over_is_held_to_its_end() -> None:
    # Of a run that goes on, Slurm shows the start in whole seconds.
    found = measure(
        one(0, "a", 4, 0, (0.0, 9.5), (129.0, None)),
        by=replace(HUNDRED, end_s=300.0),
        stopped_s=300.0,
    )
    assert found.held_millislice_s == 4 * (9.5 + 300 - 129)
    assert found.idle_wanted_millislice_s == 0


def test_a_requeued_job_is_owed_no_second_start() -> None:
    found = measure(one(0, "a", 4, 0, (5.0, 10.0), (190.0, 195.0))).tenants["a"]
    assert (found.own_waited_s, found.late_jobs) == (5.0, 0)


def test_a_guarantee_that_ends_is_owed_no_longer() -> None:
    by = replace(HUNDRED, guarantees=(Guarantee(0.0, {"a": 6}), Guarantee(30.0, {"a": 0})))
    found = measure(one(0, "a", 6, 10), by=by).tenants["a"]
    assert (found.own_waited_s, found.late_jobs) == (20.0, 0)


def test_samples_lie_at_even_distances() -> None:
    steps = measure(one(0, "b", 6, 10, (20.0, 60.0)), one(1, "a", 3, 40)).steps
    assert [step.at_s for step in steps] == [0.0, 25.0, 50.0, 75.0]
    assert [step.held_millislices for step in steps] == [0, 6, 6, 0]
    assert [(step.waiting_jobs, step.waiting_millislices) for step in steps][2:] == [(1, 3)] * 2
    assert steps[1].lent_millislices == 3


def test_parts_are_joined_one_after_the_other() -> None:
    first = measure(one(0, "a", 4, 10, (20.0, 60.0)))
    second = measure(one(1, "b", 2, 90, (99.0, 120.0)))
    both = joined([first, second])
    assert both.seconds == 200
    assert both.held_millislice_s == first.held_millislice_s + second.held_millislice_s
    assert (both.tenants["a"].waits_s, both.tenants["b"].waits_s) == ((10.0,), (9.0,))
    assert len(both.steps) == 8


def test_runs_without_any_length_leave_nothing_behind() -> None:
    found = measure(one(0, "a", 4, 10, (10.0, 10.0)))
    assert (found.held_millislice_s, found.idle_wanted_millislice_s) == (0.0, 0.0)


def test_what_is_owed_of_a_type_is_no_more_than_is_guaranteed_of_it() -> None:
    types = {"a": {"small": 1}}
    by = replace(HUNDRED, guarantees=(Guarantee(0.0, {"a": 6}, types),))
    small, large = {"gpus": {"small": 1}}, {"gpus": {"large": 1}}
    holds = one(0, "a", 1, 0, (0.0, 100.0), **small)
    found = measure(holds, one(1, "a", 1, 10, **small), by=by).tenants["a"]
    assert (found.own_waited_s, found.late_jobs) == (100.0, 1), "once the first has ended"
    found = measure(holds, one(1, "a", 1, 10, **large), by=by).tenants["a"]
    assert found.own_waited_s == 190.0
    both = measure(one(1, "a", 1, 10, **small), one(2, "a", 1, 10, **small), by=by)
    assert both.tenants["a"].late_jobs == 1
