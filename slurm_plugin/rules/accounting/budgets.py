"""Rolls budgets into new periods, and computes what is left of them and what Slurm may allow."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial

from slicewise.cluster.language.jobs import JobView
from slicewise.slurm_plugin.rules.accounting.charging import transfer
from slicewise.slurm_plugin.rules.accounting.lost_runs import live_runs
from slicewise.slurm_plugin.rules.accounting.statement import unposted_millislice_s
from slicewise.slurm_plugin.rules.accounting.types import (
    Balance,
    BudgetEntry,
    Charge,
    Reservation,
    Transfer,
    TransferKind,
)
from slicewise.slurm_plugin.rules.quota.tenants import ancestors
from slicewise.slurm_plugin.rules.quota.types import Budget, Policy

AUTHOR = "slicewise"
"""The author of entries that no operator made."""

Amend = Callable[[Budget | None, int | None, int], BudgetEntry | None]
"""Returns the entry for a change of a budget, if one is needed. The arguments are the budget before
the change, the start of the period that was rolled last (None if none was), and the unspent amount.
"""


@dataclass(frozen=True)
class BudgetLeft:
    """What a budget still allows.

    Attributes:
        left_millislice_s: granted less used; negative if the budget is in debt.
        startable_millislice_s: the same plus the overdraft, at least 0: what running and new jobs
            together may still use up.
    """

    left_millislice_s: int
    startable_millislice_s: int


def unspent(balance: Balance | None) -> int:
    """Return what a payer has not used up, in its meter's unit; 0 without a balance.

    Of running jobs only the posted use is subtracted.
    """
    return balance.available + balance.reserved if balance else 0


def due_periods(
    rollovers: Mapping[str, int], period_starts_s: Mapping[str, int]
) -> Mapping[str, int]:
    """Return the starts of the periods that have begun without a rollover, by tenant.

    ``rollovers`` are the starts of the periods whose rollover was last. If the daemon was away for
    several periods, only the last one is due.
    """
    return {
        tenant: start_s
        for tenant, start_s in period_starts_s.items()
        if tenant not in rollovers or start_s > rollovers[tenant]
    }


def posts_until(
    due: Mapping[str, int],
    jobs: Iterable[JobView],
    looked_s: int,
    reservations: Iterable[Reservation],
) -> tuple[Charge, ...]:
    """Post what running jobs used of the payers' budgets before the new periods.

    ``jobs`` were read at ``looked_s``: a run that was running then, and began before a period's
    start, ran across that start. Other runs are posted at their ends. A post leaves at least a
    second reserved, and extends the reservation if necessary, because a reservation with nothing
    left counts as ended.
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
    """Return the due periods before which all use is posted.

    The others wait for runs that have ended but that accounting does not show yet. A run too short
    to have been seen may still appear later; it counts in the new period.
    """
    waiting = {
        held.payer
        for held in reservations
        if held.payer in due and unposted_millislice_s(held, due[held.payer])
    }
    return {tenant: start_s for tenant, start_s in due.items() if tenant not in waiting}


def due_rollover(
    tenant: str,
    budget: Budget,
    *,
    period_start_s: int,
    last_rollover_s: int | None,
    unspent_amount: int,
    used_since_amount: int,
    reason: str,
) -> BudgetEntry:
    """Compute the entry that begins a due period.

    After it the new amount and the carried amount are unspent, less ``used_since_amount``:
    what was used that ended since the period began. All debt is carried, and of an unspent rest
    at most the carry-over. At a budget's first rollover (``last_rollover_s`` is None) exactly the
    amount is unspent, whatever was used before. The entry must only be booked if
    ``unspent_amount`` is unchanged then.
    """
    amount = budget.amount - unspent_amount
    if last_rollover_s is not None:
        had = unspent_amount + used_since_amount
        amount += min(had, budget.carry_over) - used_since_amount
    return BudgetEntry(tenant, "roll", amount, period_start_s, AUTHOR, reason, meter=budget.meter)


