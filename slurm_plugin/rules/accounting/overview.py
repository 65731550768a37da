"""Summarises each tenant's quota, loans, use and budget."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pydantic import computed_field

from slicewise.cluster.language.periods import next_start_s, period_start_s
from slicewise.cluster.rpc.overview_messages import TenantNow
from slicewise.slurm_plugin.rules.accounting.budgets import unspent
from slicewise.slurm_plugin.rules.accounting.ledger_view import LedgerView
from slicewise.slurm_plugin.rules.accounting.statement import open_row
from slicewise.slurm_plugin.rules.accounting.types import Balance, Reservation, StatementRow
from slicewise.slurm_plugin.rules.quota import tenants
from slicewise.slurm_plugin.rules.quota.standings import Standing, standings
from slicewise.slurm_plugin.rules.quota.type_limits import TypeOfQuota
from slicewise.slurm_plugin.rules.quota.types import (
    Budget,
    Loan,
    Policy,
    Quota,
    QuotaChange,
    Recall,
)


@dataclass(frozen=True, kw_only=True)
class TenantStatus(Standing):
    """The present state of a tenant.

    Attributes:
        quota, budget: as they were set for it.
        depth: number of tenants above it.
        nominal_millislices: effective nominal; for a group (its nominal is 0) the sum below it.
        in_use_millislices: what running jobs hold, including those of the tenants below it.
        own_in_use_millislices: what its own running jobs hold.
        running: number of its own running jobs.
        payer: the tenant that pays for its runs with its budget; itself if no budget applies.
        left_millislice_s: what its budget has left now; None without a budget that has begun.
        in_slurm: whether Slurm has its account; None if Slurm did not answer.
    """

    tenant: str
    parent: str
    quota: Quota
    budget: Budget | None
    depth: int
    nominal_millislices: int
    in_use_millislices: int
    own_in_use_millislices: int
    running: int
    payer: str
    left_millislice_s: int | None
    in_slurm: bool | None


@dataclass(frozen=True)
class BudgetStatus:
    """A tenant's budget as it is now, in its meter's unit. Left and used add up to what the period
    had.

    Attributes:
        left: what is left; None until the daemon has begun its first period.
        reserved: how much of that running jobs may still use up.
        used: what was used of it since its period began; None if not asked for.
        rate: what the running jobs that it pays for use up in a second: the millislices that they
            hold. 0 of tokens.
        ends_s: when nothing is left at this rate, in Unix seconds; None if nothing is used up.
        period_start_s: when the running period began, in Unix seconds; None without periods.
        resets_s: when the next period begins, in Unix seconds; None if never.
    """

    tenant: str
    budget: Budget
    left: int | None
    reserved: int
    used: int | None
    rate: int
    ends_s: int | None
    period_start_s: int | None
    resets_s: int | None

    @computed_field
    @property
    def had(self) -> int | None:
        """What the running period had: its amount, with what was carried over, granted, adjusted.

        None if left or used is not known.
        """
        if self.left is None or self.used is None:
            return None
        return self.left + self.used


@dataclass(frozen=True, kw_only=True)
class Details(TenantStatus):
    """A tenant with everything that belongs to it.

    Attributes:
        children: names of the tenants directly below it.
        loans: loans in which the tenant itself is lender or borrower.
        resets_s: when its budget starts again, in Unix seconds; None means never.
        last_change: the tenant's.
        in_force: whether Slurm's limits contain that change.
        types: the GPU types that its quota limits or guarantees, with what jobs hold of them; None
            if Slurm did not answer.
        token_budget: the budget of tokens that pays for its requests; None if none does.
    """

    children: tuple[str, ...]
    loans: tuple[Loan, ...]
    resets_s: int | None
    last_change: QuotaChange
    in_force: bool
    types: tuple[TypeOfQuota, ...] | None = ()
    token_budget: BudgetStatus | None = None


class TenantInTree(TenantNow):
    """A tenant with its place in the tree and its own quota, as the calendar has it now.

    Attributes:
        parent: the nearest tenant above it that the reader sees; "" without one.
        children: tenants whose ``parent`` it is.
        own_in_use_millislices: what its own running jobs hold.
        types: what its quota limits or guarantees by type.
        token_payer: the tenant with the budget of tokens that pays for its requests; "" without.
    """

    parent: str
    children: tuple[str, ...]
    quota: Quota
    own_in_use_millislices: int
    types: tuple[TypeOfQuota, ...] = ()
    token_payer: str = ""


@dataclass(frozen=True)
class OverviewInput:
    """The input of ``tenant_statuses``.

    Attributes:
        left_millislice_s: what is left, for each tenant with a budget that has begun.
        accounts: those of Slurm; None if Slurm did not answer.
    """

    policy: Policy = field(hash=False)
    loans: tuple[Loan, ...]
    recalls: tuple[Recall, ...]
    reservations: tuple[Reservation, ...]
    left_millislice_s: Mapping[str, int] = field(hash=False)
    accounts: frozenset[str] | None


def tenant_statuses(gathered: OverviewInput) -> tuple[TenantStatus, ...]:
    """The standing of every tenant, each followed by the tenants below it."""
    policy = gathered.policy
    nominal = tenants.effective_nominal(policy)
    payers = tenants.payers(policy)
    standing = standings(policy, gathered.loans, gathered.recalls)
    own, runs = Counter[str](), Counter[str]()
    for run in gathered.reservations:
        own[run.tenant] += run.cost_millislices
        runs[run.tenant] += 1
    total = with_those_below(policy, own)
    return tuple(
        TenantStatus(
            **vars(standing[name]),
            tenant=name,
            parent=policy[name].parent,
            quota=policy[name].quota,
            budget=policy[name].budget,
            depth=depth,
            nominal_millislices=nominal[name],
            in_use_millislices=total[name],
            own_in_use_millislices=own[name],
            running=runs[name],
            payer=payers[name],
            left_millislice_s=gathered.left_millislice_s.get(name),
            in_slurm=None if gathered.accounts is None else name in gathered.accounts,
        )
        for name, depth in in_tree_order(policy)
    )


def budget_status(
    tenant: str, budget: Budget, ledger_view: LedgerView, zone: str, used_millislice_s: int | None
) -> BudgetStatus:
    """The status of a tenant's budget of slices; ``zone`` is the time zone of its periods."""
    tenant_budget, now_s = ledger_view.left.get(tenant), ledger_view.now_s
    left = tenant_budget.left_millislice_s if tenant_budget is not None else None
    held = (run for run in ledger_view.reservations if run.payer == tenant)
    rate = sum(run.cost_millislices for run in held)
    return BudgetStatus(
        tenant,
        budget,
        left,
        _still_reserved(ledger_view.balances.get(tenant), left),
        used_millislice_s,
        rate,
        now_s + max(0, left) // rate if rate and left is not None else None,
        period_start_s(budget.period, now_s, zone) or None,
        next_start_s(budget.period, now_s, zone),
    )


