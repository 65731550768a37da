"""Tests budgets: a period's start, rolls, changes, what is left, what Slurm gets."""

from dataclasses import replace

import pytest
from builders.ledger_world import START_S, SimulatedRun, job_view
from builders.tenants import policy_of, tenant

from slicewise.cluster.language.jobs import JobView
from slicewise.cluster.language.periods import Period
from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.slurm_plugin.rules.accounting.budgets import (
    BudgetLeft,
    amended,
    due_periods,
    due_rollover,
    left,
    posts_until,
    ready,
    run_minutes,
    unspent,
)
from slicewise.slurm_plugin.rules.accounting.statement import open_row, totals
from slicewise.slurm_plugin.rules.accounting.types import (
    Balance,
    BudgetEntry,
    Charge,
    Reservation,
    RunKey,
)
from slicewise.slurm_plugin.rules.quota.types import Budget

P_S = START_S + 40
"""Where the new period begins."""
LIVE = job_view(SimulatedRun(7, START_S, {"1g.10gb": 1}, "gpu", 60))


def amount(value: int) -> MillisliceSeconds:
    return MillisliceSeconds(value)


def a_budget(given: int = 1000, carry_over: int = 0, overdraft: int = 0) -> Budget:
    return Budget(Period.MONTH, amount(given), amount(carry_over), amount(overdraft))


def a_reservation(
    reserved: int = 60_000,
    posted: int = 0,
    *,
    payer: str = "physics",
    tenant: str = "vision",
    job_id: int = 7,
) -> Reservation:
    """On a slice of 1000 millislices, since START_S."""
    return Reservation(
        RunKey("testing", job_id, START_S),
        tenant=tenant,
        user="alice",
        task=str(job_id),
        gres={"1g.10gb": 1},
        cost_millislices=Millislices(1000),
        payer=payer,
        reserved_millislice_s=amount(reserved),
        posted_millislice_s=amount(posted),
        transfers=3,
    )


def a_balance(available: int, reserved: int = 0) -> Balance:
    return Balance("physics", amount(0), amount(available), amount(reserved), amount(0), amount(0))


class TestPosts:
    def posts(
        self, *jobs: JobView, held: Reservation | None = None, looked_s: int = P_S
    ) -> tuple[Charge, ...]:
        return posts_until({"physics": P_S}, jobs, looked_s, [held or a_reservation()])

    def amounts(self, charges: tuple[Charge, ...]) -> list[tuple[str, int, int]]:
        (one,) = charges
        assert one.after == 3
        return [(t.kind.value, t.amount, t.until_s - START_S) for t in one.transfers]

    def test_the_use_of_a_running_job_up_to_the_boundary(self):
        assert self.amounts(self.posts(LIVE)) == [("post", 40_000, 40)]
        assert self.amounts(self.posts(LIVE, looked_s=P_S + 5)) == [("post", 40_000, 40)]

    def test_only_what_is_not_posted(self):
        held = a_reservation(50_000, posted=10_000)
        assert self.amounts(self.posts(LIVE, held=held)) == [("post", 30_000, 40)]
        assert self.posts(LIVE, held=a_reservation(20_000, posted=40_000)) == ()

    def test_what_was_not_seen_to_run_beyond_it_waits_for_its_end(self):
        assert self.posts() == ()
        assert self.posts(LIVE, looked_s=P_S - 1) == ()
        assert self.posts(replace(LIVE, start_s=P_S - 1)) == ()

    @pytest.mark.parametrize("reserved", [30_000, 40_000, 40_999])
    def test_a_reservation_that_it_would_end_is_extended(self, reserved: int):
        extended = ("extend", 41_000 - reserved, 41)
        held = a_reservation(reserved)
        assert self.amounts(self.posts(LIVE, held=held)) == [extended, ("post", 40_000, 40)]

    def test_others_runs_and_later_ones_are_left_alone(self):
        assert self.posts(LIVE, held=a_reservation(payer="vision")) == ()
        assert posts_until({"physics": START_S}, [LIVE], P_S, [a_reservation()]) == ()


