"""Tests which batch jobs Slicewise may requeue before Slurm preempts any."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from builders.jobs import a_running_job

from slicewise.cluster.language.jobs import JobState, JobTag, JobView, RunOfJob
from slicewise.cluster.language.slurm.interface import Qos
from slicewise.slurm_plugin.rules.common.qos_names import borrowed_qos, qos_name
from slicewise.slurm_plugin.rules.reclaim.requeueable import requeueable

NOW_S = 100_000
LENT, OWN = borrowed_qos("nlp"), qos_name("vision")
BORROWED = Qos(LENT, {"billing": 3000}, frozenset(), preempt_mode="requeue")
QOS = (BORROWED, Qos(OWN, {"billing": 3000}, frozenset({LENT})))
CONF = {
    "PreemptType": "preempt/qos",
    "PreemptMode": "REQUEUE",
    "PreemptExemptTime": "00:00:00",
    "JobRequeue": "1",
    "KillWait": "30 sec",
}
RUN = 1, NOW_S - 500


def batch(**changes: Any) -> JobView:
    tag = JobTag("0123456789abcdef", "nlp").text()
    job = a_running_job(1, "nlp", qos=LENT, start_s=RUN[1], admin_comment=tag, priority=700)
    return replace(job, **changes)


def may(
    *jobs: JobView,
    qos: Iterable[Qos] = QOS,
    grace_s: int = 60,
    refused: Iterable[RunOfJob] = (),
    **conf: str,
) -> set[RunOfJob]:
    found = requeueable(
        jobs or (batch(),),
        qos,
        {**CONF, **conf},
        grace_s=grace_s,
        now_s=NOW_S,
        refused=frozenset(refused),
    )
    return set(found)


def test_a_batch_job_that_slurm_would_requeue_now_may_be_requeued() -> None:
    assert may() == {RUN}


@pytest.mark.parametrize(
    "job",
    [
        batch(qos=OWN),
        batch(qos="normal"),
        batch(state=JobState.COMPLETING),
        batch(state=JobState.SUSPENDED),
        batch(state=JobState.CONFIGURING, start_s=None),
        batch(unread=frozenset({"tres"})),
        batch(het_job_id=RUN[0]),  # the first component: all others would go with it
        batch(het_job_id=7),  # another one, whose requeue Slurm refuses
        batch(het_job_id=-1, unread=frozenset({"het_job_id"})),
        batch(admin_comment=""),
        batch(admin_comment=JobTag("0123456789abcdef", "nlp", service="bert").text()),
    ],
)
def test_no_other_job(job: JobView) -> None:
    assert may(job) == set()


@pytest.mark.parametrize(
    "changes",
    [
        {"preempt_mode": "cancel"},
        {"preempt_mode": "suspend"},
        {"preempt_mode": "within,requeue"},
        {"grace_s": 1},
        {"preempt_exempt_s": 501},
    ],
)
def test_a_qos_whose_jobs_slurm_ends_otherwise_is_left_to_slurm(changes: dict[str, Any]) -> None:
    assert may(qos=(replace(BORROWED, **changes), QOS[1])) == set()


def test_a_qos_that_no_tenants_own_one_preempts_is_left_alone() -> None:
    others = Qos("urgent", {}, frozenset({LENT}))
    assert may(qos=(BORROWED, replace(QOS[1], preempt=frozenset()), others)) == set()
    assert may(qos=()) == set()
    by_priority = replace(QOS[1], preempt_mode="requeue,priority")
    assert may(qos=(BORROWED, by_priority)) == set()


@pytest.mark.parametrize(("mode", "found"), [("REQUEUE", {RUN}), ("CANCEL", set())])
def test_a_qos_without_a_mode_has_the_clusters(mode: str, found: set[RunOfJob]) -> None:
    own = replace(BORROWED, preempt_mode="cluster")
    assert may(qos=(own, QOS[1]), PreemptMode=mode) == found


@pytest.mark.parametrize(
    ("conf", "found"),
    [
        ({"PreemptType": "preempt/none"}, set()),
        ({"JobRequeue": "0"}, set()),
        ({"PreemptExemptTime": "00:08:20"}, {RUN}),
        ({"PreemptExemptTime": "00:08:21"}, set()),
        ({"PreemptExemptTime": "NONE"}, {RUN}),
        ({"PreemptExemptTime": "soon"}, set()),
        ({"PreemptMode": "REQUEUE,PRIORITY"}, set()),
        ({"PreemptParameters": "youngest_first,min_exempt_priority=701"}, {RUN}),
        ({"PreemptParameters": "min_exempt_priority=700"}, set()),
        ({"PreemptParameters": "send_user_signal"}, set()),
        ({"SlurmctldParameters": "preempt_send_user_signal"}, set()),
        ({"KillWait": "59 sec"}, {RUN}),
        ({"KillWait": "60 sec"}, set()),
    ],
)
def test_what_slurm_conf_says_holds(conf: dict[str, str], found: set[RunOfJob]) -> None:
    assert may(**conf) == found


def test_the_qos_own_exempt_time_counts_instead_of_the_clusters() -> None:
    own = replace(BORROWED, preempt_exempt_s=0)
    assert may(qos=(own, QOS[1]), PreemptExemptTime="10:00:00") == {RUN}


def test_a_run_that_slurm_refused_to_requeue_is_left_to_it_and_a_later_one_is_not() -> None:
    assert may(refused={RUN}) == set()
    assert may(refused={(1, 5)}) == {RUN}


def test_without_a_look_at_the_conf_nobody_is_requeued() -> None:
    assert requeueable((batch(),), QOS, {}, grace_s=60, now_s=NOW_S) == frozenset()
