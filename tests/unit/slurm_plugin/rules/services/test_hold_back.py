"""Tests which borrowers' slots wait for a lender, and until when."""

from dataclasses import replace

import pytest
from builders.tenants import policy_of, tenant
from stand_ins.scripted import job

from slicewise.cluster.language.jobs import JobState, JobView
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.quota.jobs import jobs_by_holder
from slicewise.slurm_plugin.rules.quota.types import Recall
from slicewise.slurm_plugin.rules.services.hold_back import about_to_start, still_waiting

COSTS = {"1g.10gb": Millislices(1000)}
PARTITIONS = frozenset({"gpu"})
POLICY = policy_of(tenant("vision", 2000), tenant("lab", 3000), tenant("nlp", 1000, "lab"))

FOR_VISION = {"nlp": frozenset({"vision"})}
TOLD: dict[str, frozenset[str]] = {"nlp": frozenset()}


def back(lender: str, borrower: str) -> Recall:
    return Recall(lender, borrower, Millislices(1000), 5)


def test_while_replicas_go_it_is_for_all_who_take_back_whoever_borrowed_from_them() -> None:
    recalls = [back("vision", "nlp"), back("hpc", "audio")]
    lenders = frozenset({"vision", "hpc"})
    assert still_waiting(TOLD, {"nlp"}, recalls, ()) == {"nlp": lenders}


def test_beyond_a_cap_it_is_for_nobody() -> None:
    assert still_waiting(TOLD, {"nlp"}, (), ()) == TOLD
    assert still_waiting(TOLD, (), (), ()) == {}


@pytest.mark.parametrize("borrower", ["nlp", "audio"])
def test_they_wait_while_the_lender_takes_something_back_from_anybody(borrower: str) -> None:
    assert still_waiting(FOR_VISION, (), [back("vision", borrower)], ()) == FOR_VISION


def test_they_wait_until_the_lender_s_job_has_started() -> None:
    assert still_waiting(FOR_VISION, (), (), {"vision"}) == FOR_VISION


def test_they_do_not_wait_for_another_lender() -> None:
    assert still_waiting(FOR_VISION, (), [back("hpc", "audio")], {"hpc"}) == {}


def test_a_lender_that_comes_later_has_replicas_of_its_own() -> None:
    still = still_waiting(FOR_VISION, (), [back("vision", "nlp"), back("hpc", "nlp")], ())
    assert still == FOR_VISION


WAITS = job(7, array_job_id=None, task_index=None, reason="Resources", held=False)
RUNS = replace(WAITS, job_id=908, state=JobState.RUNNING)


def starting(*jobs: JobView) -> frozenset[str]:
    return about_to_start(POLICY, jobs_by_holder(jobs, PARTITIONS, COSTS, {}))


def test_a_job_is_about_to_start_if_its_tenant_s_own_part_has_room_for_it() -> None:
    large = replace(WAITS, tres={"gres/gpu:1g.10gb": "2"})
    assert starting(WAITS, RUNS) == starting(large) == {"vision"}
    assert starting(large, RUNS) == starting(WAITS, RUNS, replace(RUNS, job_id=909)) == frozenset()


def test_what_is_held_on_borrowed_quota_leaves_its_own_part_as_it_is() -> None:
    borrowed = replace(RUNS, qos="slicewise_vision_borrowed")
    assert starting(WAITS, RUNS, borrowed) == {"vision"}
    assert starting(replace(WAITS, qos="slicewise_vision_borrowed")) == frozenset()


@pytest.mark.parametrize(
    "change",
    [{"held": True}, {"reason": "Dependency"}, {"reason": "AssocGrpGRES"}, {"partition": "cpu"}],
)
def test_what_would_not_start_with_more_quota_is_not_waited_for(change: dict[str, object]) -> None:
    assert starting(replace(WAITS, **change)) == frozenset()  # type: ignore[arg-type]


def test_what_those_below_a_tenant_have_is_not_its_own() -> None:
    of_lab = replace(WAITS, account="lab", qos="slicewise_lab", tres={"gres/gpu:1g.10gb": "3"})
    assert starting(of_lab) == frozenset()
    assert starting(replace(of_lab, tres={"gres/gpu:1g.10gb": "2"})) == {"lab"}
