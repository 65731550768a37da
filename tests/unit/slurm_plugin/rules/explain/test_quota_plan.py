"""Tests what a change of quotas would do now, and which jobs and tenants it would hurt."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import pytest
from builders.jobs import a_job, a_running_job
from builders.ledger_parts import ledger_view_of
from builders.nodes import a_node
from builders.runs import a_reservation
from builders.service_views import a_service
from builders.tenants import free_tenant, policy_of, tenant

from slicewise.cluster.language.gpus.mig_profiles import WholeBoard
from slicewise.cluster.language.jobs import JobTag, JobView
from slicewise.cluster.language.periods import Period
from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.cluster.rpc.messages import ServiceView, SlotView
from slicewise.cluster.rpc.order_messages import ServiceOrder
from slicewise.slurm_plugin.rules.accounting.types import Balance, RunKey
from slicewise.slurm_plugin.rules.explain.change_report import Impact, ImpactKind
from slicewise.slurm_plugin.rules.explain.quota_impact import impacts
from slicewise.slurm_plugin.rules.explain.quota_plan import QuotaPlan, in_order, quota_plan
from slicewise.slurm_plugin.rules.quota.calendar import Moment
from slicewise.slurm_plugin.rules.quota.tenants import changed_together
from slicewise.slurm_plugin.rules.quota.types import (
    Budget,
    Loan,
    Policy,
    Recall,
    TenantUpdate,
)
from slicewise.slurm_plugin.rules.round.world import QuotaRules, SlurmView, World, world

COSTS = {"1g.10gb": Millislices(1000), "3g.40gb": Millislices(3500)}
HOUR = 3_600_000


def policy(budgets: Mapping[str, Budget] | None = None, **nominal: int) -> Policy:
    given = budgets or {}
    return policy_of(*(free_tenant(name, n, budget=given.get(name)) for name, n in nominal.items()))


def job(job_id: int, account: str, slices: int = 1, **changes: Any) -> JobView:
    """So many instances of a slice each, in the tenant's own QOS."""
    tres = {"gres/gpu:1g.10gb": str(slices)}
    return a_running_job(job_id, account, **({"tres": tres, "start_s": 0} | changes))


def waiting(job_id: int, account: str, slices: int = 1, **changes: Any) -> JobView:
    return a_job(job_id, account, **({"tres": {"gres/gpu:1g.10gb": str(slices)}} | changes))


def service(
    array: int, least: int, order: ServiceOrder | None = None, **changes: Any
) -> ServiceView:
    view = a_service(
        array_job_id=array,
        tenant="a",
        name=f"s{array}",
        submit_s=array,
        directives={"min_replicas": str(least)},
        order=order or ServiceOrder(),
    )
    return view.model_copy(update=changes)


NODE = a_node("n1", "MIXED", gpus={"1g.10gb": 14})
RULES = QuotaRules(
    partitions=frozenset({"gpu"}),
    costs=COSTS,
    whole_boards=dict.fromkeys(COSTS, WholeBoard(7, Millislices(7000))),
    models=dict.fromkeys(COSTS, "A100-80GB"),
    grace_s=60,
    term_s=0,
    turn_s=1800,
)


def now(before: Policy, *jobs: JobView, **changes: Any) -> World:
    """``changes`` are of the books, of what is seen, and of the rules."""
    ledger_view = ledger_view_of(Moment(1000, 0, 0), tenants=before)
    return changed(world(ledger_view, SlurmView(jobs, (NODE,), ()), RULES), **changes)


def changed(there: World, **changes: Any) -> World:
    parts = {
        name: replace(
            value,
            **{each.name: changes[each.name] for each in fields(value) if each.name in changes},
        )
        for name in ("ledger_view", "slurm_view", "rules")
        for value in (getattr(there, name),)
    }
    return world(**parts)


def planned(there: World, after: Policy, period_start_s: int = 0) -> QuotaPlan:
    return quota_plan(there, after, dict.fromkeys(after, period_start_s))


def hurt(there: World, after: Policy) -> list[Impact]:
    return list(impacts(there, planned(there, after), {}))


