"""Tests moves of waiting jobs between two QOS, and which jobs are left alone."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from builders.jobs import a_job
from builders.tenants import policy_of, tenant
from stand_ins.scripted import ScriptedSlurm, sync_of
from stand_ins.scripted import settings as site

from slicewise.cluster.language.jobs import JobState, JobTag, JobView
from slicewise.cluster.language.slurm.interface import JobChange, Target, Tasks
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.daemon.qos_loop import QosLoop
from slicewise.slurm_plugin.rules.admission.qos_switch import MOVES, moves, tree_moves
from slicewise.slurm_plugin.rules.quota.jobs import JobsByHolder, jobs_by_holder
from slicewise.slurm_plugin.rules.quota.standings import standings
from slicewise.slurm_plugin.rules.quota.types import Loan

pytestmark = pytest.mark.usefixtures("clock")

COSTS = {"1g.10gb": Millislices(1000)}
MANAGED = frozenset({"gpu"})
OWN, BORROWED = "slicewise_vision", "slicewise_vision_borrowed"
BORROWS = {"borrowing_limit_millislices": Millislices(2000)}
NOBODY = jobs_by_holder((), MANAGED, COSTS, {})
POLICY = policy_of(tenant("vision", 2000, **BORROWS), tenant("nlp", 4000))


def job(job_id: int, qos: str = OWN, **changes: Any) -> JobView:
    flexible = JobTag("ab", "vision", is_flexible=True).text()
    return a_job(job_id, **({"qos": qos, "priority": 10, "admin_comment": flexible} | changes))


def running(job_id: int, qos: str = OWN, **changes: Any) -> JobView:
    return job(job_id, qos, state=JobState.RUNNING, reason="None", **changes)


def fixed(job_id: int, qos: str = OWN, **changes: Any) -> JobView:
    return job(job_id, qos, admin_comment=JobTag("ab", "vision").text(), **changes)


def array(job_id: int, count: int, qos: str = OWN, **changes: Any) -> JobView:
    return job(job_id, qos, array_job_id=job_id, untouched=frozenset(range(count)), **changes)


def moved(*jobs: JobView) -> Mapping[Target, str]:
    return moves(POLICY, jobs_by_holder(jobs, MANAGED, COSTS, {}), {})


def test_what_the_guarantee_has_no_room_for_is_borrowed() -> None:
    assert moved(running(1), job(2), job(3)) == {3: BORROWED}


def test_what_borrowed_runs_hold_beyond_loans_is_no_room_of_the_guarantee() -> None:
    """In its own QOS such a job can't start before these runs end, whatever is lent."""
    jobs = jobs_by_holder([running(1, BORROWED), job(2), job(3)], MANAGED, COSTS, {})
    assert moves(POLICY, jobs, standings(POLICY, ())) == {3: BORROWED}
    lent = Loan("nlp", "vision", Millislices(1000))
    lends = replace(POLICY["nlp"].quota, lending_limit_millislices=Millislices(4000))
    policy = {**POLICY, "nlp": replace(POLICY["nlp"], quota=lends)}
    assert moves(policy, jobs, standings(policy, (lent,))) == {}
    by_type = replace(POLICY["vision"].quota, type_nominals={"1g.10gb": 2})
    policy = {**POLICY, "vision": replace(POLICY["vision"], quota=by_type)}
    assert moves(policy, jobs, standings(policy, ())) == {}, "there the own QOS comes first"


def test_what_waits_for_a_loan_keeps_no_other_from_one() -> None:
    """GPUs of the first may be busy: a loan would start the others."""
    large = {"gres/gpu:1g.10gb": "2"}
    first = job(3, BORROWED, priority=20, tres=large)
    assert moved(running(1), running(2), first, job(4)) == {4: BORROWED}
    assert moved(running(1), running(2), first, job(4, BORROWED)) == {}


def test_what_runs_on_loan_is_no_reason_to_wait_for_the_guarantee_either() -> None:
    runs = [running(number, BORROWED) for number in range(4)]
    assert moved(*runs, job(5, BORROWED), job(6, BORROWED), job(7)) == {
        5: OWN,
        6: OWN,
        7: BORROWED,
    }


def test_room_is_for_the_highest_priority_first() -> None:
    assert moved(running(1), job(2, priority=1), job(3, BORROWED, priority=2)) == {
        2: BORROWED,
        3: OWN,
    }


def test_jobs_of_accounts_without_a_quota_take_of_the_tenant_in_whose_qos_they_are() -> None:
    """Slurm counts them there; else more jobs wait in the own QOS than could start in it."""
    runs = running(1, account="students")
    assert moved(runs, job(2), job(3)) == {3: BORROWED}
    waits = job(4, priority=11, account="students")
    assert moved(runs, waits, job(2), job(3)) == {2: BORROWED, 3: BORROWED}


