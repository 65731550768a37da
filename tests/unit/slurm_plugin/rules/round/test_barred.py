"""Tests what is remembered of jobs that quota alone does not start."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from builders.tenants import policy_of, tenant
from stand_ins.scripted import job

from slicewise.cluster.language.jobs import JobState, JobView
from slicewise.cluster.language.slurm.interface import Association
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.common.qos_names import borrowed_qos, qos_name
from slicewise.slurm_plugin.rules.quota.jobs import jobs_by_holder
from slicewise.slurm_plugin.rules.round.barred import NOTHING_BARRED, Barred, barred

COSTS = {"1g.10gb": Millislices(1000)}
POLICY = policy_of(tenant("lab", 4000), tenant("team", 1000, "lab"), tenant("other", 1000))
MINUTES, JOBS = "AssocGrpBillingMinutes", "AssocMaxJobsLimit"
QUOTA = "QOSGrpBilling"


def waits(job_id: int, reason: str, account: str = "lab", **more: Any) -> JobView:
    plain = {
        "account": account,
        "qos": borrowed_qos(account),
        "reason": reason,
        "held": False,
        "tres": {"gres/gpu:1g.10gb": "1", "node": "1"},
        "array_job_id": None,
        "task_index": None,
        "user": f"user_{account}",
    }
    return job(0, job_id=job_id, **plain | more)


def runs(job_id: int, account: str = "lab", start_s: int = 0, **more: Any) -> JobView:
    state = {"state": JobState.RUNNING, "nodes": ("n0",), "start_s": start_s}
    return waits(job_id, "None", account, **state | more)


def look(
    before: Barred, now_s: int, *jobs: JobView, rows: Iterable[Association] = (), nodes: str = ""
) -> Barred:
    there = jobs_by_holder(jobs, frozenset({"gpu"}), COSTS, {})
    return barred(before, there, POLICY, tuple(rows), now_s=now_s, usable=frozenset(nodes))


def trials_until(seconds: int, other: str, *beside: JobView) -> list[int]:
    """When a job is lent quota that names another limit as soon as it has some."""
    state, found, has_quota = NOTHING_BARRED, [], True
    for now_s in range(0, seconds, 15):
        state = look(state, now_s, waits(1, other if has_quota else QUOTA), *beside)
        wants = not has_quota and 1 not in state.jobs
        found += [now_s] if wants else []
        has_quota = wants
    return found


def test_pauses_double_up_to_an_hour() -> None:
    found = trials_until(5 * 3600, MINUTES)
    assert found[0] == 15
    assert len([at_s for at_s in found if at_s < 3600]) <= 8
    gaps = [later - at_s for at_s, later in pairwise(found)]
    assert max(gaps) <= 2 * 3600 + 30
    assert len([at_s for at_s in found if at_s >= 3600]) <= 5


def test_without_another_limit_nothing_is_remembered() -> None:
    assert look(NOTHING_BARRED, 0, waits(1, QUOTA), waits(2, "Resources")) is NOTHING_BARRED
    assert look(NOTHING_BARRED, 0, waits(1, "QOSGrpBillingRunMinutes")) is NOTHING_BARRED


def kept() -> Barred:
    """Tried once in vain: it lacks quota, and is tried again in a minute."""
    state = NOTHING_BARRED
    for now_s, reason in enumerate((JOBS, QUOTA, JOBS, QUOTA), 10):
        state = look(state, now_s, waits(1, reason), runs(8), runs(9, "other"))
    assert state.jobs.keys() == {1}
    assert (state.damped, state.jobs[1].reason, state.jobs[1].due_s) == (1, JOBS, 60)
    (told,) = state.told((waits(1, QUOTA),))
    assert told.reason == JOBS
    return state


@pytest.mark.parametrize(
    ("jobs", "is_kept"),
    [
        ((waits(1, QUOTA), runs(8), runs(9, "other")), True),
        # A run of its own tree, or of its user, has ended.
        ((waits(1, QUOTA), runs(9, "other")), False),
        ((waits(1, QUOTA), runs(8)), True),
        # Slurm let it pass.
        ((waits(1, "Resources"), runs(8), runs(9, "other")), False),
        # It was changed, so nothing is known of it; one alike has started.
        ((waits(1, QUOTA, time_limit_s=60), runs(8), runs(9, "other")), False),
        ((waits(1, QUOTA), runs(2, start_s=14), runs(8), runs(9, "other")), False),
    ],
)
def test_it_is_tried_at_once_if_something_changed(jobs: tuple[JobView, ...], is_kept: bool) -> None:
    assert (1 in look(kept(), 15, *jobs).jobs) is is_kept


def test_the_end_of_a_run_mends_nothing_that_was_used_up() -> None:
    with_a_run = trials_until(3600, MINUTES, runs(8))
    assert len(with_a_run) <= 8
    state = NOTHING_BARRED
    for now_s, reason in enumerate((MINUTES, QUOTA, MINUTES, QUOTA), 10):
        state = look(state, now_s, waits(1, reason), runs(8))
    assert look(state, 15, waits(1, QUOTA)).jobs.keys() == {1}


def test_a_limit_that_was_changed_is_tried_at_once() -> None:
    row = Association("c", "lab", "", "root", frozenset(), "", {}, grp_tres_mins={"billing": 5})
    above = Association("c", "root", "", "", frozenset(), "", {})
    state = NOTHING_BARRED
    for now_s, reason in enumerate((MINUTES, QUOTA, MINUTES, QUOTA), 10):
        state = look(state, now_s, waits(1, reason), rows=(row, above))
    assert state.jobs
    for rows in (
        (replace(row, grp_tres_mins={"billing": 9}), above),
        (row, replace(above, grp_tres={"node": 1})),
    ):
        assert not look(state, 15, waits(1, QUOTA), rows=rows).jobs


def test_jobs_alike_are_barred_together_and_others_are_not() -> None:
    state = NOTHING_BARRED
    other = waits(3, QUOTA, time_limit_s=60)
    for now_s, reason in enumerate((JOBS, QUOTA, JOBS, QUOTA), 10):
        state = look(state, now_s, waits(1, reason), waits(2, QUOTA), other)
    assert state.jobs.keys() == {1, 2}
    # One of the same account that meets the same limit begins where these have got to.
    state = look(state, 15, waits(1, QUOTA), waits(3, JOBS, time_limit_s=60))
    state = look(state, 16, waits(1, QUOTA), other)
    assert state.jobs.keys() == {1, 3}


def test_a_job_that_slurm_let_pass_wants_what_it_waits_for_whatever_one_alike_says() -> None:
    state = look(NOTHING_BARRED, 0, waits(1, JOBS), waits(2, QUOTA), runs(8))
    state = look(state, 15, waits(1, JOBS), waits(2, QUOTA), runs(8))
    assert state.jobs.keys() == {2}
    # Nobody looked at the first one again since.
    passed = waits(2, "Resources")
    assert state.told((passed,)) == (passed,)
    assert 2 not in look(state, 30, waits(1, JOBS), passed, runs(8)).jobs


def test_what_one_job_waits_for_is_not_what_others_do() -> None:
    state = NOTHING_BARRED
    for now_s, reason in enumerate(("Licenses", QUOTA, "Licenses", QUOTA), 10):
        state = look(state, now_s, waits(1, reason), waits(2, QUOTA))
    assert state.jobs.keys() == {1}


def test_an_old_reason_of_a_later_job_bars_none_alike() -> None:
    """Slurm has reached the first, and not the second, since the limit was met."""
    assert look(NOTHING_BARRED, 0, waits(1, QUOTA), waits(2, JOBS)) is NOTHING_BARRED
    state = look(NOTHING_BARRED, 0, waits(1, JOBS), waits(2, JOBS))
    for now_s in (15, 75):
        state = look(state, now_s, waits(1, QUOTA), waits(2, JOBS))
    assert not state.jobs


def test_jobs_alike_stay_barred_while_the_first_names_the_limit() -> None:
    state = NOTHING_BARRED
    for now_s in range(0, 600, 15):
        state = look(state, now_s, waits(1, JOBS), waits(2, QUOTA))
        assert state.jobs.keys() == {2}
        # One that comes before them, and that Slurm has not looked at, says nothing of them.
        first = waits(3, "None", priority=10**6)
        assert look(state, now_s + 1, first, waits(1, JOBS), waits(2, QUOTA)).jobs.keys() == {2, 3}


def test_the_end_of_a_run_is_remembered_until_the_next_trial() -> None:
    """The job still names the limit at the look that shows the end."""
    state = look(kept(), 15, waits(1, JOBS), runs(9, "other"))
    state = look(state, 16, waits(1, QUOTA), runs(9, "other"))
    assert not state.jobs
    state = look(state, 17, waits(1, JOBS), runs(9, "other"))
    assert look(state, 18, waits(1, QUOTA), runs(9, "other")).jobs.keys() == {1}


def test_trials_of_one_job_are_not_those_of_another() -> None:
    state = NOTHING_BARRED
    for now_s, reason in enumerate(("Licenses", QUOTA, "Licenses"), 10):
        state = look(state, now_s, waits(1, reason), waits(2, "None"))
    state = look(state, 13, waits(1, QUOTA), waits(2, "Licenses"))
    assert look(state, 14, waits(1, QUOTA), waits(2, QUOTA)).jobs.keys() == {1}


def test_a_limit_of_one_qos_bars_none_in_another() -> None:
    state, own = NOTHING_BARRED, waits(2, QUOTA, qos=qos_name("lab"))
    for now_s, reason in enumerate((JOBS, QUOTA, JOBS, QUOTA), 10):
        state = look(state, now_s, waits(1, reason), own)
    assert state.jobs.keys() == {1}


def test_nothing_is_known_of_a_job_that_was_changed_unless_only_in_its_qos() -> None:
    state = NOTHING_BARRED
    for now_s, reason in enumerate(("Licenses", QUOTA, "Licenses", QUOTA), 10):
        state = look(state, now_s, waits(1, reason))
    assert look(state, 15, waits(1, QUOTA, qos=qos_name("lab"))).jobs.keys() == {1}
    assert not look(state, 15, waits(1, QUOTA, time_limit_s=60)).jobs


def test_a_job_whose_node_was_away_is_tried_as_soon_as_a_node_is_back() -> None:
    """Its own guaranteed quota may be lent meanwhile, and has to come back for it."""
    state, now_s = NOTHING_BARRED, 0
    for reason in ("ReqNodeNotAvail, UnavailableNodes:n", QUOTA) * 4:
        state = look(state, now_s, waits(1, reason, qos=qos_name("lab")), nodes="abc")
        now_s += 600
    asked = waits(1, "ReqNodeNotAvail, UnavailableNodes:n", qos=qos_name("lab"))
    state = look(state, now_s, asked, nodes="abc")
    lacking = waits(1, QUOTA, qos=qos_name("lab"))
    state = look(state, now_s + 1, lacking, nodes="ab")
    assert 1 in state.jobs
    assert 1 not in look(state, now_s + 2, lacking, nodes="abn").jobs
    assert 1 in look(state, now_s + 2, lacking, nodes="ab").jobs
