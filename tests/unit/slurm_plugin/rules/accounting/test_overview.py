"""Tests the overview of tenants' accounts."""

from builders.ledger_parts import ledger_view_of
from builders.runs import a_reservation
from builders.tenants import tenant

from slicewise.cluster.language.periods import Period
from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.slurm_plugin.rules.accounting.overview import (
    BudgetStatus,
    OverviewInput,
    TenantStatus,
    budget_status,
    in_tree_order,
    tenant_statuses,
    used_since,
)
from slicewise.slurm_plugin.rules.accounting.types import Balance, Run, RunKey, StatementRow
from slicewise.slurm_plugin.rules.quota.calendar_times import moment
from slicewise.slurm_plugin.rules.quota.tenants import overcommitted_millislices
from slicewise.slurm_plugin.rules.quota.types import Budget, Loan

THURSDAY_S = 14 * 86_400  # 15 January 1970

SOME = dict.fromkeys(
    ("borrowing_limit_millislices", "lending_limit_millislices"), Millislices(5000)
)


POLICY = {
    one.name: one
    for one in (
        tenant("physics", 0, **SOME),
        tenant("optics", 4000, "physics", **SOME),
        tenant("laser", 2000, "physics", **SOME),
        tenant("bio", 3000, **SOME),
    )
}


def look() -> dict[str, TenantStatus]:
    gathered = OverviewInput(
        policy=POLICY,
        loans=(Loan("bio", "laser", Millislices(1000)),),
        recalls=(),
        reservations=(
            a_reservation("laser", cost_millislices=1000, reserved_millislice_s=0),
            a_reservation("optics", cost_millislices=500, reserved_millislice_s=0),
        ),
        left_millislice_s={"bio": 7},
        accounts=frozenset({"bio"}),
    )
    return {one.tenant: one for one in tenant_statuses(gathered)}


def budget_of_bio(balance: Balance | None) -> BudgetStatus:
    """At midnight of Thursday, with a run that has held two slices for 100 s and was posted 40 of
    them, and one that another budget pays for.
    """
    budget = Budget(Period.WEEK, MillisliceSeconds(900_000))
    reserved = {"cost_millislices": 2000, "posted_millislice_s": 80_000}
    run = a_reservation("bio", key=RunKey("c", 7, THURSDAY_S - 100), **reserved)
    other = a_reservation("bio", 8, payer="physics")
    seen = ledger_view_of(
        moment(THURSDAY_S, "UTC"),
        tenants={"bio": tenant("bio", 3000, budget=budget)},
        balances={"bio": balance} if balance else {},
        rollovers={"bio": 0},
        reservations=(run, other) if balance else (),
    )
    return budget_status("bio", budget, seen, "UTC", 180_000)


def test_a_budget_says_what_is_left_how_much_of_it_is_reserved_and_when_it_ends():
    amounts = (MillisliceSeconds(n) for n in (900_000, 500_000, 320_000, 80_000, 0))
    found = budget_of_bio(Balance("bio", *amounts))
    # Of 820,000 that are not posted, the run has used 120,000 more.
    assert (found.left, found.reserved) == (700_000, 200_000)
    assert (found.rate, found.ends_s) == (2000, THURSDAY_S + 350)
    assert found.resets_s == THURSDAY_S + 4 * 86_400
    assert found.had == 880_000


def test_of_a_budget_without_a_balance_nothing_is_left_or_reserved():
    found = budget_of_bio(None)
    assert (found.left, found.reserved, found.ends_s) == (0, 0, None)


def test_each_tenant_is_followed_by_those_below_it():
    assert list(in_tree_order(POLICY)) == [
        ("bio", 0),
        ("physics", 0),
        ("laser", 1),
        ("optics", 1),
    ]


def test_a_group_holds_and_is_due_what_its_parts_are():
    physics = look()["physics"]
    assert (physics.nominal_millislices, physics.in_use_millislices) == (6000, 1500)
    assert (physics.own_in_use_millislices, physics.running) == (0, 0)
    assert physics.limit_millislices == 7000


def test_loans_budgets_and_accounts_stand_with_their_tenants():
    found = look()
    assert found["bio"].lent_millislices == 1000
    assert found["laser"].limit_millislices == 3000
    assert (found["bio"].left_millislice_s, found["laser"].left_millislice_s) == (7, None)
    assert (found["bio"].in_slurm, found["laser"].in_slurm) == (True, False)


def test_quotas_beyond_the_cluster_are_counted_at_the_top():
    assert overcommitted_millislices(POLICY, 4500) == 4500
    assert overcommitted_millislices(POLICY, 9000) == 0


def row(payer: str, start_s: int, seconds: int) -> StatementRow:
    run = Run(RunKey("c", start_s, start_s), "x", "alice", "1", {}, Millislices(10), payer)
    used = MillisliceSeconds(10 * seconds)
    return StatementRow(run, None, used, MillisliceSeconds(0), MillisliceSeconds(0))


def test_use_since_a_moment_leaves_out_what_was_before_and_what_others_pay():
    rows = (row("bio", 900, 150), row("bio", 1020, 5), row("bio", 0, 100), row("physics", 1000, 9))
    assert used_since(rows, "bio", 1000) == 10 * (50 + 5)
