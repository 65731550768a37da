"""Tests how a budget is divided among the QOS that draw on it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from builders.tenants import tenant
from stand_ins.scripted import job

from slicewise.cluster.language.jobs import JobState, JobView
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.limits import budget_parts
from slicewise.slurm_plugin.rules.limits.budget_parts import (
    BudgetPart,
    Claims,
    Runs,
    WaitingRun,
    as_budgets_let,
    drawn_on,
    may_still_take,
    parts,
    runs_of,
)
from slicewise.slurm_plugin.rules.quota.demand import demand_of
from slicewise.slurm_plugin.rules.quota.jobs import FIRST_TASKS, jobs_by_holder
from slicewise.slurm_plugin.rules.quota.types import Policy

NOW_S = 1_000_000
COSTS = {"1g.10gb": Millislices(1000), "3g.40gb": Millislices(3500)}
BOTH = {"slicewise_a": 4000, "slicewise_a_borrowed": 4000}


def tree(**parents: str) -> Policy:
    return {name: tenant(name, parent=above) for name, above in parents.items()}


def one(minutes: int, qos: str = "slicewise_a", cost: int = 1000) -> WaitingRun:
    return WaitingRun(qos, cost, minutes)


def parts_of(
    minutes: Mapping[str, int],
    *waiting: WaitingRun,
    policy: Policy | None = None,
    limits: Mapping[str, int] = BOTH,
    **others: Mapping[str, int],
) -> Mapping[str, BudgetPart]:
    """``others`` are what jobs take or hold; nothing if it is not said."""
    policy = policy or tree(a="")
    taken: dict[str, Mapping[str, int]] = {"may_take": {}, "elsewhere": {}, "held": {}} | others
    return parts(policy, minutes, policy, Claims(waiting=waiting, limits=limits, **taken))


def divided(minutes: Mapping[str, int], *waiting: WaitingRun, **others: Any) -> Mapping[str, int]:
    """What each QOS gets, by its name without what all have in common."""
    found = parts_of(minutes, *waiting, **others)
    return {qos.removeprefix("slicewise_"): part.minutes for qos, part in found.items()}


def test_what_no_job_claims_is_shared_evenly():
    assert divided({"a": 101}) == {"a": 50, "a_borrowed": 51}


def test_a_share_that_is_rounded_up_takes_no_more_than_a_tighter_budget_has():
    """Of 47 minutes 5 QOS get 9.4 each, of 19 minutes 2 of them 9.5: no part may be 10 and 10."""
    policy = tree(dept="", team="dept", other="dept")
    usable = ("dept", "dept_borrowed", "other", "team", "team_borrowed")
    limits = {f"slicewise_{one}": 1 for one in usable}
    found = divided({"dept": 47, "team": 19}, policy=policy, limits=limits)
    assert found["team"] + found["team_borrowed"] == 19
    assert sum(found.values()) == 47
    assert max(found.values()) == 10
    assert min(found[one] for one in usable) == 9


def test_where_no_job_may_start_nothing_waits_for_one():
    assert divided({"a": 100}, limits={"slicewise_a": 1}) == {"a": 100, "a_borrowed": 0}
    assert divided({"a": 100}, limits={}) == {"a": 0, "a_borrowed": 0}


def test_a_tenant_without_a_budget_above_it_has_no_part():
    assert drawn_on(tree(a="", b="a", c=""), {"a": 5}, ("b", "c")) == {
        "slicewise_b": ("a",),
        "slicewise_b_borrowed": ("a",),
    }


def test_running_jobs_keep_what_they_may_still_take():
    may_take = {"slicewise_a": 60, "slicewise_a_borrowed": 20}
    assert divided({"a": 100}, may_take=may_take) == {"a": 70, "a_borrowed": 30}
    assert divided({"a": 70}, may_take=may_take) == {"a": 60, "a_borrowed": 10}


def test_what_runs_elsewhere_is_taken_off_all_budgets_that_it_uses():
    policy = tree(lab="", a="lab", b="lab")
    limits = {"slicewise_a": 1, "slicewise_b": 1}
    found = divided({"lab": 100, "a": 90}, policy=policy, elsewhere={"a": 80}, limits=limits)
    assert found == {"lab": 0, "lab_borrowed": 0, "a": 10, "a_borrowed": 0} | {
        "b": 10,
        "b_borrowed": 0,
    }
    assert divided({"a": 90}, elsewhere={"a": 200}) == {"a": 0, "a_borrowed": 0}


def test_a_waiting_job_gets_all_that_it_needs_or_nothing():
    assert divided({"a": 100}, one(80)) == {"a": 90, "a_borrowed": 10}
    assert divided({"a": 100}, one(101)) == {"a": 50, "a_borrowed": 50}
    jobs = (one(80), one(30), one(15, "slicewise_a_borrowed"))
    assert divided({"a": 100}, *jobs) == {"a": 82, "a_borrowed": 18}


def test_jobs_without_slices_hold_nothing_for_those_that_have_them():
    """The next one of the QOS would start as soon as a running one ends, if it fits then."""
    late = one(90, "slicewise_a_borrowed")
    full = {"slicewise_a": 3001}
    assert divided({"a": 100}, one(90), late, held=full) == {"a": 5, "a_borrowed": 95}
    # What is too long for the budget leaves its slices to the others.
    assert divided({"a": 100}, one(101), one(90), held={"slicewise_a": 3000})["a"] == 95
    two = divided({"a": 100}, one(60), one(20), held={"slicewise_a": 3000})
    assert two == {"a": 80, "a_borrowed": 20}


def test_a_job_has_to_fit_into_every_budget_above_it():
    policy = tree(lab="", a="lab", b="lab")
    limits = {"slicewise_a": 9000, "slicewise_b": 9000}
    jobs = (one(50), one(50, "slicewise_b"), one(30, "slicewise_b"))
    found = divided({"lab": 90, "a": 60}, *jobs, policy=policy, limits=limits)
    assert (found["a"], found["b"]) == (55, 35)
    found = divided({"lab": 90, "a": 40}, *jobs, policy=policy, limits=limits)
    assert (found["a"], found["b"]) == (5, 85)


def test_the_least_for_a_job_that_is_to_start_is_known():
    found = parts_of({"a": 100}, one(20), may_take={"slicewise_a": 30})
    assert found == {
        "slicewise_a": BudgetPart(("a",), 75, 50),
        "slicewise_a_borrowed": BudgetPart(("a",), 25, 0),
    }


def test_what_a_smaller_budget_below_leaves_goes_to_the_others():
    policy = tree(lab="", a="lab", b="a", c="a")
    limits = dict.fromkeys(("slicewise_lab", "slicewise_b", "slicewise_c"), 1)
    found = divided({"lab": 100, "c": 4, "b": 40}, policy=policy, limits=limits)
    assert {name: most for name, most in found.items() if most} == {"lab": 56, "b": 40, "c": 4}


def seen(qos: str, state: JobState, **changes: object) -> JobView:
    tres = {"gres/gpu:3g.40gb": "1"}
    view = replace(job(0), account="a", qos=qos, state=state, tres=tres, partition="gpu")
    changes = {"held": False, "untouched": frozenset(), "reason": "Priority"} | changes
    return replace(view, **changes)  # type: ignore[arg-type]


def found_runs(jobs: Sequence[JobView]) -> Runs:
    there = jobs_by_holder(jobs, GPU, COSTS, {})
    return runs_of(there, may_still_take(there, NOW_S))


def test_what_jobs_take():
    running = seen("own", JobState.RUNNING, end_s=NOW_S + 90)
    jobs = [
        running,
        replace(running, state=JobState.COMPLETING, end_s=NOW_S - 1),
        replace(running, end_s=None),
        replace(running, account="b", end_s=NOW_S + 60),
    ]
    assert found_runs(jobs) == Runs({("a", "own"): 5250, ("b", "own"): 3500})


def test_who_waits_comes_in_slurms_order():
    job = seen("own", JobState.PENDING, time_limit_s=600, priority=5)
    many = frozenset(range(2 * FIRST_TASKS))
    jobs = [
        replace(job, job_id=3, time_limit_s=60, untouched=many),
        replace(job, job_id=2, qos="other", priority=9),
        replace(job, job_id=1, time_limit_s=90),
    ]
    found = found_runs(jobs).waiting
    assert found[:3] == (
        WaitingRun("other", 3500, 35_000),
        WaitingRun("own", 3500, 5250),
        WaitingRun("own", 3500, 3500),
    )
    assert len(found) == 1 + FIRST_TASKS


@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        ({}, True),
        ({"reason": "QOSGrpBillingRunMinutes"}, True),
        ({"reason": "QOSGrpBilling"}, True),
        ({"reason": "AssocGrpBillingRunMinutes"}, False),
        ({"reason": "QOSGrpBillingMinutes"}, False),
        ({"reason": "AssocGrpGRES"}, False),
        ({"reason": "AssocMaxJobsLimit"}, False),
        ({"reason": "QOSMaxJobsPerUserLimit"}, False),
        ({"reason": "MaxGRESPerAccount"}, False),
        ({"reason": "BadConstraints"}, False),
        ({"reason": "ReqNodeNotAvail, UnavailableNodes:gpu01"}, False),
        ({"reason": "Dependency"}, False),
        ({"held": True}, False),
        ({"time_limit_s": None}, False),
        ({"tres": {"cpu": "1"}}, False),
    ],
)
def test_who_could_not_start_claims_nothing(changes: Mapping[str, object], counts: bool):
    waiting = seen("own", JobState.PENDING, **{"time_limit_s": 60} | changes)
    assert bool(found_runs([waiting]).waiting) == counts


SLICES, BUDGET = "QOSGrpBilling", "QOSGrpBillingRunMinutes"
GPU = frozenset({"gpu"})


def waiting(number: int, reason: str, **changes: Any) -> JobView:
    """Ten minutes of a slice, on borrowed quota; the first number has the highest priority."""
    return job(
        number,
        held=False,
        reason=reason,
        priority=1000 - number,
        **({"account": "a", "qos": "slicewise_a_borrowed"} | changes),
    )


def let(policy: Policy, run_minutes: Mapping[str, int], *jobs: JobView) -> tuple[JobView, ...]:
    """The jobs as their budgets let them start."""
    found = as_budgets_let(policy, run_minutes, jobs_by_holder(jobs, GPU, COSTS, {}), NOW_S)
    assert all(found[job.job_id] is not job for job in jobs if job.job_id in found)
    return tuple(found.get(job.job_id, job) for job in jobs)


def judged(minutes: int, *jobs: JobView, nominal: int = 4000) -> list[str]:
    policy = {"a": tenant("a", nominal)}
    found = let(policy, {"a": minutes}, *jobs)
    assert [one.job_id for one in found] == [one.job_id for one in jobs]
    return [one.reason for one in found]


@pytest.mark.parametrize("reason", [SLICES, BUDGET, "Priority"])
def test_a_job_waits_for_its_budget_whatever_limit_slurm_names(reason: str):
    """A loan made for it, Slurm named the budget and the loan ended; every 15 s."""
    jobs = [waiting(number, reason) for number in range(3)]
    lacks = SLICES if reason == BUDGET else reason
    assert judged(20_000, *jobs) == [lacks, lacks, BUDGET]
    assert judged(9_999, *jobs) == [BUDGET] * 3


def test_the_job_that_slurm_would_start_first_claims_first():
    later = replace(waiting(1, SLICES), priority=2000)
    assert judged(10_000, waiting(0, SLICES), later) == [BUDGET, SLICES]


def test_what_runs_may_still_take_is_not_there_for_others():
    runs = job(0, JobState.RUNNING, account="a", qos="slicewise_a", end_s=NOW_S + 300)
    assert judged(14_999, runs, waiting(1, SLICES)) == ["None", BUDGET]
    assert judged(15_000, runs, waiting(1, SLICES)) == ["None", SLICES]


def test_what_an_account_without_a_quota_has_in_a_tenants_qos_is_the_tenants():
    """As in the parts of its budget: else loans are made on what these have not."""
    runs = job(0, JobState.RUNNING, account="x", qos="slicewise_a", end_s=NOW_S + 300)
    assert judged(14_999, runs, waiting(1, SLICES)) == ["None", BUDGET]
    first = waiting(0, SLICES, account="x")
    assert judged(19_999, first, waiting(1, SLICES)) == [SLICES, BUDGET]
    elsewhere = replace(runs, qos="normal")
    assert judged(14_999, elsewhere, waiting(1, SLICES)) == ["None", SLICES]


def test_a_job_for_which_there_is_too_little_keeps_no_smaller_one_back():
    jobs = waiting(0, SLICES, time_limit_s=1200), waiting(1, SLICES)
    assert judged(19_999, *jobs) == [BUDGET, SLICES]


def test_of_an_array_as_many_tasks_wait_as_the_budget_has_enough_for():
    policy = {"a": tenant("a")}
    array = waiting(0, SLICES, task_index=None, untouched=frozenset({3, 5, 7, 9}))
    (found,) = let(policy, {"a": 25_000}, array)
    assert found.untouched == {3, 5}


def test_own_tasks_count_all_alike_however_many_the_budget_has_enough_for():
    """Else the tenant lends what those that can't start would hold, and wants it back for them."""
    policy = {"a": tenant("a", 10_000)}
    tasks = frozenset(range(10))
    array = waiting(0, SLICES, qos="slicewise_a", task_index=None, untouched=tasks)
    for minutes in (0, 9_999, 10_000, 20_000, 100_000):
        jobs = let(policy, {"a": minutes}, array)
        assert demand_of(policy, jobs_by_holder(jobs, GPU, COSTS, {})) == {"a": 10_000}


