"""Tests what is remembered of runs on borrowed quota that were requeued."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import pytest
from builders.tenants import tenant
from builders.why_world import NOW_S, job, running, sight

from slicewise.cluster.language.jobs import JobState, JobTag, JobView
from slicewise.slurm_plugin.rules.common.qos_names import borrowed_qos, qos_name
from slicewise.slurm_plugin.rules.explain.why_job import jobs_named, why_job
from slicewise.slurm_plugin.rules.reclaim.given_way import GaveWay, gave_way

RAN = running(1, qos=borrowed_qos("vision"))
BACK = job(1, "QOSGrpBilling", qos=borrowed_qos("vision"), restarts=1)
LENDER = running(2, account="nlp", qos=qos_name("nlp"), start_s=NOW_S + 1)


def seen(*looks: tuple[JobView, ...]) -> Mapping[int, GaveWay]:
    known: Mapping[int, GaveWay] = {}
    for second, (before, now) in enumerate(pairwise(looks)):
        known = gave_way(known, before, now, NOW_S + second)
    return known


def test_it_is_told_for_whom_it_went_also_if_that_job_starts_later():
    told = GaveWay(NOW_S, "vision", 100, ("node1",), ("nlp",))
    assert seen((RAN,), (BACK, LENDER)) == {1: told}
    ends = replace(RAN, state=JobState.COMPLETING)
    assert seen((ends,), (BACK,), (BACK, LENDER)) == {1: told}
    assert seen((ends,), (BACK,)) == {1: replace(told, tenants=())}


@pytest.mark.parametrize(
    "changes",
    [
        {"nodes": ("node2",)},
        {"start_s": NOW_S - 40},
        {"start_s": NOW_S + 40},
        {"qos": borrowed_qos("nlp")},
        {"account": "vision", "qos": qos_name("vision")},
    ],
)
def test_only_what_started_there_and_then_on_its_own_quota_has_its_place(
    changes: dict[str, object],
):
    assert seen((RAN,), (BACK, replace(LENDER, **changes)))[1].tenants == ()


def test_what_runs_again_or_ends_or_was_never_borrowed_is_forgotten():
    assert seen((RAN,), (BACK,), (RAN,)) == {}
    assert seen((RAN,), (BACK,), ()) == {}
    own = {"qos": qos_name("vision")}
    assert seen((replace(RAN, **own),), (replace(BACK, **own), LENDER)) == {}
    slot = {"admin_comment": JobTag("ab", "vision", "bert").text()}
    assert seen((replace(RAN, **slot),), (replace(BACK, **slot), LENDER)) == {}


def test_its_user_is_told():
    """``why`` told only what it waits for now, as if it had never run."""
    tenants = (tenant("vision", 1000), tenant("nlp", 1000))
    known = seen((RAN,), (BACK, LENDER))
    now = replace(sight(BACK, LENDER, tenants=tenants, gave_way=known), now_s=NOW_S + 14 * 60)
    assert why_job("1", jobs_named("1", now.jobs), now).sentences[0] == (
        "It ran for 1 min 40 s on borrowed quota, and went back to the queue 14 min ago:"
        " jobs of nlp took its place."
    )
    by_us = replace(now, made_way={1: "nlp takes back 1 slice: job 2 waits"})
    assert why_job("1", jobs_named("1", by_us.jobs), by_us).sentences[0] == (
        "It ran for 1 min 40 s on borrowed quota, and went back to the queue 14 min ago, as"
        ' Slicewise requeued it for its lender ("nlp takes back 1 slice: job 2 waits").'
    )
    another = sight(BACK, tenants=tenants)
    assert why_job("1", jobs_named("1", another.jobs), another).sentences[0] == (
        "It ran before, and was requeued (1 time)."
    )