def test_a_limit_on_a_type_below_what_runs_is_told_of_who_has_it_and_those_below():
    before = policy(a=6000, b=8000)
    there = now(before, job(1, "a", 6))
    limited = with_quota(before, "a", type_limits={"1g.10gb": 5})
    assert [(one.kind, one.tenant) for one in hurt(there, limited)] == [(ImpactKind.TYPE, "a")]
    assert hurt(there, with_quota(before, "a", type_limits={"1g.10gb": 6})) == []
    assert hurt(changed(there, tenants=limited), limited) == [], "it is so already"


def test_fewer_guaranteed_instances_of_a_type_than_its_own_qos_holds_are_told():
    before = policy(a=6000, b=8000)
    there = now(before, job(1, "a", 6))
    fewer = with_quota(before, "a", type_nominals={"1g.10gb": 5})
    assert [(one.kind, one.tenant) for one in hurt(there, fewer)] == [(ImpactKind.TYPE, "a")]
    assert hurt(there, with_quota(before, "a", type_nominals={"1g.10gb": 6})) == []
    assert hurt(changed(there, tenants=fewer), fewer) == [], "it is so already"


def test_a_limit_on_the_model_counts_as_far_as_it_lowers_what_is_guaranteed_of_a_type():
    before = with_quota(policy(a=6000, b=8000), "a", type_nominals={"1g.10gb": 6})
    there = now(before, job(1, "a", 6), services=(service(1, 6),))
    limited = with_quota(before, "a", model_limits={"A100-80GB": Millislices(5000)})
    words = [one.words for one in hurt(there, limited)]
    assert any("its guaranteed jobs hold 6 × 1g.10gb, 5 guaranteed" in one for one in words)
    assert any("is guaranteed 5: 1 of that only on borrowed slices" in one for one in words)


def test_what_is_guaranteed_of_a_type_beside_a_limit_on_it_is_told():
    before = with_quota(policy(a=6000, b=8000), "a", type_limits={"1g.10gb": 5})
    there = now(before)
    both = with_quota(before, "a", type_nominals={"1g.10gb": 3})
    (impact,) = hurt(there, both)
    assert (impact.kind, impact.tenant) == (ImpactKind.BEYOND_TYPE_LIMIT, "a")
    assert "may come to hold 8 × 1g.10gb, 5 at most by its limit" in impact.words
    assert hurt(changed(there, tenants=both), both) == [], "it is so already"
    fewer = with_quota(both, "a", type_nominals={"1g.10gb": 2})
    assert hurt(changed(there, tenants=both), fewer) == [], "it was worse"
    none = with_quota(before, "a", type_nominals={"1g.10gb": 0})
    assert hurt(there, none) == [], "all of the type is on loan, which the limit binds"
    alone = with_quota(both, "a", borrowing_limit_millislices=Millislices(0))
    assert hurt(there, alone) == [], "it starts no more than what is guaranteed"


def test_guarantees_below_a_limit_on_their_type_may_be_more_than_it_together():
    teams = {
        **policy(lab=8000),
        **{name: replace(one, parent="lab") for name, one in policy(a=4000, b=4000).items()},
    }
    for name in teams:
        teams = with_quota(teams, name, borrowing_limit_millislices=Millislices(0))
    teams = with_quota(teams, "lab", type_limits={"1g.10gb": 5})
    due = with_quota(with_quota(teams, "a", type_nominals={"1g.10gb": 3}), "b", weight=2)
    assert hurt(now(teams), due) == []
    more = with_quota(due, "b", type_nominals={"1g.10gb": 4})
    (impact,) = hurt(now(due), more)
    assert (impact.kind, impact.tenant) == (ImpactKind.BEYOND_TYPE_LIMIT, "lab")
    assert "7 × 1g.10gb, 5 at most" in impact.words


def with_quota(of: Policy, name: str, **changes: Any) -> Policy:
    return {**of, name: replace(of[name], quota=replace(of[name].quota, **changes))}


def test_nothing_changes_without_a_change():
    before = policy(a=6000, b=8000)
    there = now(before, job(1, "a", 6), waiting(2, "a"))
    plan = planned(there, before)
    assert all(one.before == one.after for one in plan.tenants)
    assert (plan.loans, hurt(there, before)) == ((), [])