def test_among_equals_for_who_came_first() -> None:
    assert moved(running(1), job(3), job(2, BORROWED)) == {2: OWN, 3: BORROWED}


def test_without_a_borrowing_limit_nothing_is_borrowed() -> None:
    policy = policy_of(tenant("vision", 2000))
    jobs = [running(1), job(2), job(3)]
    assert moves(policy, jobs_by_holder(jobs, MANAGED, COSTS, {}), {}) == {}


@pytest.mark.parametrize(
    "other",
    [
        job(2, held=True, reason="JobHeldUser"),
        job(2, reason="BeginTime"),
        job(2, reason="Dependency"),
        fixed(2),
        job(2, admin_comment=""),
        job(2, admin_comment=JobTag("ab", "nlp", is_flexible=True).text()),
        job(2, "normal"),
        job(2, partition="cpu"),
        job(2, tres={"gres/gpu": "1"}),
        job(2, account="guest"),
    ],
)
def test_left_alone(other: JobView) -> None:
    assert moved(running(0), running(1), other) == {}


def test_what_does_not_move_takes_its_room_in_its_turn() -> None:
    assert moved(running(1), fixed(2), job(3)) == {3: BORROWED}
    assert moved(running(1), fixed(2, priority=1), job(3)) == {}


@pytest.mark.parametrize("reason", ["JobArrayTaskLimit", "AssocGrpGRES", "PartitionTimeLimit"])
def test_what_waits_for_no_quota_takes_none_from_others(reason: str) -> None:
    first = array(2, 2, priority=20, reason=reason)
    assert moved(running(1), first, job(20, BORROWED)) == {20: OWN}
    assert moved(running(1), replace(first, reason="Priority"), job(20)) == {20: BORROWED}


@pytest.mark.parametrize("reason", ["JobArrayTaskLimit", "AssocMaxJobsLimit"])
def test_what_waits_for_no_quota_does_not_follow_each_start_and_end(reason: str) -> None:
    """Thousands of one user's jobs may wait for the end of one: all of them would come and go."""
    waiting = [job(number, reason=reason) for number in (3, 4)]
    assert moved(running(1), running(2), *waiting) == {}
    assert moved(running(1), *waiting) == {}
    back = [replace(one, qos=BORROWED) for one in waiting]
    assert moved(running(1), running(2), *back) == {}
    assert moved(running(1), *back) == {3: OWN, 4: OWN}


class TestArrays:
    """All waiting tasks of an array are where the next one belongs."""

    def test_as_long_as_the_guarantee_has_room(self) -> None:
        assert moved(running(1), array(5, 9)) == {}
        assert moved(running(1), array(5, 9, BORROWED)) == {Tasks(5, frozenset(range(9))): OWN}

    def test_then_they_wait_for_a_loan(self) -> None:
        both = running(1), running(2)
        assert moved(*both, array(5, 9)) == {Tasks(5, frozenset(range(9))): BORROWED}
        assert moved(*both, array(5, 9, BORROWED)) == {}

    def test_tasks_with_a_record_of_their_own_go_along(self) -> None:
        both = running(1), running(2)
        own = job(6, array_job_id=5, task_index=0)
        there = job(7, BORROWED, array_job_id=5, task_index=1)
        rest = replace(array(5, 9), untouched=frozenset({2, 3}))
        assert moved(*both, own, there, rest) == {Tasks(5, frozenset({0, 2, 3})): BORROWED}

    def test_what_fits_of_it_takes_its_room(self) -> None:
        assert moved(array(5, 1), job(6), job(7)) == {7: BORROWED}

    def test_no_more_is_changed_at_once_than_slurm_bears(self) -> None:
        wide = policy_of(tenant("vision", 1000, borrowing_limit_millislices=Millislices(10**6)))
        jobs = [job(number) for number in range(900)]
        assert len(moves(wide, jobs_by_holder(jobs, MANAGED, COSTS, {}), {})) == MOVES


class Refusing(ScriptedSlurm):
    """Takes no change."""

    def __init__(self, *jobs: JobView) -> None:
        super().__init__(*jobs)
        self.tried: list[Target] = []

    async def update(self, changes: Mapping[Target, JobChange]) -> Mapping[Target, str]:
        self.tried.extend(changes)
        return dict.fromkeys(changes, "Invalid qos specification")


