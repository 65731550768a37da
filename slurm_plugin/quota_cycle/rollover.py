"""Begins budgets' periods: posts the use of runs before the start, then books the rollovers."""

from collections.abc import Mapping, Sequence

from slicewise.cluster.language.jobs import JobView
from slicewise.cluster.language.meters import SLICES, TOKENS
from slicewise.cluster.language.periods import Period, date_text, period_start_s
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.quota_cycle.post_charges import post
from slicewise.slurm_plugin.rules.accounting.budgets import (
    due_periods,
    due_rollover,
    posts_until,
    ready,
    unspent,
)
from slicewise.slurm_plugin.rules.accounting.overview import used_since
from slicewise.slurm_plugin.rules.accounting.types import BudgetEntry
from slicewise.slurm_plugin.rules.quota.types import Budget, Policy

_TRIES = 20
"""Of one rollover of tokens in one turn: posting changes what is unspent some times a second."""


def roll_over_budgets(
    ledger: Ledger,
    policy: Policy,
    zone: str,
    jobs: Sequence[JobView],
    looked_s: int,
    *,
    change_id: int,
) -> tuple[BudgetEntry, ...]:
    """Begin the periods of slices that are due at ``looked_s``, when ``jobs`` were looked at.

    ``change_id`` is that of the policy's newest change, read before it. Returns the rollovers that
    were booked. Safe to repeat, and to be killed at any point: each rollover is booked once. A
    rollover that waits for accounting, or was decided on a balance or a policy that has changed, is
    decided again at the next call.
    """
    budgets = _budgets(policy, SLICES.name)
    rollovers = ledger.budgets.rollovers() if budgets else {}
    due = begun_periods(policy, rollovers, zone, looked_s)
    if not due:
        return ()
    post(ledger, posts_until(due, jobs, looked_s, ledger.charges.open_reservations()))
    due = ready(due, ledger.charges.open_reservations())
    going_on = due.keys() & rollovers.keys() - _begun_anew(
        ledger, budgets, rollovers, zone, SLICES.name
    )
    # What a run used before there was a budget is not taken out of it, though the run goes on.
    opening = dict.fromkeys(due.keys() - going_on, looked_s)
    held = ledger.charges.open_reservations()
    refused = post(ledger, posts_until(opening, jobs, looked_s, held)).refused
    waiting = {reservation.payer for reservation in held if reservation.key in refused}
    due = {name: start_s for name, start_s in due.items() if name not in waiting}
    balances = ledger.budgets.balances()
    since_s = min((due[name] for name in going_on), default=looked_s)
    statement = ledger.audit.statement(None, since_s, looked_s)
    rows = [row for row in statement.rows if row.end_s is not None]
    booked: list[BudgetEntry] = []
    for name, start_s in sorted(due.items()):
        amount = unspent(balances.get(name))
        entry = due_rollover(
            name,
            budgets[name],
            period_start_s=start_s,
            last_rollover_s=rollovers[name] if name in going_on else None,
            unspent_amount=amount,
            # Read after the balances: a share that is booked in between changes what is unspent.
            used_since_amount=used_since(rows, name, start_s)
            + ledger.shares.paid_since(name, start_s),
            reason=_reason(budgets[name], start_s, zone),
        )
        if ledger.budgets.enter(entry, amount, change_id):
            booked.append(entry)
    return tuple(booked)


def roll_over_token_budgets(
    ledger: Ledger, policy: Policy, zone: str, now_s: int, *, change_id: int
) -> tuple[BudgetEntry, ...]:
    """The same of tokens: nothing of them is reserved, so nothing has to be posted before.

    Safe to repeat, and to be killed at any point.
    """
    budgets, meter = _budgets(policy, TOKENS.name), TOKENS.name
    rollovers = ledger.budgets.rollovers(meter) if budgets else {}
    due = begun_periods(policy, rollovers, zone, now_s, meter)
    if not due:
        return ()
    going_on = due.keys() & rollovers.keys() - _begun_anew(ledger, budgets, rollovers, zone, meter)
    booked: list[BudgetEntry] = []
    for name, start_s in sorted(due.items()):
        for _ in range(_TRIES):
            amount = unspent(ledger.budgets.balances(meter).get(name))
            # Read after the balance: what is posted in between changes what is unspent.
            used = ledger.budgets.used_since(name, start_s, meter) if name in going_on else 0
            entry = due_rollover(
                name,
                budgets[name],
                period_start_s=start_s,
                last_rollover_s=rollovers[name] if name in going_on else None,
                unspent_amount=amount,
                used_since_amount=used,
                reason=_reason(budgets[name], start_s, zone),
            )
            if ledger.budgets.enter(entry, amount, change_id):
                booked.append(entry)
                break
    return tuple(booked)


def begun_periods(
    policy: Policy,
    rollovers: Mapping[str, int],
    zone: str,
    looked_s: int,
    meter: str = SLICES.name,
) -> Mapping[str, int]:
    """Starts of periods that have begun by ``looked_s`` and were not rolled, by tenant, Unix
    seconds.
    """
    budgets = _budgets(policy, meter)
    starts_s = {
        name: period_start_s(budget.period, looked_s, zone) for name, budget in budgets.items()
    }
    return due_periods(rollovers, starts_s)


def _budgets(policy: Policy, meter: str) -> Mapping[str, Budget]:
    return {name: budget for name, tenant in policy.items() if (budget := tenant.budget_on(meter))}


def _begun_anew(
    ledger: Ledger,
    budgets: Mapping[str, Budget],
    rollovers: Mapping[str, int],
    zone: str,
    meter: str,
) -> frozenset[str]:
    """Tenants that got a removed budget again in a later period than that of its last rollover.

    ``amended`` handles budgets set again within the same period.
    """
    return frozenset(
        name
        for name, at_s in ledger.budgets.renewed(meter).items()
        if name in budgets and period_start_s(budgets[name].period, at_s, zone) > rollovers[name]
    )


def _reason(budget: Budget, start_s: int, zone: str) -> str:
    if budget.period is Period.NONE:
        return "begin of a budget without periods"
    return f"{budget.period} from {date_text(start_s, zone)}"