def test_limits_before_and_after():
    plan = planned(now(policy(a=6000)), policy(a=4000, new=2000))
    (a, new) = plan.tenants
    assert a.before is not None
    assert a.after is not None
    assert (a.before.nominal_millislices, a.after.nominal_millislices) == (6000, 4000)
    assert (a.before.limit_millislices, a.after.limit_millislices) == (
        6000,
        4000,
    )
    assert new.after is not None
    assert (new.before, new.after.guaranteed_millislices) == (None, 2000)
    assert plan.allowed.standings == plan.after.standings


def test_a_tenant_that_holds_more_than_its_new_own_part_is_named():
    there = now(policy(a=6000, b=8000), job(1, "a", 5), job(2, "b", 3))
    (impact,) = hurt(there, policy(a=3000, b=3000))
    assert (impact.kind, impact.tenant, impact.amount_millislices) == (
        ImpactKind.OVER_GUARANTEED,
        "a",
        2000,
    )


def test_who_held_too_much_before_is_not_hurt_by_a_raise():
    there = now(policy(a=2000), job(1, "a", 5))
    assert hurt(there, policy(a=3000)) == []


def test_quotas_beyond_the_cluster_are_said_and_end_nothing():
    there = now(policy(a=7000, b=7000), job(1, "a", 7), job(2, "b", 7))
    for more, above in ((policy(a=14_000, b=14_000), 14_000), (policy(a=14_000, b=7000), 7000)):
        found = hurt(there, more)
        assert [one.kind for one in found] == [ImpactKind.OVERCOMMITTED]
        assert found[0].amount_millislices == above


def test_while_no_gpu_is_seen_nobody_is_squeezed():
    there = now(policy(a=7000), job(1, "a", 7), nodes=())
    (a,) = planned(there, policy(a=8000)).tenants
    assert a.after is not None
    assert a.after.limit_millislices == 8000
    assert hurt(there, policy(a=8000)) == []


def borrowed(job_id: int, slices: int, **changes: Any) -> JobView:
    """Of b, from a."""
    return job(job_id, "b", slices, qos="slicewise_b_borrowed", **changes)


LOAN = (Loan("a", "b", Millislices(4000)),)


def test_a_loan_that_goes_back_names_its_borrower():
    before = policy(a=7000, b=7000)
    there = now(before, job(1, "b", 7), borrowed(2, 4), loans=LOAN)
    after = with_quota(before, "a", lending_limit_millislices=Millislices(1000))
    plan = planned(there, after)
    (loan,) = plan.loans
    assert (loan.before_millislices, loan.after_millislices) == (4000, 1000)
    impact = next(one for one in impacts(there, plan, {}) if one.kind is ImpactKind.CALLED_BACK)
    assert (impact.tenant, impact.amount_millislices) == ("b", 3000)
    assert "to give back: 3 to a" in impact.words


def test_a_borrower_that_gets_its_own_instead_loses_nothing():
    before = policy(a=7000, b=7000)
    there = now(before, job(1, "b", 7), borrowed(2, 4), loans=LOAN)
    assert hurt(there, policy(a=3000, b=11_000)) == []


def test_a_task_that_could_never_start_any_more_is_named_as_one():
    before = with_quota(policy(a=6000), "a", borrowing_limit_millislices=Millislices(0))
    there = now(before, waiting(20, "a", 5, array_job_id=19, task_index=12))
    (impact,) = hurt(there, with_quota(before, "a", nominal_millislices=Millislices(4000)))
    assert impact.about == "job 19_12 of alice"


def test_a_job_that_could_never_start_any_more_is_named():
    before = with_quota(policy(a=6000), "a", borrowing_limit_millislices=Millislices(0))
    there = now(before, waiting(1, "a", 5), waiting(2, "a", 3), waiting(3, "a", 7))
    (impact,) = hurt(there, with_quota(before, "a", nominal_millislices=Millislices(4000)))
    assert (impact.kind, impact.about, impact.amount_millislices) == (
        ImpactKind.NEVER_STARTS,
        "job 1 of alice",
        1000,
    )