class TestRoll:
    def roll(
        self,
        unspent_amount: int,
        used_since_amount: int = 0,
        *,
        budget: Budget | None = None,
        last_rollover_s: int | None = 0,
    ) -> BudgetEntry:
        return due_rollover(
            "physics",
            budget or a_budget(),
            period_start_s=P_S,
            last_rollover_s=last_rollover_s,
            unspent_amount=unspent_amount,
            used_since_amount=used_since_amount,
            reason="month from 2026-11-01",
        )

    @pytest.mark.parametrize(
        ("was", "carry_over", "then"),
        [
            (300, 0, 1000),
            (300, 200, 1200),
            (300, 400, 1300),
            (0, 400, 1000),
            (-300, 400, 700),
            (-5000, 0, -4000),
        ],
    )
    def test_afterwards_there_is_the_amount_and_what_is_carried(
        self, was: int, carry_over: int, then: int
    ):
        entry = self.roll(was, budget=a_budget(carry_over=carry_over))
        assert entry == BudgetEntry(
            "physics", "roll", then - was, P_S, "slicewise", "month from 2026-11-01"
        )

    @pytest.mark.parametrize("was", [-5000, 0, 300])
    def test_the_first_one_begins_with_the_amount_whatever_was(self, was: int):
        entry = self.roll(was, 50, budget=a_budget(carry_over=400), last_rollover_s=None)
        assert was + entry.amount == 1000

    @pytest.mark.parametrize(
        ("was", "used_since", "then"),
        [(300, 50, 1150), (100, 50, 1100), (-20, 50, 980), (-300, 50, 700)],
    )
    def test_what_was_used_since_it_began_is_taken_from_the_new_amount(
        self, was: int, used_since: int, then: int
    ):
        entry = self.roll(was, used_since, budget=a_budget(carry_over=200))
        assert was + entry.amount == then

    def test_it_waits_for_runs_that_are_not_posted_up_to_it(self):
        due = {"physics": P_S}
        assert ready(due, [a_reservation(1, posted=39_999)]) == {}
        assert ready(due, [a_reservation(1, posted=40_000)]) == due
        assert ready(due, [a_reservation(payer="vision")]) == due

    def test_it_is_due_once_per_period(self):
        starts = {"none": 0, "new": 5, "old": 5, "rolled": 5, "begun": 0}
        rollovers = {"old": 4, "rolled": 5, "begun": 0, "gone": 3}
        assert due_periods(rollovers, starts) == {"none": 0, "new": 5, "old": 5}


class TestAmended:
    def amended(
        self, before: Budget | None, after: Budget, last_rollover_s: int | None = P_S
    ) -> BudgetEntry | None:
        return amended(
            "physics",
            before,
            after,
            period_start_s=P_S,
            last_rollover_s=last_rollover_s,
            unspent_amount=300,
            author="olga",
            reason="more",
        )

    def test_in_a_running_period_the_difference_counts_at_once(self):
        more = BudgetEntry("physics", "adjust", 500, None, "olga", "more")
        assert self.amended(a_budget(1000), a_budget(1500)) == more
        less = replace(more, amount=-400)
        assert self.amended(a_budget(1000), a_budget(600)) == less

    def test_another_rule_counts_from_the_next_roll_on(self):
        assert self.amended(a_budget(), a_budget(carry_over=7, overdraft=7)) is None

    def test_a_period_without_a_roll_gets_the_new_amount_by_it(self):
        assert self.amended(a_budget(1000), a_budget(1500), last_rollover_s=None) is None
        assert self.amended(a_budget(1000), a_budget(1500), last_rollover_s=P_S - 1) is None

    def test_a_budget_that_comes_back_begins_anew(self):
        entry = self.amended(None, a_budget(1000))
        assert entry is not None
        assert entry.amount == 700