def token_budget_status(
    tenant: str, budget: Budget, left: int | None, used: int | None, *, now_s: int, zone: str
) -> BudgetStatus:
    """The same of tokens: nothing of them is reserved, and no rate is known."""
    period_s = period_start_s(budget.period, now_s, zone) or None
    resets_s = next_start_s(budget.period, now_s, zone)
    return BudgetStatus(tenant, budget, left, 0, used, 0, None, period_s, resets_s)


def _still_reserved(balance: Balance | None, left_millislice_s: int | None) -> int:
    """Return what running jobs may still use of the budget, in millislice-seconds.

    That is what is reserved, less what they have used so far, which is no longer left; not below 0.
    """
    if balance is None or left_millislice_s is None:
        return 0
    used_so_far = unspent(balance) - left_millislice_s
    return max(0, balance.reserved - used_so_far)


def with_those_below(policy: Policy, own: Mapping[str, int]) -> Mapping[str, int]:
    """Sum ``own``, which each tenant has itself, over each tenant and all tenants below it."""
    total = {name: own.get(name, 0) for name in policy}
    for name in reversed(tenants.downward(policy)):
        if above := tenants.parent(policy, name):
            total[above] += total[name]
    return total


def in_tree_order(policy: Policy) -> Iterable[tuple[str, int]]:
    """Names and depths of all tenants, each followed by the tenants below it."""
    below = tenants.by_parent(policy)
    waiting = [(name, 0) for name in reversed(below.get("", ()))]
    while waiting:
        name, depth = waiting.pop()
        yield name, depth
        waiting += [(child, depth + 1) for child in reversed(below.get(name, ()))]


def used_since(rows: Iterable[StatementRow], payer: str, start_s: int) -> int:
    """Millislice-seconds that the runs of a payer have used since ``start_s``.

    ``rows`` are the runs that ended since or still run; a row's amounts cover the whole run.
    """
    return sum(
        max(0, row.used_millislice_s - row.run.cost_millislices * _seconds_before(row, start_s))
        for row in rows
        if row.run.payer == payer
    )


def used_ever(ledger_view: LedgerView, payer: str) -> int:
    """Millislice-seconds that the runs of a payer have used in all, as ``used_since`` 0 counts it.

    Its budget's balances say what is posted, so that no ended run needs to be read.
    """
    balance = ledger_view.balances.get(payer)
    posted = balance.granted - unspent(balance) if balance else 0
    held = (run for run in ledger_view.reservations if run.payer == payer)
    now_s = ledger_view.now_s
    return posted + sum(
        open_row(run, now_s).used_millislice_s - run.posted_millislice_s for run in held
    )


def _seconds_before(row: StatementRow, start_s: int) -> int:
    return max(0, start_s - row.run.key.start_s)
