"""Computes what a change of quotas would do now to tenants' limits, loans, budgets and Slurm's
limits.

``quota_impact`` and ``budget_impact`` find the impact that it would have.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from slicewise.cluster.language.units import MillisliceSeconds
from slicewise.slurm_plugin.rules.accounting.budgets import (
    BudgetLeft,
    amended,
    due_rollover,
    unspent,
)
from slicewise.slurm_plugin.rules.accounting.ledger_view import LedgerView
from slicewise.slurm_plugin.rules.accounting.overview import in_tree_order
from slicewise.slurm_plugin.rules.accounting.statement import unposted_millislice_s
from slicewise.slurm_plugin.rules.accounting.types import Balance, BudgetEntry
from slicewise.slurm_plugin.rules.explain.change_report import LoanPlan, TenantPlan, TenantSide
from slicewise.slurm_plugin.rules.limits.desired import Allowed
from slicewise.slurm_plugin.rules.quota.standings import Standing
from slicewise.slurm_plugin.rules.quota.tenants import effective_nominal
from slicewise.slurm_plugin.rules.quota.types import Budget, Loan, Policy, TenantUpdate
from slicewise.slurm_plugin.rules.round.round import plan
from slicewise.slurm_plugin.rules.round.world import World, world


@dataclass(frozen=True)
class Side:
    """The state before or after the change.

    Attributes:
        loans: the present loans before; those of the next round after, when no recall is under way
            any more.
        left: what each budget that has begun has left; a changed budget has begun afterwards.
    """

    policy: Policy = field(hash=False)
    loans: tuple[Loan, ...]
    standings: Mapping[str, Standing] = field(hash=False)
    left: Mapping[str, BudgetLeft] = field(hash=False)


@dataclass(frozen=True)
class QuotaPlan:
    """The effect of a change.

    Attributes:
        tenants: all tenants, changed or not, each followed by the tenants below it; removed tenants
            come last.
        loans: loans that would change.
        allowed: the limits that Slurm would get.
        asked: borrowers that give back quota by draining replicas.
        going: replicas that would be drained because of the change, by job id, with the reason.
    """

    tenants: tuple[TenantPlan, ...]
    loans: tuple[LoanPlan, ...]
    before: Side
    after: Side
    allowed: Allowed
    asked: frozenset[str]
    going: Mapping[int, str] = field(hash=False)


def in_order(policy: Policy, updates: Iterable[TenantUpdate]) -> tuple[TenantUpdate, ...]:
    """The updates in an order in which they can be made one after the other, if there is one.

    New and moved tenants come after the tenants above them in the new tree. Removals come last,
    after those of tenants below in the present tree.
    """
    updates = tuple(updates)
    now = {name: tenant.parent for name, tenant in policy.items()}
    then = now | {update.tenant: update.parent for update in updates if update.parent is not None}

    def rank(update: TenantUpdate) -> tuple[bool, int]:
        if update.removed:
            return True, -_depth(update.tenant, now)
        return False, _depth(update.tenant, then)

    return tuple(sorted(updates, key=rank))


def _depth(name: str, parents: Mapping[str, str]) -> int:
    """Number of tenants from this one to the top. Ends on a cycle, too, which is refused later."""
    above = {name}
    while (name := parents.get(name, "")) not in {"", *above}:
        above.add(name)
    return len(above)


def quota_plan(inputs: World, tenants: Policy, period_starts_s: Mapping[str, int]) -> QuotaPlan:
    """Compute what the next round would decide if the ledger had these ``tenants``.

    It assumes that no jobs come, end or ask for more meanwhile. ``period_starts_s`` are the starts
    of the running periods of the tenants' budgets.
    """
    ledger_view = _edited(inputs.ledger_view, tenants, period_starts_s)
    edited = world(ledger_view, inputs.slurm_view, inputs.rules)
    now, then = plan(inputs), plan(edited)
    lent = edited.after(then.loans, ())
    before, after = _side(inputs), _side(lent)
    return QuotaPlan(
        tenants=tuple(_tenants(before, after)),
        loans=tuple(_changed_loans(before.loans, after.loans)),
        before=before,
        after=after,
        allowed=lent.allowed(),
        asked=frozenset(recall.borrower for recall in then.recalls),
        going={
            job_id: why
            for (job_id, start_s), why in then.reclaim.victims.items()
            if (job_id, start_s) not in now.reclaim.victims
        },
    )


def _side(inputs: World) -> Side:
    return Side(inputs.policy, inputs.ledger_view.loans, inputs.standings, inputs.ledger_view.left)


def _edited(
    ledger_view: LedgerView, tenants: Policy, period_starts_s: Mapping[str, int]
) -> LedgerView:
    """The ledger's view with those tenants, and with their changed budgets begun."""
    changed = dict(_changed_budgets(ledger_view.tenants, tenants))
    begun = {
        name: max(ledger_view.rollovers.get(name, 0), period_starts_s[name]) for name in changed
    }
    return replace(
        ledger_view,
        tenants=tenants,
        balances={**ledger_view.balances, **dict(_given(ledger_view, changed, period_starts_s))},
        rollovers={**ledger_view.rollovers, **begun},
    )


