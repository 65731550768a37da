"""Puts together from the ledger what people read: for commands and for the daemon."""

from collections.abc import Collection, Iterator, Mapping

from slicewise.cluster.language.meters import SLICES, TOKENS
from slicewise.cluster.language.periods import Period, period_start_s
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rules.accounting.budgets import unspent
from slicewise.slurm_plugin.rules.accounting.ledger_view import LedgerView
from slicewise.slurm_plugin.rules.accounting.overview import (
    BudgetStatus,
    budget_status,
    token_budget_status,
    used_ever,
)
from slicewise.slurm_plugin.rules.accounting.types import Balance, BalanceLine
from slicewise.slurm_plugin.rules.admission.decayed_use import (
    HALF_LIVES,
    DecayedUse,
    averages,
    recorded,
)
from slicewise.slurm_plugin.rules.quota import tenants
from slicewise.slurm_plugin.rules.quota.types import Budget, Policy


def ledger_view_now(ledger: Ledger, settings: Settings, at_s: float | None = None) -> LedgerView:
    """All that the ledger says now, or at the time ``at_s`` of a better clock than the host's."""
    return ledger.view(wall_s() if at_s is None else at_s, settings.ledger.time_zone)


def recent_use(ledger: Ledger, settings: Settings, at_s: float) -> DecayedUse:
    """Recent use of tenants, from the ledger alone. The daemon follows it by itself."""
    half_life_s = settings.priority.half_life_s
    holdings = ledger.charges.holdings(int(at_s - HALF_LIVES * half_life_s))
    return recorded(holdings, at_s, half_life_s)


def held_lately(ledger: Ledger, settings: Settings, at_s: float) -> Mapping[str, float]:
    """Millislices that each tenant has held on average; {} where loans do not depend on it."""
    if not settings.lending.past_use:
        return {}
    return averages(recent_use(ledger, settings, at_s), settings.priority.half_life_s)


def balance_lines(
    ledger: Ledger, ledger_view: LedgerView, names: Collection[str] | None
) -> tuple[BalanceLine, ...]:
    """Balances of these tenants (None: all) by meter and name: of slices those that ever had a run
    or a budget, of tokens those that a budget pays for or ever did.
    """
    policy, tokens = ledger_view.tenants, ledger.budgets.balances(TOKENS.name)
    paid = tenants.budget_payers(policy, TOKENS.name)
    budgeted = {name: held for name, held in tokens.items() if name in paid or held.granted}
    return (
        *_balance_lines(SLICES.name, ledger_view.balances, left_millislice_s(ledger_view), names),
        *_balance_lines(TOKENS.name, budgeted, left_tokens(ledger, policy), names),
    )


def _balance_lines(
    meter: str,
    balances: Mapping[str, Balance],
    left: Mapping[str, int],
    names: Collection[str] | None,
) -> Iterator[BalanceLine]:
    for name, balance in sorted(balances.items()):
        if names is None or name in names:
            yield BalanceLine(**vars(balance), meter=meter, left=left.get(name))


def budget_statuses(
    ledger: Ledger,
    ledger_view: LedgerView,
    zone: str,
    tenant: str | None,
    readers: Collection[str] | None,
) -> tuple[BudgetStatus, ...]:
    """Status of the budgets of slices that pay for these tenants (``readers``; None: all), by name.

    With ``tenant``, of the budget that pays for this tenant alone, with what was used of it. Empty
    if none does.
    """
    policy = ledger_view.tenants
    payers = tenants.payers(policy)
    asked = readers if tenant is None else {tenant}
    names = {payer for name, payer in payers.items() if asked is None or name in asked}
    return tuple(
        budget_status(
            name,
            budget,
            ledger_view,
            zone,
            None if tenant is None else _used(ledger, ledger_view, zone, name, budget),
        )
        for name in sorted(names)
        if (budget := policy[name].budget) is not None
    )


def token_budget_statuses(
    ledger: Ledger,
    ledger_view: LedgerView,
    zone: str,
    tenant: str | None,
    readers: Collection[str] | None,
) -> tuple[BudgetStatus, ...]:
    """The same of tokens."""
    policy, now_s = ledger_view.tenants, ledger_view.now_s
    payers = tenants.payers(policy, TOKENS.name)
    asked = readers if tenant is None else {tenant}
    names = {payer for name, payer in payers.items() if asked is None or name in asked}
    left = left_tokens(ledger, policy)
    return tuple(
        token_budget_status(
            name,
            budget,
            left.get(name),
            None if tenant is None else _used_tokens(ledger, name, budget, zone, now_s),
            now_s=now_s,
            zone=zone,
        )
        for name in sorted(names)
        if (budget := policy[name].token_budget) is not None
    )


def left_tokens(ledger: Ledger, policy: Policy) -> Mapping[str, int]:
    """What each budget of tokens that has begun has left, by tenant."""
    budgeted = {name for name, tenant in policy.items() if tenant.token_budget is not None}
    if not budgeted:
        return {}
    balances = ledger.budgets.balances(TOKENS.name)
    begun = budgeted & ledger.budgets.rollovers(TOKENS.name).keys()
    return {name: unspent(balances.get(name)) for name in begun}


def _used_tokens(ledger: Ledger, payer: str, budget: Budget, zone: str, now_s: int) -> int:
    if budget.period is Period.NONE:
        balance = ledger.budgets.balances(TOKENS.name).get(payer)
        return balance.granted - unspent(balance) if balance else 0
    start_s = period_start_s(budget.period, now_s, zone)
    return ledger.budgets.used_since(payer, start_s, TOKENS.name)


def _used(ledger: Ledger, ledger_view: LedgerView, zone: str, payer: str, budget: Budget) -> int:
    """Return millislice-seconds used since the period began by the runs that the payer pays."""
    if budget.period is Period.NONE:
        return used_ever(ledger_view, payer)
    start_s = period_start_s(budget.period, ledger_view.now_s, zone)
    return ledger.audit.used_of_budget(payer, start_s, ledger_view.now_s)


def left_millislice_s(ledger_view: LedgerView) -> Mapping[str, int]:
    """What each budget that has begun has left in millislice-seconds, by tenant."""
    return {tenant: budget.left_millislice_s for tenant, budget in ledger_view.left.items()}