class TestTurn:
    async def turned(self, mode: str = "enforce", turns: int = 1) -> ScriptedSlurm:
        slurm = ScriptedSlurm(running(1), running(2), job(3))
        cluster_state = sync_of(slurm, mode)
        cluster_state.set_policy(POLICY, {})
        loop = QosLoop(site(mode), slurm, cluster_state)
        await loop.turn()
        assert slurm.actions == []
        await cluster_state.turn()
        for _ in range(turns):
            await loop.turn()
        return slurm

    async def test_it_acts_once_on_each_look(self) -> None:
        slurm = await self.turned(turns=3)
        ((what, target),) = slurm.actions
        assert (target, "qos='slicewise_vision_borrowed'" in what) == (3, True)

    async def test_what_slurm_refuses_holds_up_nothing_else(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        slurm = Refusing(running(1), running(2), *(job(number) for number in range(3, MOVES + 8)))
        cluster_state = sync_of(slurm)
        wide = {"borrowing_limit_millislices": Millislices(10**6)}
        cluster_state.set_policy(policy_of(tenant("vision", 2000, **wide)), {})
        loop = QosLoop(site(), slurm, cluster_state)
        stirred: list[int] = []
        monkeypatch.setattr(cluster_state.pacing, "stir", lambda: stirred.append(1))
        tried = []
        for _ in range(3):
            await cluster_state.turn()
            cluster_state.acted.clear()
            await loop.turn()
            tried.append(len(slurm.tried))
            assert not cluster_state.acted.is_set()
        assert (tried, stirred) == ([MOVES, MOVES + 5, MOVES + 5], [])

    @pytest.mark.parametrize(("count", "at_once"), [(MOVES - 1, True), (MOVES + 5, False)])
    async def test_a_long_queue_is_moved_with_pauses(self, *, count: int, at_once: bool) -> None:
        jobs = (job(number) for number in range(3, count + 3))
        slurm = ScriptedSlurm(running(1), running(2), *jobs)
        cluster_state = sync_of(slurm)
        wide = {"borrowing_limit_millislices": Millislices(10**6)}
        cluster_state.set_policy(policy_of(tenant("vision", 2000, **wide)), {})
        await cluster_state.turn()
        cluster_state.acted.clear()
        await QosLoop(site(), slurm, cluster_state).turn()
        assert cluster_state.acted.is_set() == at_once

    @pytest.mark.parametrize("mode", ["observe", "advise"])
    async def test_it_does_nothing_in_other_modes(self, mode: str) -> None:
        assert (await self.turned(mode)).actions == []


def test_what_the_guarantee_has_no_more_instances_for_is_borrowed() -> None:
    """One of two slices is free, and the guarantee covers one instance of the type."""
    quota = {**BORROWS, "type_nominals": {"1g.10gb": 1}}
    policy = policy_of(tenant("vision", 2000, **quota))
    jobs = [running(1), job(2, reason="QOSGrpGRES"), fixed(3, reason="QOSGrpGRES")]
    assert moves(policy, jobs_by_holder(jobs, MANAGED, COSTS, {}), {}) == {2: BORROWED}
    alone = [job(2, BORROWED)]
    assert moves(policy, jobs_by_holder(alone, MANAGED, COSTS, {}), {}) == {2: OWN}
    tasks = array(4, 3)
    beside = [running(1), tasks]
    assert moves(policy, jobs_by_holder(beside, MANAGED, COSTS, {}), {}) == {
        Tasks(4, frozenset({0, 1, 2})): BORROWED
    }


def test_what_is_known_of_a_tree_counts_while_nothing_of_it_changes() -> None:
    policy = policy_of(tenant("vision", 1000, **BORROWS), tenant("speech", 1000, **BORROWS))
    spoken = JobTag("cd", "speech", is_flexible=True).text()
    theirs = [
        job(number, "slicewise_speech", account="speech", admin_comment=spoken) for number in (7, 8)
    ]
    waits = [job(2), job(3), *theirs]

    def look(*runs: JobView, known: JobsByHolder = NOBODY) -> JobsByHolder:
        found = jobs_by_holder((*runs, *waits), MANAGED, COSTS, {})
        return known.with_others(found.others, found.held)

    first = look(running(1))
    trees = tree_moves(policy, first, {})
    assert moves(policy, first, {}, trees=trees) == {
        2: BORROWED,
        3: BORROWED,
        8: "slicewise_speech_borrowed",
    }
    room = look(known=first)
    after = tree_moves(policy, room, {}, trees)
    assert moves(policy, room, {}, trees=after) == {3: BORROWED, 8: "slicewise_speech_borrowed"}
    assert (after["speech"] is trees["speech"], after["vision"] is trees["vision"]) == (True, False)
    waits[0] = replace(waits[0], priority=1)
    behind = look(known=room)
    assert moves(policy, behind, {}, trees=tree_moves(policy, behind, {}, after)) == {
        2: BORROWED,
        8: "slicewise_speech_borrowed",
    }
    small = policy_of(tenant("vision", 1000), tenant("speech", 1000))
    assert moves(small, behind, {}, trees=tree_moves(small, behind, {}, after)) == {}