def _changed_budgets(before: Policy, after: Policy) -> Iterator[tuple[str, Budget]]:
    for name, tenant in after.items():
        was = before[name].budget if name in before else None
        if tenant.budget is not None and tenant.budget != was:
            yield name, tenant.budget


def _given(
    ledger_view: LedgerView, changed: Mapping[str, Budget], period_starts_s: Mapping[str, int]
) -> Iterator[tuple[str, Balance]]:
    """Balances after changed budgets apply to their running periods."""
    for name, budget in changed.items():
        balance = ledger_view.balances.get(name, _nothing(name))
        entry = _entry(ledger_view, budget, balance, period_starts_s[name])
        if entry is not None:
            available = balance.available + entry.amount
            yield name, replace(balance, available=available)


def _nothing(name: str) -> Balance:
    zero = MillisliceSeconds(0)
    return Balance(name, zero, zero, zero, zero, zero)


def _entry(
    ledger_view: LedgerView, budget: Budget, balance: Balance, period_start_s: int
) -> BudgetEntry | None:
    """The entry that the change books immediately, or else the rollover that follows it."""
    name, last_rollover_s = balance.tenant, ledger_view.rollovers.get(balance.tenant)
    if last_rollover_s is not None and period_start_s <= last_rollover_s:
        return amended(
            name,
            ledger_view.tenants[name].budget if name in ledger_view.tenants else None,
            budget,
            period_start_s=period_start_s,
            last_rollover_s=last_rollover_s,
            unspent_amount=unspent(balance),
            author="",
            reason="",
        )
    posts = sum(
        unposted_millislice_s(held, period_start_s)
        for held in ledger_view.reservations
        if held.payer == name
    )
    return due_rollover(
        name,
        budget,
        period_start_s=period_start_s,
        last_rollover_s=last_rollover_s,
        unspent_amount=unspent(balance) - posts,
        used_since_amount=0,
        reason="",
    )


def _tenants(before: Side, after: Side) -> Iterator[TenantPlan]:
    was, now = effective_nominal(before.policy), effective_nominal(after.policy)

    def side(of: Side, nominal: Mapping[str, int], name: str) -> TenantSide | None:
        if name not in nominal:
            return None
        return TenantSide(**vars(of.standings[name]), nominal_millislices=nominal[name])

    gone = [(name, depth) for name, depth in in_tree_order(before.policy) if name not in now]
    for name, depth in (*in_tree_order(after.policy), *gone):
        yield TenantPlan(name, depth, side(before, was, name), side(after, now, name))


def _changed_loans(before: Iterable[Loan], after: Iterable[Loan]) -> Iterator[LoanPlan]:
    was, now = (
        {(loan.lender, loan.borrower): int(loan.amount_millislices) for loan in loans}
        for loans in (before, after)
    )
    for lender, borrower in sorted(was.keys() | now.keys()):
        old, new = was.get((lender, borrower), 0), now.get((lender, borrower), 0)
        if old != new:
            yield LoanPlan(lender, borrower, old, new)
