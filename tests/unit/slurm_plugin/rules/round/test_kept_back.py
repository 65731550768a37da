"""Tests which records count as waiting for a loan because quota keeps their slots back."""

from builders.jobs import a_job

from slicewise.cluster.language.jobs import JobState, JobView
from slicewise.slurm_plugin.rules.common.released_soon import ReleasedSoon
from slicewise.slurm_plugin.rules.quota.waits import waits_of
from slicewise.slurm_plugin.rules.round.kept_back import kept_back_waiting

HELD = {"array_job_id": 814, "held": True, "reason": "JobHeldAdmin"}
SLOT = a_job(900, task_index=0, **HELD)
REST = a_job(814, untouched=frozenset({1, 2, 3}), **HELD)


BORROWED = "slicewise_vision_borrowed"


def waiting(*jobs: JobView, slots: frozenset[int]) -> list[tuple[int, str, frozenset[int]]]:
    return [
        (job.job_id, job.qos, job.untouched)
        for job in kept_back_waiting(jobs, {814: ReleasedSoon(BORROWED, slots)})
        if waits_of(job).for_quota
    ]


def test_a_slot_waits_in_the_qos_in_which_it_will_be_released() -> None:
    assert waiting(SLOT, slots=frozenset({0})) == [(900, BORROWED, frozenset())]


def test_of_tasks_that_share_a_record_those_wait_that_are_kept_back() -> None:
    assert waiting(SLOT, REST, slots=frozenset({2, 3})) == [(814, BORROWED, frozenset({2, 3}))]


def test_a_slot_waits_since_no_known_moment() -> None:
    (job,) = kept_back_waiting((SLOT,), {814: ReleasedSoon(BORROWED, frozenset({0}))})
    assert (job.submit_s, job.eligible_s) == (None, None)


def test_all_others_stay_the_very_records_that_they_were() -> None:
    runs = a_job(901, task_index=1, array_job_id=814, state=JobState.RUNNING)
    waits, other = a_job(902, task_index=2, array_job_id=814), a_job(7, held=True)
    jobs = (runs, waits, other, SLOT)
    shown = kept_back_waiting(jobs, {814: ReleasedSoon(BORROWED, frozenset({1, 2}))})
    assert all(job is was for job, was in zip(shown, jobs, strict=True))
    assert kept_back_waiting(jobs, {}) is jobs