@pytest.mark.parametrize("reason", ["QOSGrpGRES", "AssocMaxJobsLimit", "Dependency"])
def test_who_waits_for_something_else_claims_nothing(reason: str):
    large = waiting(0, reason, time_limit_s=5400)
    assert judged(95_000, large, waiting(1, SLICES)) == [reason, SLICES]


def test_a_job_of_which_nothing_changes_is_the_same():
    """Making fifty thousand of them again takes seconds."""
    one = waiting(0, SLICES)
    policy = {"a": tenant("a")}
    (same,) = let(policy, {"a": 10_000}, one)
    assert same is one


def test_own_jobs_claim_the_budget_as_far_as_the_own_part_pays_for_them():
    own = [waiting(number, SLICES, qos="slicewise_a") for number in range(2)]
    assert judged(10_000, *own, waiting(2, SLICES), nominal=4000) == [SLICES, BUDGET, BUDGET]
    assert judged(10_000, *own, waiting(2, SLICES), nominal=0) == [SLICES, SLICES, SLICES]


def shared_lab(borrows: int = 0, lab_borrows: int = 0) -> Policy:
    """``a`` and ``b`` use up one budget; ``b`` has a slice of its own, which ``c`` borrows."""
    return {
        "lab": tenant("lab", borrowing_limit_millislices=Millislices(lab_borrows)),
        "a": tenant("a", parent="lab", borrowing_limit_millislices=Millislices(borrows)),
        "b": tenant("b", 1000, "lab"),
        "c": tenant("c", borrowing_limit_millislices=Millislices(1000)),
    }


