"""Tests which jobs are ranked, by which terms, and which changes Slurm gets first."""

from dataclasses import replace
from typing import Any

import pytest
from builders.jobs import a_job

from slicewise.cluster.language.jobs import JobState, JobView
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.admission.priority import Formula, PriorityTerms
from slicewise.slurm_plugin.rules.admission.priority_changes import (
    PriorityInput,
    Ranked,
    changes,
    ranked,
    terms_of,
)

NOW_S = 1000.0
FORMULA = Formula(3, 5, 2, 2, max=10_000, wait_full_s=1000, wait_full_limits=4, quantum=100)
STANDING = PriorityInput({"vision": 0.5}, {814: 0.8}, {"1g.10gb": Millislices(1000)}, FORMULA)


def waiting(**changes: Any) -> JobView:
    return a_job(**({"reason": "Priority", "priority": 7, "eligible_s": 900} | changes))


def test_a_plain_job_has_its_class_its_tenants_share_and_its_wait() -> None:
    tag = "slicewise:1 token=ab tenant=vision class=high"
    assert terms_of(waiting(admin_comment=tag), NOW_S, STANDING) == PriorityTerms(
        "high", 0.5, smallness=1.0, wait_s=100.0, time_limit_s=3600
    )


def test_a_begin_in_the_past_makes_no_job_older() -> None:
    terms = terms_of(waiting(submit_s=950, eligible_s=1), NOW_S, STANDING)
    assert terms == PriorityTerms("normal", 0.5, smallness=1.0, wait_s=50.0, time_limit_s=3600)


def test_what_a_job_asks_for_counts_by_slices_and_time_limit() -> None:
    ten = waiting(tres={"gres/gpu:1g.10gb": "10"}, time_limit_s=10 * 3600)
    terms = terms_of(ten, NOW_S, STANDING)
    assert terms is not None
    assert terms.smallness == pytest.approx(0.6)


def test_who_takes_whole_nodes_asks_for_all_that_they_have() -> None:
    tag = "slicewise:1 token=ab tenant=vision whole=10000"
    one = waiting(tres={"gres/gpu:1g.10gb": "1"}, time_limit_s=10 * 3600, admin_comment=tag)
    terms = terms_of(one, NOW_S, STANDING)
    assert terms is not None
    assert terms.smallness == pytest.approx(0.6)


def test_a_services_slot_has_the_urgency_of_its_backlog() -> None:
    tag = "slicewise:1 token=ab tenant=vision service=bert"
    slot = waiting(admin_comment=tag, array_job_id=814, task_index=3)
    assert terms_of(slot, NOW_S, STANDING) == PriorityTerms("normal", 0.5, 0.8, 1.0, 100.0, 3600)


def test_jobs_that_are_passed_over_are_told_by_their_ids() -> None:
    standing = replace(STANDING, passed_over=frozenset({901}))
    found = [terms_of(waiting(job_id=each), NOW_S, standing) for each in (900, 901)]
    assert [one.is_passed_over for one in found if one is not None] == [False, True]


def test_a_plain_array_has_no_urgency() -> None:
    assert terms_of(waiting(array_job_id=814), NOW_S, STANDING) == PriorityTerms(
        "normal", 0.5, smallness=1.0, wait_s=100.0, time_limit_s=3600
    )


def test_a_tenant_without_quota_has_no_share() -> None:
    tag = "slicewise:1 token=ab tenant=gone"
    assert terms_of(waiting(admin_comment=tag), NOW_S, STANDING) == PriorityTerms(
        "normal", 0.0, smallness=1.0, wait_s=100.0, time_limit_s=3600
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"held": True},
        {"state": JobState.RUNNING},
        {"state": JobState.ENDED},
        {"admin_comment": "somebody else's"},
        {"eligible_s": None},
        {"eligible_s": 1001},
    ],
)
def test_who_does_not_wait_or_is_not_ours_is_not_ranked(changes: dict[str, Any]) -> None:
    assert ranked((waiting(**changes),), NOW_S, STANDING) == ()


def test_a_task_that_has_ended_specially_and_was_released_waits() -> None:
    assert len(ranked((waiting(state=JobState.SPECIAL_EXIT),), NOW_S, STANDING)) == 1


def wanted(job_id: int, factor: int) -> Ranked:
    return Ranked(waiting(job_id=job_id), PriorityTerms(), factor)


def told(known: dict[int, int], most: int, *all_wanted: Ranked) -> list[int]:
    return [each.job.job_id for each in changes(all_wanted, known, FORMULA, most)]


def test_the_largest_differences_go_first_and_of_equal_ones_the_oldest_job() -> None:
    known = {1: 0, 2: 0, 3: 900, 4: 500}
    order = told(known, 9, wanted(1, 300), wanted(2, 300), wanted(3, 100), wanted(4, 700))
    assert order == [3, 1, 2, 4]


def test_no_more_than_may_be_told() -> None:
    assert told({1: 0, 2: 0}, 1, wanted(1, 300), wanted(2, 400)) == [2]
    assert told({1: 0}, 0, wanted(1, 300)) == []


@pytest.mark.parametrize(("before", "due"), [(900, [1]), (901, []), (1000, []), (1100, [1])])
def test_less_than_a_quantum_is_not_told(before: int, due: list[int]) -> None:
    assert told({1: before}, 9, wanted(1, 1000)) == due


def test_the_maximum_is_told_before_everything_else_however_small_the_difference() -> None:
    assert told({1: 0, 2: 9_999, 3: 10_000}, 1, wanted(1, 9_000), wanted(2, 10_000)) == [2]
    assert told({3: 10_000}, 9, wanted(3, 10_000)) == []


def test_of_whom_it_is_not_known_what_slurm_has_nothing_is_told() -> None:
    assert told({}, 9, wanted(1, 1000)) == []