def test_a_flexible_job_may_still_borrow():
    tag = JobTag("ab", "a", is_flexible=True).text()
    before = policy(a=6000, b=8000)
    there = now(before, waiting(1, "a", 5, admin_comment=tag), waiting(2, "a", 5))
    assert [one.about for one in hurt(there, policy(a=4000, b=8000))] == ["job 2 of alice"]


def test_a_job_beyond_what_is_guaranteed_of_its_type_may_only_borrow():
    tag = JobTag("ab", "a", is_flexible=True).text()
    lends = policy(a=6000, b=8000)
    alone = with_quota(lends, "a", borrowing_limit_millislices=Millislices(0))
    for before, said in ((lends, []), (alone, ["job 1 of alice"])):
        there = now(before, waiting(1, "a", 3, admin_comment=tag), waiting(2, "b", 3))
        hurt_by = hurt(there, with_quota(before, "a", type_nominals={"1g.10gb": 2}))
        assert [one.about for one in hurt_by] == said


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (with_quota(policy(a=6000), "a", type_limits={"1g.10gb": 2}), "at most 2"),
        (
            policy({"a": Budget(Period.DAY, MillisliceSeconds(HOUR))}, a=6000),
            "may use 3.00 slice-hours; the budget has 1.00",
        ),
    ],
)
def test_limits_on_types_and_budgets_keep_jobs_from_ever_starting(after: Policy, said: str):
    there = now(policy(a=6000), waiting(1, "a", 3, time_limit_s=3600))
    (impact,) = hurt(there, after)
    assert said in impact.words


def test_a_service_whose_least_replicas_have_a_type_that_is_guaranteed_no_more_is_named():
    before = policy(a=6000)
    there = now(before, services=(service(1, 2), service(2, 0), service(3, 2)))
    fewer = with_quota(before, "a", type_nominals={"1g.10gb": 3})
    (impact,) = hurt(there, fewer)
    assert (impact.kind, impact.about, impact.amount_millislices) == (
        ImpactKind.MIN_REPLICAS,
        "service s3",
        1000,
    )
    assert "is guaranteed 3: 1 of that only on borrowed slices" in impact.words
    assert hurt(there, with_quota(before, "a", type_nominals={"1g.10gb": 4})) == []
    assert hurt(changed(there, tenants=fewer), fewer) == [], "it is so already"


def test_a_service_whose_least_replicas_do_not_fit_any_more_is_named():
    tag = JobTag("ab", "a", "s2").text()
    slot = waiting(9, "a", 5, admin_comment=tag)
    gone = ServiceOrder(delete_s=5.0)
    ordered = ServiceOrder(min_replicas=0)
    those = (service(1, 2), service(2, 2), service(3, 3, gone), service(4, 9, ordered))
    (impact,) = hurt(now(policy(a=6000), slot, services=those), policy(a=3000))
    assert (impact.kind, impact.about, impact.amount_millislices) == (
        ImpactKind.MIN_REPLICAS,
        "service s2",
        1000,
    )


def balance(available: int) -> Balance:
    zero = MillisliceSeconds(0)
    amount = MillisliceSeconds(available)
    return Balance("a", amount, amount, zero, zero, zero)


def test_a_smaller_budget_that_is_used_up_is_debt():
    monthly = Budget(Period.MONTH, MillisliceSeconds(10 * HOUR))
    there = now(
        policy({"a": monthly}, a=6000), balances={"a": balance(4 * HOUR)}, rollovers={"a": 0}
    )
    smaller = replace(monthly, amount=MillisliceSeconds(5 * HOUR))
    plan = planned(there, policy({"a": smaller}, a=6000))
    assert plan.after.left["a"].left_millislice_s == -HOUR
    assert plan.allowed.run_minutes == {"a": 0}
    (impact,) = impacts(there, plan, {})
    assert (impact.kind, "-1.00 slice-hours left" in impact.words) == (ImpactKind.IN_DEBT, True)
    larger = replace(monthly, amount=MillisliceSeconds(7 * HOUR))
    assert hurt(there, policy({"a": larger}, a=6000)) == []


