"""Budgets: the roll at the start of a period, what is left, what Slurm is told of it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial

from cluster.jobs import JobView
from slurm_plugin.decide.charging import transfer
from slurm_plugin.decide.gone import live_runs
from slurm_plugin.decide.model import (
    Balance,
    BudgetEntry,
    Charge,
    Reservation,
    Transfer,
    TransferKind,
)
from slurm_plugin.decide.policy import Budget, Policy
from slurm_plugin.decide.statement import unposted_millislice_s
from slurm_plugin.decide.tenants import ancestors

AUTHOR = "slicewise"
"""Of the entries that nobody made by hand."""

Amend = Callable[[Budget | None, int | None, int], BudgetEntry | None]
"""The entry that follows, if any, from the budget as it was, the start of the period that was
rolled last (None: none was) and what is unspent.
"""


@dataclass(frozen=True)
class Left:
    """What a budget still allows.

    Attributes:
        left_millislice_s: below zero is debt.
        startable_millislice_s: with the overdraft, and never below zero: what its running jobs may
            still use up, and new ones.
    """

    left_millislice_s: int
    startable_millislice_s: int


def unspent(balance: Balance | None) -> int:
    """What a payer has not used up, running jobs' use counted only as far as it is posted."""
    return balance.available_millislice_s + balance.reserved_millislice_s if balance else 0


def due_periods(rolls: Mapping[str, int], period_starts_s: Mapping[str, int]) -> Mapping[str, int]:
    """The periods that have begun without a roll: their starts by tenant.

    ``rolls`` are the starts of the periods that were rolled last. Of several that went by with
    nobody there only the last is due.
    """
    return {
        tenant: start_s
        for tenant, start_s in period_starts_s.items()
        if tenant not in rolls or start_s > rolls[tenant]
    }


def posts_until(
    due: Mapping[str, int],
    jobs: Iterable[JobView],
    looked_s: int,
    reservations: Iterable[Reservation],
) -> tuple[Charge, ...]:
    """Posts of what the payers' runs used before their new periods, of those that ran on then.

    ``jobs`` were looked at at ``looked_s``: what ran then ran at every boundary before. Other runs
    are posted at their ends. A post leaves at least a second reserved, extended if need be: a
    reservation of which nothing is left has ended.
    """
    live = live_runs(jobs)
    return tuple(
        Charge(held, held.transfers, _post(held, due[held.payer]))
        for held in reservations
        if held.payer in due
        and due[held.payer] <= looked_s
        and (held.key.job_id, held.key.start_s) in live
        and unposted_millislice_s(held, due[held.payer])
    )


def _post(held: Reservation, until_s: int) -> tuple[Transfer, ...]:
    amount = unposted_millislice_s(held, until_s)
    missing = max(0, amount + held.cost_millislices - held.reserved_millislice_s)
    post = transfer(TransferKind.POST, amount, until_s)
    return (transfer(TransferKind.EXTEND, missing, until_s + 1), post) if missing else (post,)


def ready(due: Mapping[str, int], reservations: Iterable[Reservation]) -> Mapping[str, int]:
    """The due periods before which all is posted.

    The others wait for runs that have ended and that accounting does not show yet. A run too short
    to have been seen may come later still; it counts in the new period.
    """
    waiting = {
        held.payer
        for held in reservations
        if held.payer in due and unposted_millislice_s(held, due[held.payer])
    }
    return {tenant: start_s for tenant, start_s in due.items() if tenant not in waiting}


def due_roll(
    tenant: str,
    budget: Budget,
    *,
    period_start_s: int,
    last_roll_s: int | None,
    unspent_millislice_s: int,
    used_since_millislice_s: int,
    reason: str,
) -> BudgetEntry:
    """The entry that begins a due period: afterwards its amount and what is carried are unspent,
    less what runs used since it began and have ended: ``used_since_millislice_s``.

    Carried is debt, or at most the carry-over of what was unspent. At the first roll since there is
    a budget (``last_roll_s`` None) its amount is unspent, whatever went before. To be booked only
    if as much is unspent then.
    """
    amount = budget.amount_millislice_s - unspent_millislice_s
    if last_roll_s is not None:
        had = unspent_millislice_s + used_since_millislice_s
        amount += min(had, budget.carry_over_millislice_s) - used_since_millislice_s
    return BudgetEntry(tenant, "roll", amount, period_start_s, AUTHOR, reason)


def amended(
    tenant: str,
    before: Budget | None,
    after: Budget,
    *,
    period_start_s: int,
    last_roll_s: int | None,
    unspent_millislice_s: int,
    author: str,
    reason: str,
) -> BudgetEntry | None:
    """What an operator's change of a budget means for the running period; None if nothing.

    ``period_start_s`` is of the new budget's running period. If that was not rolled yet, its roll
    brings the new amount. Else the difference of the amounts counts at once, and all else from the
    next roll on. A budget that was taken away and comes back within a period begins anew with its
    amount. To be booked only if as much is unspent then; else decide anew.
    """
    if last_roll_s is None or period_start_s > last_roll_s:
        return None
    had = before.amount_millislice_s if before else unspent_millislice_s
    amount = after.amount_millislice_s - had
    return BudgetEntry(tenant, "adjust", amount, None, author, reason) if amount else None


def left(
    policy: Policy,
    balances: Mapping[str, Balance],
    rolls: Mapping[str, int],
    reservations: Iterable[Reservation],
    at_s: int,
) -> Mapping[str, Left]:
    """What is left of each budget at ``at_s``; one that has not begun, by its first roll, is not
    in it and limits nothing.
    """
    accrued: dict[str, int] = {}
    for held in reservations:
        accrued[held.payer] = accrued.get(held.payer, 0) + unposted_millislice_s(held, at_s)
    return {
        name: _left(budget, unspent(balances.get(name)) - accrued.get(name, 0))
        for name, tenant in policy.items()
        if (budget := tenant.budget) is not None and name in rolls
    }


def _left(budget: Budget, amount: int) -> Left:
    return Left(amount, max(0, amount + budget.overdraft_millislice_s))


def run_minutes(
    policy: Policy,
    budgets_left: Mapping[str, Left],
    reservations: Iterable[Reservation],
    at_s: int,
) -> Mapping[str, int]:
    """Millislice-minutes that the jobs of each tenant with a budget, and of those below it, may
    still run. Slurm is told of it in parts (``budget_parts``).

    What every running job of the subtree may still use up counts, whoever pays: so what those may
    that this budget does not pay for is added. New ones start if they fit into what is left of
    every budget on the way up, and no budget below lends a tenant its own.
    """
    allowed = {name: one.startable_millislice_s for name, one in budgets_left.items()}
    # Of thousands of runs, a few tenants'.
    upwards = cache(partial(_upwards, policy))
    for held in reservations:
        unused = held.reserved_millislice_s - unposted_millislice_s(held, at_s)
        for name in upwards(held.tenant):
            if name in allowed and name != held.payer:
                allowed[name] += max(0, unused)
        if held.tenant not in policy and held.payer in allowed:
            # No QOS that has a part of that budget counts what runs of a tenant that is gone.
            allowed[held.payer] -= min(allowed[held.payer], max(0, unused))
    return {name: amount // 60 for name, amount in allowed.items()}


def _upwards(policy: Policy, tenant: str) -> tuple[str, ...]:
    return (tenant, *ancestors(policy, tenant)) if tenant in policy else ()
