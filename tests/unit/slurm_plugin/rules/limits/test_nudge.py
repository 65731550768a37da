"""Tests by which change slurmctld is told to schedule once a limit has changed."""

from dataclasses import replace

import pytest
from stand_ins.scripted import job

from slicewise.cluster.language.jobs import JobState, JobView
from slicewise.cluster.language.slurm.interface import JobChange, Tasks
from slicewise.slurm_plugin.rules.limits.changes import changed_qos
from slicewise.slurm_plugin.rules.limits.nudge import nudge

OWN, LOAN, OTHER = "slicewise_nlp", "slicewise_nlp_borrowed", "slicewise_vision"
CHANGED = changed_qos(
    (
        (
            "modify",
            "qos",
            "where",
            f"name={OWN},{LOAN}",
            "set",
            "grptres=billing=1",
        ),
        ("modify", "account", "where", "name=vision", "cluster=c", "set", "grptres=gres/gpu:a=1"),
    )
)
WAITS = replace(
    job(0, JobState.PENDING, qos=OWN),
    array_job_id=None,
    task_index=None,
    job_id=7,
    held=False,
)


@pytest.mark.parametrize(
    "one",
    [
        replace(WAITS, qos=OTHER),
        replace(WAITS, state=JobState.RUNNING),
        replace(WAITS, held=True, priority=0),
        replace(WAITS, unread=frozenset({"qos", "tres"})),
        replace(WAITS, admin_comment=""),
    ],
)
def test_only_a_job_that_waits_in_a_changed_qos_is_touched(one: JobView) -> None:
    assert nudge([one], CHANGED) == {}


def test_one_change_is_enough_and_it_changes_nothing() -> None:
    first = replace(WAITS, job_id=9, priority=20)
    others = (WAITS, replace(WAITS, job_id=8, qos=LOAN))
    assert nudge([*others, first], CHANGED) == {9: JobChange(qos=OWN)}


def test_of_tasks_that_share_a_record_it_is_the_one_that_starts_next() -> None:
    """A change of all would make a record of each, and ask Slurm for thousands of changes."""
    tasks = replace(WAITS, array_job_id=7, untouched=frozenset(range(3, 1000)))
    assert nudge([tasks], CHANGED) == {Tasks(7, frozenset({3})): JobChange(qos=OWN)}


def test_no_array_gets_a_record_for_each_round() -> None:
    """A task that has a record of its own is taken again, whatever priority others have."""
    tasks = replace(WAITS, array_job_id=7, untouched=frozenset(range(4, 1000)), priority=50)
    apart = replace(WAITS, array_job_id=7, job_id=40, task_index=3, priority=20)
    assert nudge([tasks, apart], CHANGED) == {Tasks(7, frozenset({3})): JobChange(qos=OWN)}