DAILY = Budget(Period.DAY, MillisliceSeconds(3 * HOUR))
ONCE = Budget(Period.NONE, MillisliceSeconds(3 * HOUR))
EVENING = {"a": 1000 + 7200}
"""Two hours from now."""


def used_up(there: World, after: Policy, ends_s: Mapping[str, int]) -> list[tuple[str, int]]:
    found = impacts(there, planned(there, after), ends_s)
    return [(one.tenant, one.in_s) for one in found if one.kind is ImpactKind.USED_UP]


def test_a_new_budget_that_lasts_too_short_at_what_runs_now_is_told():
    there = now(policy(a=6000), job(1, "a", 3), waiting(2, "a"))
    assert used_up(there, policy({"a": DAILY}, a=6000), EVENING) == [("a", 3600)]
    assert used_up(there, policy({"a": DAILY}, a=6000), {"a": 1000 + 3600}) == []
    assert used_up(there, policy({"a": ONCE}, a=6000), {}) == [("a", 3600)]
    yearly = replace(ONCE, amount=MillisliceSeconds(3 * 24 * 366 * HOUR))
    assert used_up(there, policy({"a": yearly}, a=6000), {}) == []
    assert used_up(now(policy(a=6000)), policy({"a": ONCE}, a=6000), {}) == []


def test_what_a_budget_is_lowered_to_lasts_less_its_use():
    before = policy({"a": DAILY}, a=6000)
    there = now(before, job(1, "a", 3), balances={"a": balance(2 * HOUR)}, rollovers={"a": 0})
    lower = replace(DAILY, amount=MillisliceSeconds(2 * HOUR))
    assert used_up(there, policy({"a": lower}, a=6000), EVENING) == [("a", 1200)]
    higher = replace(DAILY, overdraft=MillisliceSeconds(HOUR))
    assert used_up(there, policy({"a": higher}, a=6000), EVENING) == []
    assert used_up(there, before, EVENING) == [], "it is so already"


RUN = a_reservation(
    "a",
    1,
    key=RunKey("c", 1, 0),
    gres={"1g.10gb": 3},
    cost_millislices=Millislices(3000),
    reserved_millislice_s=MillisliceSeconds(HOUR),
)


