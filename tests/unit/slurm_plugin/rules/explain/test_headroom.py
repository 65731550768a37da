"""Tests what a tenant may still start, and which limit allows no more."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from builders.nodes import a_node
from builders.tenants import free_tenant
from stand_ins.scripted import ScriptedLedger, job, settings

from slicewise.cluster.language.jobs import JobState
from slicewise.cluster.language.periods import Period
from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.slurm_plugin.rules.explain.headroom import (
    SLURM_REASONS,
    Bound,
    Cause,
    Situation,
    TypeRoom,
    explain,
)
from slicewise.slurm_plugin.rules.explain.headroom import situation as gathered
from slicewise.slurm_plugin.rules.quota.demand import Held
from slicewise.slurm_plugin.rules.quota.standings import standings
from slicewise.slurm_plugin.rules.quota.types import Budget, Loan, Policy, Tenant
from slicewise.slurm_plugin.rules.round.world import SlurmView, world_of

HOUR_S = 3600


def situation(
    *tenants: Tenant,
    loans: Mapping[tuple[str, str], int] | None = None,
    held: Mapping[str, Held] | None = None,
    free: Mapping[str, int] | None = None,
    available: Mapping[str, int] | None = None,
) -> Situation:
    policy: Policy = {one.name: one for one in tenants}
    found = [Loan(*ends, Millislices(amount)) for ends, amount in (loans or {}).items()]
    return Situation(
        policy=policy,
        standings=standings(policy, found),
        held=held or {},
        free=free or {"1g.10gb": 50},
        costs={"1g.10gb": Millislices(1000), "3g.40gb": Millislices(3500)},
        models={"1g.10gb": "A100-80GB", "3g.40gb": "A100-80GB"},
        available_millislice_s=available or {},
    )


def room(now: Situation, name: str = "a", gres_type: str = "1g.10gb") -> TypeRoom:
    return {one.gres_type: one for one in explain(name, now).types}[gres_type]


def test_what_runs_in_qos_of_before_is_taken_off_as_in_slurm():
    """First off what was lent for it; Slurm's limits are 1 slice and 0, not 4 and 1."""
    ledger = ScriptedLedger(
        shown={one.name: one for one in (free_tenant("a", 4000), free_tenant("b", 4000))},
        lent=(Loan("b", "a", Millislices(1000)),),
    )
    runs = job(0, JobState.RUNNING, account="a", qos="normal")
    jobs = [replace(runs, job_id=number) for number in range(4)]
    node = a_node(gpus={"1g.10gb": 9})
    now = gathered(world_of(ledger.view(0, "UTC"), settings(), SlurmView(tuple(jobs), (node,), ())))
    found = room(now)
    assert (found.guaranteed, found.borrowed) == (1, 0)
    assert found.guaranteed_bound.words == "a holds 0 of 1 guaranteed slices"
    assert found.borrowed_bound.words == "a holds 0 of 0 borrowed slices"


def own(instances: int) -> Held:
    return Held({"1g.10gb": instances}, {"1g.10gb": instances})


def test_a_tenant_s_situation():
    now = situation(
        free_tenant("lab", 8000),
        free_tenant("a", 6000, "lab"),
        loans={("lab", "a"): 1000},
        held={"a": Held({"1g.10gb": 5}, {"1g.10gb": 3}), "lab": own(1)},
    )
    found = explain("a", now)
    assert (found.nominal_millislices, found.limit_millislices) == (6000, 7000)
    assert (found.in_use_millislices, found.guaranteed_in_use_millislices) == (5000, 3000)
    assert (found.payer, found.startable_millislice_s) == ("", None)
    assert explain("lab", now).in_use_millislices == 6000
    assert room(now) == TypeRoom(
        gres_type="1g.10gb",
        cost_millislices=Millislices(1000),
        guaranteed=3,
        guaranteed_bound=Bound(Cause.OWN_QOS, 3, "a holds 3 of 6 guaranteed slices"),
        borrowed=0,
        borrowed_bound=Bound(Cause.BORROWED_QOS, 0, "a holds 2 of 1 borrowed slices"),
        longest_run_s=None,
    )


def test_beyond_the_guarantee_there_is_what_is_borrowed():
    now = situation(free_tenant("a", 4000), free_tenant("b", 9000), loans={("b", "a"): 3000})
    found = room(now)
    assert (found.guaranteed, found.borrowed) == (4, 3)
    assert found.guaranteed_bound == Bound(Cause.OWN_QOS, 4, "a holds 0 of 4 guaranteed slices")
    assert found.borrowed_bound == Bound(Cause.BORROWED_QOS, 3, "a holds 0 of 3 borrowed slices")


def test_who_may_not_borrow_is_told_so():
    found = room(situation(free_tenant("a", 4000, borrowing_limit_millislices=Millislices(0))))
    assert (found.guaranteed, found.borrowed) == (4, 0)
    assert found.borrowed_bound == Bound(
        Cause.BORROWING, 0, "a may borrow nothing: its borrowing limit is 0"
    )


def test_what_the_guaranteed_take_is_not_left_for_the_borrowed():
    now = situation(
        free_tenant("a", 2000),
        free_tenant("b", 9000),
        loans={("b", "a"): 3000},
        free={"1g.10gb": 4},
    )
    found = room(now)
    assert (found.guaranteed, found.borrowed) == (2, 2)
    assert found.borrowed_bound.cause is Cause.NONE_FREE