class TestLeft:
    policy = policy_of(
        tenant("physics", budget=a_budget(overdraft=500)), tenant("vision", parent="physics")
    )

    def left(self, balance: Balance, *held: Reservation) -> BudgetLeft:
        return left(self.policy, {"physics": balance}, {"physics": 0}, held, P_S)["physics"]

    def test_available_and_reserved_less_what_runs_have_used(self):
        found = self.left(a_balance(70_000, 60_000), a_reservation(60_000))
        assert found == BudgetLeft(90_000, 90_500)
        posted = self.left(a_balance(70_000, 60_000), a_reservation(60_000, posted=30_000))
        assert posted.left_millislice_s == 120_000
        assert self.left(a_balance(7), a_reservation(payer="vision")).left_millislice_s == 7

    def test_debt_shows_and_starts_nothing(self):
        assert self.left(a_balance(-400)) == BudgetLeft(-400, 100)
        assert self.left(a_balance(-501)) == BudgetLeft(-501, 0)

    def test_a_budget_that_has_not_begun_is_not_there(self):
        assert left(self.policy, {"physics": a_balance(7)}, {}, (), P_S) == {}
        assert unspent(None) == 0


class TestRunMinutes:
    policy = policy_of(
        tenant("physics", budget=a_budget()),
        tenant("vision", parent="physics", budget=a_budget()),
        tenant("nlp", parent="physics"),
    )

    def minutes(self, physics: int, vision: int, *held: Reservation) -> dict[str, int]:
        budgets = {"physics": BudgetLeft(0, physics), "vision": BudgetLeft(0, vision)}
        return dict(run_minutes(self.policy, budgets, held, P_S))

    def test_minutes_are_rounded_down_and_no_budget_adds_to_another(self):
        assert self.minutes(119, 60) == {"physics": 1, "vision": 1}
        assert self.minutes(0, 60_000) == {"physics": 0, "vision": 1000}

    def test_runs_that_another_budget_pays_or_none_are_let_run_on(self):
        own = a_reservation(payer="nlp", tenant="nlp")
        assert self.minutes(60, 0, own) == {"physics": 1 + 20_000 // 60, "vision": 0}
        paid_above = a_reservation(payer="physics")
        assert self.minutes(60, 0, paid_above) == {"physics": 1, "vision": 20_000 // 60}
        paid_below = a_reservation(payer="vision")
        assert self.minutes(60, 120, paid_below) == {"physics": 1 + 20_000 // 60, "vision": 2}
        over = a_reservation(1, payer="nlp", tenant="nlp")
        assert self.minutes(60, 0, over) == {"physics": 1, "vision": 0}

    def test_what_runs_of_a_tenant_that_is_gone_may_use_up_is_there_for_nobody(self):
        gone = a_reservation(payer="physics", tenant="gone")
        assert self.minutes(21_000, 60, gone) == {"physics": 1000 // 60, "vision": 1}
        assert self.minutes(60, 60, gone) == {"physics": 0, "vision": 1}

    def test_accounts_that_are_no_tenants_bind_nobody(self):
        stranger = a_reservation(payer="guest", tenant="guest")
        assert self.minutes(60, 0, stranger) == {"physics": 1, "vision": 0}


def test_a_statement_counts_what_is_posted_and_what_was_used_since():
    for reserved, posted, used, rest in (
        (60_000, 0, 40_000, 20_000),
        (50_000, 10_000, 40_000, 20_000),
        (10_000, 50_000, 50_000, 10_000),
        (7000, 0, 7000, 0),
    ):
        row = open_row(a_reservation(reserved, posted), P_S)
        assert (row.used_millislice_s, row.reserved_millislice_s) == (used, rest)
        assert (row.waived_millislice_s, row.end_s) == (0, None)


def test_totals_count_waived_use_apart():
    running = open_row(a_reservation(), P_S)
    waived = replace(running, end_s=P_S, used_millislice_s=amount(0), waived_millislice_s=amount(9))
    (total,) = totals([running, replace(waived, reserved_millislice_s=amount(0))])
    assert (total.runs, total.running) == (2, 1)
    assert (total.used_millislice_s, total.waived_millislice_s) == (40_000, 9)
    assert total.reserved_millislice_s == 20_000