def lab_judged(policy: Policy, *jobs: JobView) -> list[str]:
    """By a budget that is enough for three tasks."""
    found = let(policy, {"lab": 30_000}, *jobs)
    return [one.reason for one in found]


BACKLOG = waiting(0, SLICES, task_index=None, untouched=frozenset(range(200)))
B_OWN = waiting(1, "Resources", account="b", qos="slicewise_b")


def test_a_backlog_that_may_not_borrow_keeps_no_budget_from_others_own_jobs():
    """They would seem to wait for their budget, and no borrower would give back."""
    assert lab_judged(shared_lab(), BACKLOG, B_OWN) == [SLICES, "Resources"]
    assert lab_judged(shared_lab(9000, 9000), BACKLOG, B_OWN) == [SLICES, "Resources"]
    on_loan = replace(B_OWN, qos="slicewise_b_borrowed")
    assert lab_judged(shared_lab(), BACKLOG, on_loan) == [SLICES, "Resources"]
    assert lab_judged(shared_lab(9000, 9000), BACKLOG, on_loan) == [SLICES, BUDGET]


def test_a_backlog_claims_what_its_tenant_and_those_above_may_still_borrow():
    on_loan = replace(B_OWN, time_limit_s=1200, qos="slicewise_b_borrowed")
    for borrows, lab_borrows in ((1000, 9000), (9000, 0)):
        policy = shared_lab(borrows, lab_borrows)
        assert lab_judged(policy, BACKLOG, on_loan) == [SLICES, "Resources"]
    assert lab_judged(shared_lab(2000, 1000), BACKLOG, on_loan) == [SLICES, BUDGET]
    runs = job(7, JobState.RUNNING, account="a", qos="slicewise_a_borrowed", end_s=NOW_S)
    found = lab_judged(shared_lab(2000, 1000), runs, BACKLOG, on_loan)
    assert found == ["None", SLICES, "Resources"]


