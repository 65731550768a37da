"""The start of budgets' periods: posts what runs used before it, then books the rolls."""

from collections.abc import Sequence

from cluster.jobs import JobView
from cluster.periods import date_text, period_start_s
from slurm_plugin.decide.budgets import due_periods, due_roll, posts_until, unspent
from slurm_plugin.decide.model import BudgetEntry
from slurm_plugin.decide.policy import Budget, Period, Policy
from slurm_plugin.ledger.store import Ledger


def roll_budgets(
    ledger: Ledger, policy: Policy, zone: str, jobs: Sequence[JobView], looked_s: int
) -> tuple[BudgetEntry, ...]:
    """Begin the periods that are due as of ``looked_s``, when ``jobs`` were looked at.

    Returns the rolls that were booked. Safe to repeat, and to end at any point: each roll is booked
    once, and what waits for accounting, or was decided on a balance that has changed, is decided
    again at the next call.
    """
    budgets = {name: tenant.budget for name, tenant in policy.items() if tenant.budget}
    rolls = ledger.rolls() if budgets else {}
    due = due_periods(
        rolls,
        {name: period_start_s(budget.period, looked_s, zone) for name, budget in budgets.items()},
    )
    if not due:
        return ()
    ledger.apply(posts_until(due, jobs, looked_s, ledger.open_reservations()))
    reservations, balances = ledger.open_reservations(), ledger.balances()
    ended = ledger.ended_budgets()
    booked: list[BudgetEntry] = []
    for name, start_s in sorted(due.items()):
        amount = unspent(balances.get(name))
        entry = due_roll(
            name,
            budgets[name],
            period_start_s=start_s,
            last_roll_s=None if name in ended else rolls.get(name),
            unspent_millislice_s=amount,
            reservations=reservations,
            reason=_reason(budgets[name], start_s, zone),
        )
        if entry is not None and ledger.book_budget(entry, amount):
            booked.append(entry)
    return tuple(booked)


def _reason(budget: Budget, start_s: int, zone: str) -> str:
    if budget.period is Period.NONE:
        return "begin of a budget without periods"
    return f"{budget.period} from {date_text(start_s, zone)}"
