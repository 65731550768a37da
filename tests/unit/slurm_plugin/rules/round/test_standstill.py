"""Tests jobs that don't start for reasons that only Slurm knows."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from builders.nodes import a_node
from stand_ins.reclaim_world import COSTS, PARTITIONS, one

from slicewise.cluster.language.jobs import JobState, JobView, NodeView
from slicewise.slurm_plugin.rules.quota.jobs import jobs_by_holder
from slicewise.slurm_plugin.rules.round.standstill import (
    Queued,
    first_until_s,
    standing_still,
    stuck,
)

FREE = a_node("n", "MIXED", gpus_allotted={"1g.10gb": 3}, partitions=PARTITIONS)
FULL = replace(FREE, gpus_allotted={"1g.10gb": 7})
QOS = "slicewise_a_borrowed"
WAITS = replace(one(3, "a", "1g.10gb", borrowed=True), reason="QOSGrpBilling")
RUNS = replace(one(4, "a", "1g.10gb", borrowed=True), state=JobState.RUNNING, nodes=("n",))


def still(
    *jobs: JobView,
    limit: int = 1000,
    node: NodeView = FREE,
    before: Mapping[int, float] | None = None,
    now_s: float = 90.0,
) -> Mapping[int, float]:
    """By job id, but for arrays."""
    given, there = (
        {"partitions": PARTITIONS, "now_s": now_s},
        jobs_by_holder(jobs, PARTITIONS, COSTS, {}),
    )
    known = {Queued(job_id, 1): since_s for job_id, since_s in (before or {}).items()}
    found = standing_still(known, there, [node], {QOS: limit}, **given)
    return {queued.job_id: since_s for queued, since_s in found.items()}


@pytest.mark.parametrize("reason", ["Resources", "Priority", "QOSGrpBilling"])
def test_who_has_quota_and_gpus_and_waits_stands_still(reason: str) -> None:
    """Whatever Slurm says: of most jobs of a partition it has not looked at that one again."""
    job = replace(WAITS, reason=reason)
    assert still(job) == {3: 90.0}
    assert still(job, before={3: 50.0}) == {3: 50.0}


def test_who_lacks_gpus_or_quota_does_not() -> None:
    drained = replace(FREE, states=frozenset({"IDLE", "DRAIN"}))
    assert still(WAITS, node=FULL, before={3: 50.0}) == {}
    assert still(WAITS, node=drained, before={3: 50.0}) == {}
    assert still(WAITS, limit=999, before={3: 50.0}) == {}
    assert still(WAITS, RUNS, limit=1999, before={3: 50.0}) == {}
    assert still(WAITS, RUNS, limit=2000, before={3: 50.0}) == {3: 50.0}


def test_who_stood_still_for_long_is_known_without_quota() -> None:
    """Else it would have its loan back as soon as others have got it."""
    assert still(WAITS, limit=0, before={3: 50.0}, now_s=349.0) == {}
    assert still(WAITS, limit=0, before={3: 50.0}, now_s=350.0) == {3: 50.0}
    assert still(WAITS, limit=0, node=FULL, before={3: 50.0}, now_s=350.0) == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"reason": "Dependency"},
        {"reason": "Licenses"},
        {"held": True},
        {"state": JobState.RUNNING},
        {"qos": "slicewise_a"},
        {"partition": "cpu"},
        {"tres": {"cpu": "1"}},
    ],
)
def test_others_do_not(changes: dict[str, object]) -> None:
    assert still(replace(WAITS, **changes), limit=9000, before={3: 50.0}, now_s=900.0) == {}


def test_who_stands_still_gives_way_for_every_second_five_minutes() -> None:
    """Slurm may only be slow, and would start it next."""
    found = [
        bool(stuck({Queued(3, 1): 50.0}, now_s))
        for now_s in (50.0, 349.0, 350.0, 649.0, 650.0, 950.0)
    ]
    assert found == [False, False, True, True, False, True]


def test_who_waits_behind_others_does_not() -> None:
    """Neither behind their quota nor behind their GPUs."""
    behind = replace(WAITS, job_id=5, priority=WAITS.priority - 1)
    assert still(behind, WAITS, before={3: 50.0, 5: 50.0}) == {3: 50.0}
    one_free = replace(FREE, gpus_allotted={"1g.10gb": 6})
    assert still(behind, WAITS, limit=2000, node=one_free, before={5: 50.0}) == {3: 90.0}
    assert still(behind, WAITS, limit=2000, before={5: 50.0}) == {3: 90.0, 5: 50.0}


def test_an_array_of_which_tasks_start_does_not_stand_still() -> None:
    array = replace(WAITS, untouched=frozenset({1, 2, 3}))
    known, there = {Queued(3, 4): 50.0}, jobs_by_holder([array], PARTITIONS, COSTS, {})
    found = standing_still(known, there, [FREE], {QOS: 1000}, partitions=PARTITIONS, now_s=90.0)
    assert found == {Queued(3, 3): 90.0}


def first(
    known: Mapping[int, float],
    since_s: Mapping[Queued, float],
    *jobs: JobView,
    now_s: float = 110.0,
    limit: int = 0,
) -> Mapping[int, float]:
    there, limits = jobs_by_holder(jobs, PARTITIONS, COSTS, {}), {QOS: limit, "slicewise_b": limit}
    return first_until_s(known, since_s, there, limits, now_s)


def over(
    *before: JobView, now_s: float = 110.0, job: JobView = WAITS, limit: int = 0
) -> frozenset[int]:
    """The array of a task that stands still since 50 s, if it goes first; others are before it, and
    have so much quota.
    """
    return frozenset(first({}, {Queued(3, 1): 50.0}, job, *before, now_s=now_s, limit=limit))


def test_who_stands_still_for_seconds_goes_first_for_four_minutes_and_an_hour_later_again() -> None:
    assert over(now_s=54.0) == frozenset()
    assert over(now_s=55.0) == {814}
    until_s: dict[float, float | None] = {}
    found: Mapping[int, float] = {}
    for now_s in (110.0, 300.0, 3709.0, 3710.0):
        # Its user has held it and let it go each time: it stands still again by now.
        since_s = {Queued(3, 1): now_s - 5.0}
        found = first(found, since_s, WAITS, now_s=now_s)
        until_s[now_s] = found.get(814)
    assert until_s == {110.0: 350.0, 300.0: 350.0, 3709.0: 350.0, 3710.0: 3950.0}


def test_an_array_goes_first_as_one_though_a_task_of_it_is_cancelled() -> None:
    array = replace(WAITS, array_job_id=814, untouched=frozenset({1, 2, 3}))
    found = first({}, {Queued(3, 3): 50.0}, array)
    fewer = replace(array, job_id=9, untouched=frozenset({1, 2}))
    assert first(found, {Queued(9, 2): 50.0}, fewer, now_s=400.0) == {814: 350.0}


def test_who_takes_whole_nodes_does_not_go_first() -> None:
    tag = "slicewise:1 token=ab tenant=a flexible whole=7000"
    assert over(job=replace(WAITS, admin_comment=tag)) == frozenset()


def test_nobody_goes_before_jobs_that_wait_for_gpus_of_its_types() -> None:
    place = {"job_id": 7, "priority": WAITS.priority + 1, "reason": "Resources"}
    same, other = replace(WAITS, **place), replace(one(7, "a", "3g.40gb", borrowed=True), **place)
    assert over(other) == {814}
    assert over(same) == frozenset()
    assert over(other, replace(same, job_id=8)) == frozenset()
    assert over(replace(same, priority=WAITS.priority - 1)) == {814}
    # For who waits for quota Slurm keeps no nodes, nor does Slicewise for other partitions.
    assert over(replace(same, reason="QOSGrpBilling")) == {814}
    assert over(replace(same, partition="cpu")) == {814}


@pytest.mark.parametrize("reason", ["QOSGrpBilling", "None"])
@pytest.mark.parametrize("qos", [QOS, "slicewise_b"])
def test_who_has_had_quota_for_a_moment_is_not_passed(reason: str, qos: str) -> None:
    """Until backfill comes to a job it has the reason of the time before, half a minute by default:
    the GPUs that others have left for it would be gone by then.
    """
    large = replace(WAITS, job_id=7, priority=WAITS.priority + 1, qos=qos, reason=reason)
    assert over(large, limit=1000) == frozenset()
    assert over(large, limit=999) == {814}, "Slurm keeps nothing for it"


def test_nobody_goes_before_a_job_that_waits_for_whole_nodes() -> None:
    """It waits for GPUs of all types there."""
    tag = "slicewise:1 token=ab tenant=a flexible whole=7000"
    whole = replace(one(7, "a", "3g.40gb", borrowed=True), admin_comment=tag, reason="Resources")
    assert over(replace(whole, priority=WAITS.priority + 1)) == frozenset()
    assert over(replace(whole, priority=WAITS.priority - 1)) == {814}
    # It has its GPUs by what Slicewise knows, and waits for the rest of its nodes.
    stands = replace(whole, priority=WAITS.priority + 1)
    since_s = {Queued(3, 1): 50.0, Queued(7, 1): 50.0}
    assert first({}, since_s, WAITS, stands, limit=9000) == {}