def amended(
    tenant: str,
    before: Budget | None,
    after: Budget,
    *,
    period_start_s: int,
    last_rollover_s: int | None,
    unspent_amount: int,
    author: str,
    reason: str,
) -> BudgetEntry | None:
    """Compute the entry by which an operator's change of a budget affects the running period.

    None if it has no effect. ``period_start_s`` is the start of the new budget's running period. If
    that period was not rolled yet, its roll brings the new amount. Otherwise the difference of the
    amounts counts immediately, and everything else from the next roll on. A budget that was taken
    away and comes back within a period starts again with its full amount. The entry must only be
    booked if ``unspent_amount`` is unchanged then; else it must be decided again.
    """
    if last_rollover_s is None or period_start_s > last_rollover_s:
        return None
    had = before.amount if before else unspent_amount
    amount = after.amount - had
    if not amount:
        return None
    return BudgetEntry(tenant, "adjust", amount, None, author, reason, meter=after.meter)


def lost(
    before: Budget | None,
    after: Budget,
    *,
    period_start_s: int,
    last_rollover_s: int | None,
    left_amount: int,
) -> int:
    """Compute what is left now and gone when a budget gets another period.

    The new period begins as soon as the ledger rolls, and keeps of the rest at most the carry-over.
    0 if the running period goes on, as ``last_rollover_s`` shows, or if no period has begun yet.
    """
    if before is None or before.period is after.period:
        return 0
    if last_rollover_s is None or period_start_s <= last_rollover_s:
        return 0
    return max(0, left_amount - after.carry_over)


def left(
    policy: Policy,
    balances: Mapping[str, Balance],
    rollovers: Mapping[str, int],
    reservations: Iterable[Reservation],
    at_s: int,
) -> Mapping[str, BudgetLeft]:
    """Compute what is left of each budget at ``at_s`` (Unix seconds), by tenant.

    A budget begins with its first roll. Before that it is left out and limits nothing.
    """
    accrued: dict[str, int] = {}
    for held in reservations:
        accrued[held.payer] = accrued.get(held.payer, 0) + unposted_millislice_s(held, at_s)
    return {
        name: _left(budget, unspent(balances.get(name)) - accrued.get(name, 0))
        for name, tenant in policy.items()
        if (budget := tenant.budget) is not None and name in rollovers
    }


def _left(budget: Budget, amount: int) -> BudgetLeft:
    return BudgetLeft(amount, max(0, amount + budget.overdraft))


def run_minutes(
    policy: Policy,
    budgets_left: Mapping[str, BudgetLeft],
    reservations: Iterable[Reservation],
    at_s: int,
) -> Mapping[str, int]:
    """Compute the millislice-minutes that jobs in each budget's subtree may still take, by tenant.

    Slurm gets these limits in parts (``budget_parts``). Slurm counts what every running job of the
    subtree may still use up, whoever pays for the job. So the reservations that other budgets pay
    for are added here. New jobs must fit into what is left of every budget on the way up: a budget
    below does not enlarge the one above.
    """
    allowed = {name: budget.startable_millislice_s for name, budget in budgets_left.items()}
    # Of thousands of runs, a few tenants'.
    upwards = cache(partial(_upwards, policy))
    for held in reservations:
        above = upwards(held.tenant)
        if above == (held.payer,):
            continue
        unused = held.reserved_millislice_s - unposted_millislice_s(held, at_s)
        for name in above:
            if name in allowed and name != held.payer:
                allowed[name] += max(0, unused)
        if held.tenant not in policy and held.payer in allowed:
            # A removed tenant's runs count in no QOS that has a part of this budget.
            allowed[held.payer] -= min(allowed[held.payer], max(0, unused))
    return {name: amount // 60 for name, amount in allowed.items()}


def _upwards(policy: Policy, tenant: str) -> tuple[str, ...]:
    return (tenant, *ancestors(policy, tenant)) if tenant in policy else ()


def amend_of(tenant: str, budget: Budget, begun_s: int, author: str, reason: str) -> Amend:
    """Return a function that computes what the running period gets or loses by a new budget.

    ``begun_s`` is when the running period of the new one began, in Unix seconds. The ledger calls
    it with the budget as it was, the last roll and what is unspent; None means that nothing has to
    be booked.
    """

    def entry(
        was: Budget | None, last_rollover_s: int | None, unspent_amount: int
    ) -> BudgetEntry | None:
        return amended(
            tenant,
            was,
            budget,
            period_start_s=begun_s,
            last_rollover_s=last_rollover_s,
            unspent_amount=unspent_amount,
            author=author,
            reason=reason,
        )

    return entry