def test_a_job_in_the_own_qos_that_waits_for_its_budget_wants_no_slices_back():
    assert judged(10_000, waiting(0, BUDGET, qos="slicewise_a")) == [BUDGET]


def test_without_a_time_limit_no_budget_is_enough():
    assert judged(10_000_000, waiting(0, SLICES, time_limit_s=None)) == [BUDGET]


@pytest.mark.parametrize(
    "changes",
    [
        {"partition": "cpu"},
        {"qos": "normal"},
        {"reason": "Dependency"},
        {"account": "b", "qos": "slicewise_b"},
    ],
)
def test_who_draws_on_no_budget_waits_for_what_slurm_says(changes: Mapping[str, str]):
    one = replace(waiting(0, SLICES), **changes)
    assert judged(0, one) == [one.reason]


def test_without_budgets_nothing_is_judged():
    jobs = (waiting(0, BUDGET), waiting(1, SLICES))
    assert let(tree(a=""), {}, *jobs) == jobs


def test_trees_whose_budgets_have_enough_are_judged_as_if_each_of_their_jobs_claimed(
    monkeypatch: pytest.MonkeyPatch,
):
    draw = Random(11)  # noqa: S311 -- jobs, no secret
    policy = {
        "lab": tenant("lab", 1000, borrowing_limit_millislices=Millislices(3000)),
        "a": tenant("a", 1000, "lab", borrowing_limit_millislices=Millislices(4000)),
        "b": tenant("b", parent="lab", borrowing_limit_millislices=Millislices(4000)),
        "c": tenant("c", 2000, borrowing_limit_millislices=Millislices(4000)),
    }
    short = set()
    for _ in range(300):
        jobs = [
            waiting(
                number,
                draw.choice([SLICES, SLICES, BUDGET, "Resources", "Dependency"]),
                account=(name := draw.choice(["a", "b", "c"])),
                qos=f"slicewise_{name}{draw.choice(['', '_borrowed'])}",
                time_limit_s=draw.choice([300, 600, 600, 1200, None]),
            )
            for number in range(draw.randrange(1, 7))
        ]
        budgets = {name: draw.randrange(60_000) for name in draw.sample(["lab", "a", "b", "c"], 2)}
        there = jobs_by_holder(jobs, GPU, COSTS, {})
        found = as_budgets_let(policy, budgets, there, NOW_S)
        with monkeypatch.context() as patched:
            patched.setattr(budget_parts, "_short_of", lambda *_: policy.keys())
            assert as_budgets_let(policy, budgets, there, NOW_S) == found
        short.add(bool(found))
    assert short == {False, True}