def test_a_new_budget_is_as_after_its_first_roll():
    monday_s = 400
    there = now(policy(a=6000), job(1, "a", 3), reservations=(RUN,), balances={"a": balance(-9)})
    plan = planned(there, policy({"a": DAILY}, a=6000), monday_s)
    used = 3000 * (there.ledger_view.now_s - monday_s)
    assert plan.after.left["a"].left_millislice_s == 3 * HOUR - used
    assert plan.allowed.run_minutes == {"a": (3 * HOUR - used) // 60}


@pytest.mark.parametrize(("reserved_hours", "told"), [(2, False), (4, True)])
def test_what_runs_may_use_up_the_rest_of_a_budget_by_its_time_limits(
    reserved_hours: int, told: bool
):
    run = replace(RUN, reserved_millislice_s=MillisliceSeconds(reserved_hours * HOUR))
    there = now(policy(a=6000), job(1, "a", 3), reservations=(run,))
    (impact,) = hurt(there, policy({"a": ONCE}, a=6000))
    assert ("nothing starts now" in impact.words) == told


def test_a_run_that_has_outlived_its_reservation_hides_nothing_of_what_others_may_use_up():
    long = replace(RUN, reserved_millislice_s=MillisliceSeconds(5 * HOUR // 2))
    over = replace(RUN, key=RunKey("c", 2, 0), reserved_millislice_s=MillisliceSeconds(1))
    there = now(policy(a=6000), job(1, "a", 3), job(2, "a", 3), reservations=(long, over))
    (impact,) = hurt(there, policy({"a": ONCE}, a=6000))
    assert "nothing starts now" in impact.words


def test_who_pays_for_those_below_after_a_change_lasts_shorter():
    both = policy({"a": DAILY, "b": DAILY}, a=6000, b=6000)
    below = {**both, "b": replace(both["b"], parent="a")}
    there = now(
        below,
        job(1, "b", 3),
        balances={name: balance(3 * HOUR) for name in below},
        rollovers=dict.fromkeys(below, 0),
    )
    without = {**below, "b": replace(below["b"], budget=None)}
    assert used_up(there, without, EVENING) == [("a", 3600)]


def test_moves_and_removals_need_no_order_of_their_own():
    there = {
        "a": tenant("a"),
        "b": tenant("b", parent="a"),
        "c": tenant("c", parent="b"),
        "d": tenant("d", parent="a"),
    }
    updates = (
        TenantUpdate("a", removed=True),
        TenantUpdate("b", removed=True),
        TenantUpdate("d", parent="c"),
        TenantUpdate("c", parent="new"),
        TenantUpdate("new", parent=""),
    )
    after, refused = changed_together(there, in_order(there, updates))
    assert refused == {}
    assert {name: one.parent for name, one in after.items()} == {"new": "", "c": "new", "d": "c"}
    swapped = (TenantUpdate("a", parent="b"), TenantUpdate("b", parent=""))
    after, refused = changed_together(there, in_order(there, swapped))
    assert (refused, after["a"].parent, after["b"].parent) == ({}, "b", "")
    circle = (TenantUpdate("a", parent="c"),)
    _, refused = changed_together(there, in_order(there, circle))
    assert [error.refusal.code for error in refused.values()] == ["SW-TENANT-CHILDREN"]


def test_who_is_removed_is_told_with_what_it_holds_and_waits_for():
    before = policy(a=6000, b=8000)
    there = now(before, job(1, "a", 2), waiting(2, "a"), services=(service(3, 1),))
    after = {"b": before["b"]}
    plan = planned(there, after)
    (_, gone) = plan.tenants
    assert (gone.tenant, gone.after) == ("a", None)
    assert [(one.kind, one.about) for one in impacts(there, plan, {})] == [
        (ImpactKind.REMOVED, ""),
        (ImpactKind.NEVER_STARTS, "job 2 of alice"),
        (ImpactKind.MIN_REPLICAS, "service s3"),
    ]
    assert [one.kind for one in hurt(now(before), after)] == []


def with_replicas(before: Policy, loan: int, **changes: Any) -> World:
    """Four of b's service, on what a lends."""
    tag = JobTag("ab", "b", "bert").text()
    replicas = [
        borrowed(20 + i, 1, array_job_id=814, task_index=i, admin_comment=tag, start_s=i)
        for i in range(4)
    ]
    slots = tuple(
        SlotView(index=i, state="running", is_borrowed=True, job_id=20 + i, node="n1")
        for i in range(4)
    )
    bert = service(814, 0, tenant="b", name="bert", slots=slots)
    loans = (Loan("a", "b", Millislices(loan)),)
    return now(before, job(1, "b", 7), *replicas, loans=loans, services=(bert,), **changes)


def test_a_borrowed_replica_that_goes_is_named_by_its_service():
    before = policy(a=7000, b=7000)
    there = with_replicas(before, 4000)
    after = with_quota(before, "a", lending_limit_millislices=Millislices(1000))
    gone = [one for one in hurt(there, after) if one.kind is ImpactKind.REPLICA]
    assert len(gone) == 3
    assert {(one.tenant, one.amount_millislices) for one in gone} == {("b", 1000)}
    assert all(one.about.startswith("bert, replica ") for one in gone)


def test_replicas_that_go_without_the_change_are_not_its_harm():
    before = policy(a=7000, b=7000)
    called = (Recall("a", "b", Millislices(3000), called_s=990),)
    lends_one = with_quota(before, "a", lending_limit_millislices=Millislices(1000))
    there = with_replicas(lends_one, 1000, recalls=called)
    same = with_quota(lends_one, "b", weight=2)
    assert ImpactKind.REPLICA not in {one.kind for one in hurt(there, same)}
    lends_none = with_quota(before, "a", lending_limit_millislices=Millislices(0))
    assert [one.kind for one in hurt(there, lends_none)].count(ImpactKind.REPLICA) == 1