def test_what_those_above_hold_takes_nothing_of_it():
    now = situation(free_tenant("lab", 8000), free_tenant("a", 4000, "lab"), held={"lab": own(7)})
    assert room(now).guaranteed == 4


def test_limits_of_a_type_and_of_a_model_count_those_below_too():
    now = situation(
        free_tenant("lab", 9000, type_limits={"1g.10gb": 4}),
        free_tenant("a", 3000, "lab"),
        free_tenant("b", 3000, "lab"),
        held={"b": own(2)},
    )
    words = "lab holds 2 of at most 4 instances of 1g.10gb"
    assert room(now).guaranteed_bound == Bound(Cause.TYPE_LIMIT, 2, words)
    on_model = situation(
        free_tenant("a", 9000, model_limits={"A100-80GB": 7500}), held={"a": own(1)}
    )
    words = "a holds 1 of at most 7 instances of 1g.10gb: 7.5 slices on A100-80GB"
    assert room(on_model).guaranteed_bound == Bound(Cause.MODEL_LIMIT, 6, words)


def budgeted(available: int, overdraft: int = 0) -> Situation:
    budget = Budget(Period.MONTH, MillisliceSeconds(10**9), overdraft=MillisliceSeconds(overdraft))
    lab = replace(free_tenant("lab", 9000), budget=budget)
    return situation(lab, free_tenant("a", 9000, "lab"), available={"lab": available})


def test_a_budget_allows_what_could_run_an_hour_on_it():
    now = budgeted(2_500 * HOUR_S)
    words = "the budget of lab has 2.5 slice-hours left to start runs on"
    assert room(now).guaranteed_bound == Bound(Cause.BUDGET, 2, words)
    assert room(now).longest_run_s == 9000
    assert explain("a", now).payer == "lab"


@pytest.mark.parametrize(
    ("available", "overdraft", "startable"), [(-100, 0, 0), (-100, 300, 200), (100, 300, 400)]
)
def test_an_overdraft_counts_and_a_debt_leaves_nothing(
    available: int, overdraft: int, startable: int
):
    assert explain("a", budgeted(available, overdraft)).startable_millislice_s == startable


@pytest.mark.parametrize(
    ("lab", "a", "least"), [(50, 1000, "lab"), (1000, 50, "a"), (-9, 50, "lab")]
)
def test_of_several_budgets_the_one_that_leaves_least_counts(lab: int, a: int, least: str):
    budget = Budget(Period.MONTH, MillisliceSeconds(10**9))
    found = explain(
        "a",
        situation(
            replace(free_tenant("lab", 9000), budget=budget),
            replace(free_tenant("a", 9000, "lab"), budget=budget),
            available={"lab": lab, "a": a},
        ),
    )
    assert (found.payer, found.startable_millislice_s) == (least, max(0, min(lab, a)))


def test_a_budget_that_has_not_begun_limits_nothing():
    begun = budgeted(0)
    found = explain("a", replace(begun, available_millislice_s={}))
    assert (found.payer, found.startable_millislice_s) == ("", None)


def test_gpus_that_nobody_holds():
    now = situation(free_tenant("a", 9000), free={"1g.10gb": 2, "3g.40gb": 0})
    assert room(now).guaranteed_bound == Bound(
        Cause.NONE_FREE, 2, "2 instances of 1g.10gb are free"
    )
    assert room(now, gres_type="3g.40gb").guaranteed == 0
    assert [one.gres_type for one in explain("a", now).types] == ["1g.10gb", "3g.40gb"]


def test_of_equal_limits_the_first_in_order_is_told():
    now = situation(
        free_tenant("lab", 4000),
        free_tenant("a", 4000, "lab", type_limits={"1g.10gb": 4}, model_limits={"A100-80GB": 4000}),
        free={"1g.10gb": 4},
    )
    assert room(now).guaranteed_bound.cause == Cause.OWN_QOS


def test_what_is_over_its_limit_leaves_nothing_not_less():
    now = situation(free_tenant("a", 2000), held={"a": own(5)}, free={"1g.10gb": -1})
    assert (room(now).guaranteed, room(now).borrowed) == (0, 0)


def test_every_cause_but_a_refusal_has_a_reason_in_squeue():
    assert {cause for cause in Cause if not SLURM_REASONS[cause]} == {Cause.BORROWING}


def test_what_is_guaranteed_of_a_type_bounds_the_own_qos_alone():
    now = situation(
        free_tenant("a", 5000, type_nominals={"1g.10gb": 3}, borrowing_limit_millislices=9000),
        held={"a": own(1)},
        free={"1g.10gb": 9},
    )
    words = "a holds 1 of 3 guaranteed instances of 1g.10gb"
    assert room(now).guaranteed_bound == Bound(Cause.GUARANTEED_TYPE, 2, words)
    # More may start on its own slices that the type's guarantee leaves unused.
    words = "a holds 0 of 2 borrowed slices"
    assert room(now).borrowed_bound == Bound(Cause.BORROWED_QOS, 2, words)


def test_a_limit_on_the_model_bounds_what_is_guaranteed_of_a_type_as_in_slurm():
    model = {"A100-80GB": Millislices(2000)}
    now = situation(
        free_tenant("lab", 0, model_limits=model),
        free_tenant("a", 5000, parent="lab", type_nominals={"1g.10gb": 3}),
        held={"a": own(1)},
    )
    words = "a holds 1 of 2 guaranteed instances of 1g.10gb"
    assert room(now).guaranteed_bound == Bound(Cause.GUARANTEED_TYPE, 1, words)
