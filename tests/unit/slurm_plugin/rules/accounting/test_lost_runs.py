"""Tests by when a lost run is known to have ended, and when accounting counts as not knowing."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from builders.ledger_world import START_S, SimulatedRun, job_view, run_record
from builders.runs import a_reservation

from slicewise.cluster.language.jobs import JobState, JobView
from slicewise.slurm_plugin.rules.accounting.lost_runs import (
    LOST_AFTER_S,
    LostRun,
    lost_ends,
    lost_runs,
    unmoved,
)
from slicewise.slurm_plugin.rules.accounting.types import RunKey

KEY = RunKey("testing", 7, START_S)
HELD = a_reservation(key=KEY)
RUNNING = job_view(SimulatedRun(7, START_S, {"1g.10gb": 1}, "gpu", 60))
LOOKED_S = START_S + 100


def look(
    *jobs: JobView, before: Mapping[RunKey, LostRun] | None = None, looked_s: int = LOOKED_S
) -> Mapping[RunKey, LostRun]:
    return lost_runs(before or {}, looked_s, looked_s, jobs, [HELD])


@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.SUSPENDED])
def test_what_runs_is_not_gone(state: JobState):
    assert look(replace(RUNNING, state=state)) == {}


@pytest.mark.parametrize(
    "job",
    [
        replace(RUNNING, state=JobState.OTHER),
        replace(RUNNING, state=JobState.OTHER, unread=frozenset({"state"})),
        replace(RUNNING, start_s=None, unread=frozenset({"start_s"})),
    ],
)
def test_what_can_not_be_read_is_not_gone(job: JobView):
    assert look(job) == {}


@pytest.mark.parametrize(
    ("job", "end_s"),
    [
        (None, LOOKED_S),
        (replace(RUNNING, state=JobState.COMPLETING), LOOKED_S),
        # Its own end, or that of another run of the same job.
        (replace(RUNNING, state=JobState.ENDED, end_s=START_S + 30), START_S + 30),
        (replace(RUNNING, state=JobState.ENDED, start_s=1, end_s=START_S + 30), LOOKED_S),
        # Requeued after its end, whatever became of it then.
        (replace(RUNNING, state=JobState.PENDING, submit_s=START_S + 40), START_S + 40),
        (replace(RUNNING, start_s=START_S + 50, submit_s=START_S + 40), START_S + 40),
        # The clocks of this host and of slurmctld's may differ.
        (replace(RUNNING, state=JobState.PENDING, submit_s=LOOKED_S + 5), LOOKED_S),
    ],
)
def test_by_when_it_had_ended(job: JobView | None, end_s: int):
    found = look(*([] if job is None else [job]))
    assert found.keys() == {KEY}
    assert (found[KEY].since_s, found[KEY].end_s) == (LOOKED_S, end_s)


def test_no_run_ends_before_its_start():
    assert look(looked_s=START_S - 5)[KEY].end_s == START_S


def test_the_first_look_counts_and_the_best_evidence():
    before = look()
    assert look(before=before, looked_s=LOOKED_S + 50) == before
    requeued = replace(RUNNING, state=JobState.PENDING, submit_s=START_S + 40)
    known = look(requeued, before=before, looked_s=LOOKED_S + 50)
    assert known == {KEY: LostRun(LOOKED_S, START_S + 40)}
    # Slurm forgets an ended job after MinJobAge.
    assert look(before=known, looked_s=LOOKED_S + 500) == known


def test_what_runs_after_all_or_is_settled_is_forgotten():
    before = look()
    assert look(RUNNING, before=before) == {}
    assert lost_runs(before, LOOKED_S, LOOKED_S, [], []) == {}


def test_accounting_has_its_time():
    gone = {KEY: LostRun(since_s=LOOKED_S, end_s=START_S + 40)}
    assert lost_ends(gone, LOOKED_S + LOST_AFTER_S - 1) == {}
    assert lost_ends(gone, LOOKED_S + LOST_AFTER_S) == {KEY: START_S + 40}


CANCELLED = replace(RUNNING, state=JobState.COMPLETING, end_s=START_S + 4)
REVIVED = replace(RUNNING, state=JobState.PENDING, start_s=None, submit_s=START_S + 15)
MOVED = run_record(SimulatedRun(7, START_S, {"1g.10gb": 1}, "gpu", 60, end_s=START_S + 15), 2**31)


@pytest.mark.parametrize("state", [JobState.COMPLETING, JobState.ENDED])
def test_an_end_that_slurmctld_has_shown_is_not_moved_by_a_requeue(state: JobState):
    gone = look(replace(CANCELLED, state=state))
    gone = look(REVIVED, before=gone, looked_s=LOOKED_S + 1)
    assert unmoved([MOVED], "testing", gone) == (replace(MOVED, end_s=START_S + 4),)


@pytest.mark.parametrize(
    "job",
    [
        REVIVED,
        # While a requeued run ends: the planned start and end of the next one.
        replace(CANCELLED, start_s=START_S + 9, end_s=START_S + 10),
        replace(CANCELLED, start_s=None, end_s=None),
    ],
)
def test_accountings_end_counts_where_slurmctld_has_shown_none(job: JobView):
    assert unmoved([MOVED], "testing", look(job)) == (MOVED,)


def test_an_earlier_end_of_accounting_counts_and_a_run_without_one_goes_on():
    gone = look(CANCELLED)
    earlier = replace(MOVED, end_s=START_S + 3)
    others = (earlier, replace(MOVED, end_s=None), replace(MOVED, job_id=8))
    assert unmoved(others, "testing", gone) == others
