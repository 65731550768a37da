"""Tests rolling budgets after a late daemon, or after a time without a budget."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import pytest
from builders.ledger_world import PARTITION, SimulatedRun, job_view, run_record
from builders.tenants import tenant
from stand_ins.memory_ledger import MemoryStore

from slicewise.cluster.language.errors import OutsideError
from slicewise.cluster.language.meters import SLICES
from slicewise.cluster.language.periods import Period, next_start_s, period_start_s
from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.slurm_plugin.quota_cycle.rollover import roll_over_budgets
from slicewise.slurm_plugin.rules.accounting.budgets import left, unspent
from slicewise.slurm_plugin.rules.accounting.charging import Rates, charge
from slicewise.slurm_plugin.rules.accounting.types import BudgetEntry, Charge, RunKey
from slicewise.slurm_plugin.rules.quota.types import Budget

JANUARY_S = period_start_s(Period.MONTH, 1_800_000_000, "UTC")
FEBRUARY_S = next_start_s(Period.MONTH, JANUARY_S, "UTC") or 0
BUDGET = Budget(Period.MONTH, MillisliceSeconds(1000), MillisliceSeconds(200))
POLICY = {"lone": tenant("lone", budget=BUDGET)}
RATES = Rates("simulated", frozenset({PARTITION}), {"1g.10gb": Millislices(1)}, {}, "tenant")
LONE = 2
"""The number of a job of that tenant."""


@dataclass
class Rolled(MemoryStore):
    """Rolled in January; ``begun_anew`` is when budgets came back."""

    begun_anew: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        entry = BudgetEntry("lone", "roll", 1000, JANUARY_S, "slicewise", "")
        assert self.enter(entry, 0)

    def renewed(self, meter: str = SLICES.name) -> Mapping[str, int]:
        return self.begun_anew

    def use(self, start_s: int, seconds: int) -> None:
        """By a run that no look saw while it ran."""
        run = SimulatedRun(LONE, start_s, {"1g.10gb": 1}, PARTITION, 60, end_s=start_s + seconds)
        self.post(charge(RATES, (), (run_record(run, start_s + seconds),), (), {}).charges)

    def roll(self, at_s: int) -> int:
        """What is unspent afterwards."""
        roll_over_budgets(self, POLICY, "UTC", (), at_s, change_id=0)
        return unspent(self.balances()["lone"])


@pytest.mark.parametrize(("in_january", "carried"), [(100, 200), (900, 100), (1300, -300)])
def test_a_late_daemon_takes_what_was_used_since_from_the_new_period(in_january: int, carried: int):
    ledger = Rolled()
    ledger.use(JANUARY_S + 10, in_january)
    ledger.use(FEBRUARY_S + 5, 50)
    ledger.use(FEBRUARY_S + 100, 20)
    assert ledger.roll(FEBRUARY_S + 3600) == 1000 + carried - 70


def test_a_run_over_the_boundary_counts_in_both_periods():
    ledger = Rolled()
    ledger.use(FEBRUARY_S - 900, 940)
    assert ledger.roll(FEBRUARY_S + 3600) == 1000 + 100 - 40


def test_a_first_budget_does_not_pay_for_what_ran_before_it():
    ledger, at_s = MemoryStore(), JANUARY_S + 5000
    run = job_view(SimulatedRun(LONE, JANUARY_S - 10, {"1g.10gb": 1}, PARTITION, None))
    ledger.charges.post(charge(RATES, (run,), (), (), {}).charges)
    roll_over_budgets(ledger, POLICY, "UTC", (run,), at_s, change_id=0)
    held, balances, rollovers = (
        ledger.charges.open_reservations(),
        ledger.budgets.balances(),
        ledger.budgets.rollovers(),
    )
    assert left(POLICY, balances, rollovers, held, at_s)["lone"].left_millislice_s == 1000
    assert left(POLICY, balances, rollovers, held, at_s + 5)["lone"].left_millislice_s == 995


def test_a_first_period_waits_while_the_ledger_refuses_what_a_run_used_before_it(
    monkeypatch: pytest.MonkeyPatch,
):
    """Else the new budget would pay for it once the ledger takes it."""
    ledger, start_s = MemoryStore(), JANUARY_S + 100
    run = job_view(SimulatedRun(LONE, start_s, {"1g.10gb": 1}, PARTITION, None))
    ledger.charges.post(charge(RATES, (run,), (), (), {}).charges)
    begin = partial(roll_over_budgets, ledger, POLICY, "UTC", (run,), change_id=0)

    def refuse(charges: Sequence[Charge]) -> frozenset[RunKey]:
        if charges:
            raise OutsideError("SW-DATABASE-FAILED", "bigint out of range")
        return frozenset()

    with monkeypatch.context() as refusing:
        refusing.setattr(ledger, "post", refuse)
        assert begin(start_s + 50) == ()
    assert ledger.budgets.rollovers() == {}
    (booked,) = begin(start_s + 60)
    assert booked.period_start_s == JANUARY_S
    held, balances = ledger.charges.open_reservations(), ledger.budgets.balances()
    rollovers = ledger.budgets.rollovers()
    assert left(POLICY, balances, rollovers, held, start_s + 60)["lone"].left_millislice_s == 1000


def test_a_budget_that_came_back_in_its_period_goes_on_with_its_debt():
    ledger = Rolled(begun_anew={"lone": JANUARY_S + 50})
    ledger.use(JANUARY_S + 100, 1400)
    assert ledger.roll(FEBRUARY_S + 1) == 1000 - 400


def test_a_budget_that_came_back_later_begins_with_its_amount():
    ledger = Rolled(begun_anew={"lone": FEBRUARY_S + 50})
    ledger.use(JANUARY_S + 100, 1400)
    assert ledger.roll(FEBRUARY_S + 100) == 1000


def test_a_period_waits_for_a_run_of_the_last_one_that_is_not_settled():
    """It runs no more, and accounting does not show its end yet."""
    ledger = Rolled()
    run = SimulatedRun(LONE, FEBRUARY_S - 50, {"1g.10gb": 1}, PARTITION, 600)
    ledger.charges.post(charge(RATES, (job_view(run),), (), (), {}).charges)
    assert roll_over_budgets(ledger, POLICY, "UTC", (), FEBRUARY_S + 100, change_id=0) == ()
    run.end_s, run.visible_s = FEBRUARY_S + 20, FEBRUARY_S + 200
    ended = (run_record(run, FEBRUARY_S + 200),)
    ledger.charges.post(charge(RATES, (), ended, ledger.charges.open_reservations(), {}).charges)
    assert ledger.roll(FEBRUARY_S + 200) == 1000 + 200 - 20


def test_a_period_does_not_begin_by_a_budget_that_was_changed_meanwhile():
    ledger = Rolled()
    ledger.newest = 8
    begin = partial(roll_over_budgets, ledger, POLICY, "UTC", (), FEBRUARY_S + 1)
    assert begin(change_id=7) == ()
    (booked,) = begin(change_id=8)
    assert booked.period_start_s == FEBRUARY_S
