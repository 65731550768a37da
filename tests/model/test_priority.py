"""Tests priorities while jobs wait, on the model of Slurm: they grow, and no job starves."""

from collections.abc import Iterator
from math import inf

import pytest
from model_daemon import NODES, SETTINGS, DaemonOnModel

WAIT_FULL_S = 1800.0
"""Of jobs that ask for ``ASKED_S``; ``LIMITS`` of these are part of it."""
ASKED_S, LIMITS = 300.0, 4.0
TURNOVER_S = 90.0
"""A running job's end, Slurm's cycle, and the daemon's look."""
RUNS_S = 120.0
LAST = 10_000
"""The highest site_factor."""


@pytest.fixture
def queue() -> Iterator[DaemonOnModel]:
    """Jobs queue for one instance; after half an hour no newer job is ahead of one."""
    priority = SETTINGS.priority.model_copy(
        update={
            "wait_full_h": (WAIT_FULL_S - LIMITS * ASKED_S) / 3600,
            "wait_full_limits": LIMITS,
            "high_class_for": ("nlp",),
        }
    )
    settings = SETTINGS.model_copy(update={"priority": priority})
    accounts = {"nlp": "root", "vision": "root"}
    with DaemonOnModel(accounts, settings, NODES[:2]).running() as site:
        for tenant in accounts:
            site.set_quota(tenant, 4)
        yield site


def submit(queue: DaemonOnModel, account: str, job_class: str, run_s: float = inf) -> int:
    directives = (f"#SLICEWISE class={job_class}",)
    asks = {"minutes": int(ASKED_S / 60), "directives": directives}
    return queue.sbatch(account, {"3g.40gb": 1}, run_s=run_s, **asks)


def occupy(queue: DaemonOnModel) -> None:
    """Have a job hold for hours what others queue for."""
    running = queue.sbatch("nlp", {"3g.40gb": 1}, minutes=300)
    queue.until(lambda: is_running(queue, running))


def site_factor(queue: DaemonOnModel, job_id: int) -> int:
    record = queue.site.record(job_id)
    assert record is not None
    return record.site_factor


def is_running(queue: DaemonOnModel, job_id: int) -> bool:
    return any(one.job_id == job_id and one.start_s for one in queue.site.model.jobs)


def test_it_grows_from_submit_on_while_a_job_waits_and_a_restart_writes_nothing_again(
    queue: DaemonOnModel, caplog: pytest.LogCaptureFixture
) -> None:
    occupy(queue)
    high, low = submit(queue, "nlp", "high"), submit(queue, "vision", "low")
    at_first = {job: site_factor(queue, job) for job in (high, low)}
    assert 6200 < at_first[low] < 7000
    missing = {job: LAST - factor for job, factor in at_first.items()}
    assert 3 * missing[high] < 2 * missing[low]
    queue.wait(WAIT_FULL_S / 2)
    half = {job: site_factor(queue, job) for job in (high, low)}
    # What is missing shrinks by the third power of the share that has been waited.
    for job, factor in at_first.items():
        assert half[job] == pytest.approx(factor + (LAST - factor) / 8, abs=100)
    queue.wait(WAIT_FULL_S / 2 + TURNOVER_S)
    assert [site_factor(queue, job) for job in (low, high)] == [LAST, LAST]

    queue.stop()
    caplog.set_level("INFO", "slicewise.daemon")
    queue.start()
    queue.wait(60)
    assert not [one for one in caplog.messages if one.startswith("priorities_set")]
    assert [site_factor(queue, job) for job in (low, high)] == [LAST, LAST]


def test_an_arrays_waiting_tasks_stay_one_record(queue: DaemonOnModel) -> None:
    occupy(queue)
    array = queue.sbatch("vision", {"3g.40gb": 1}, minutes=int(ASKED_S / 60), tasks=10)
    at_first = site_factor(queue, array)
    queue.until(lambda: site_factor(queue, array) >= at_first + 500, WAIT_FULL_S)
    (record,) = queue.site.model.array(array)
    assert record.untouched == frozenset(range(10))


def test_under_constant_pressure_of_a_higher_class_a_low_job_starts_within_the_bound(
    queue: DaemonOnModel,
) -> None:
    """nlp always has three jobs of class high in the queue, each of two minutes."""
    pressing = [submit(queue, "nlp", "high", RUNS_S) for _ in range(3)]
    queue.until(lambda: any(is_running(queue, one) for one in pressing))
    low = submit(queue, "vision", "low", 60)
    began_s = queue.clock.passed_s
    later: list[int] = []
    while not is_running(queue, low):
        assert queue.clock.passed_s - began_s < WAIT_FULL_S + RUNS_S + TURNOVER_S
        if len([one for one in queue.jobs("nlp") if not one.start_s]) < 3:
            later.append(submit(queue, "nlp", "high", RUNS_S))
        queue.wait(5)
    waiting = {one.job_id for one in queue.jobs("nlp") if not one.start_s}
    # The first of all held what the others wait for.
    went_before = {*pressing[1:], *later} - waiting
    assert len(went_before) >= 3, "there was no pressure"
    assert went_before & {*later}, "none overtook it"
