"""What a change of quotas would do now: ceilings, loans, budgets, the limits in Slurm.

Whom it would hurt: ``quota_harms``.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from cluster.jobs import JobView, NodeView
from cluster.units import Millislices, MillisliceSeconds
from cluster.wire import ServiceView
from slurm_plugin.decide.budgets import Left, amended, left, run_minutes, unspent
from slurm_plugin.decide.ceilings import Ceiling, ceilings
from slurm_plugin.decide.demand import capacity, demand
from slurm_plugin.decide.lending import lend
from slurm_plugin.decide.limits import Allowed
from slurm_plugin.decide.model import Balance, Reservation
from slurm_plugin.decide.policy import Loan, Policy, Recall
from slurm_plugin.decide.standing import in_tree_order
from slurm_plugin.decide.tenants import effective_nominal


@dataclass(frozen=True)
class Now:
    """What there is.

    Attributes:
        policy: in force.
        services: with what their owners ordered.
        costs: millislices of an instance by GRES type; models: its GPU model.
        held_lately: millislices that each tenant has held on average; empty if that does not count.
        balances, rolls, reservations: of budgets, as the ledger has them.
        grace_s, term_s: [lending].
    """

    policy: Policy = field(hash=False)
    loans: tuple[Loan, ...]
    recalls: tuple[Recall, ...]
    jobs: tuple[JobView, ...] = field(hash=False)
    nodes: tuple[NodeView, ...] = field(hash=False)
    services: tuple[ServiceView, ...] = field(hash=False)
    partitions: frozenset[str]
    costs: Mapping[str, Millislices] = field(hash=False)
    models: Mapping[str, str] = field(hash=False)
    balances: Mapping[str, Balance] = field(hash=False)
    rolls: Mapping[str, int] = field(hash=False)
    reservations: tuple[Reservation, ...] = field(hash=False)
    held_lately: Mapping[str, int] = field(hash=False)
    now_s: int
    grace_s: int
    term_s: int

    @property
    def capacity_millislices(self) -> int | None:
        """None without any GPU: something is wrong then, and nothing is squeezed or lent."""
        return capacity(self.nodes, self.partitions, self.costs) or None


@dataclass(frozen=True)
class Side:
    """How things stand, before or after.

    Attributes:
        loans: once those that are due have changed; nothing of them is on its way back any more.
        left: of each budget that has begun.
    """

    policy: Policy = field(hash=False)
    loans: tuple[Loan, ...]
    ceilings: Mapping[str, Ceiling] = field(hash=False)
    left: Mapping[str, Left] = field(hash=False)


@dataclass(frozen=True)
class TenantSide:
    """One tenant, on one side.

    Attributes:
        nominal_millislices: effective, of the tenant and those below it.
    """

    nominal_millislices: int
    ceiling: Ceiling


@dataclass(frozen=True)
class TenantPlan:
    """One tenant before and after; ``before`` is None of a new one. ``depth`` in the tree."""

    tenant: str
    depth: int
    before: TenantSide | None
    after: TenantSide


@dataclass(frozen=True)
class LoanPlan:
    """A loan that would change; 0 is none."""

    lender: str
    borrower: str
    before_millislices: int
    after_millislices: int


@dataclass(frozen=True)
class QuotaPlan:
    """What would be otherwise.

    Attributes:
        tenants: each followed by those below it, also those of whom nothing changes.
        allowed: what Slurm would be brought to.
    """

    tenants: tuple[TenantPlan, ...]
    loans: tuple[LoanPlan, ...]
    before: Side
    after: Side
    allowed: Allowed


def quota_plan(now: Now, after: Policy, period_starts_s: Mapping[str, int]) -> QuotaPlan:
    """What the policy ``after`` would lead to; nobody's jobs come, end or ask for more meanwhile.

    ``period_starts_s`` are those of the running periods of its budgets.
    """
    whole = now.capacity_millislices
    first = Side(
        now.policy,
        now.loans,
        ceilings(now.policy, now.loans, whole, now.recalls),
        left(now.policy, now.balances, now.rolls, now.reservations, now.now_s),
    )
    balances = _amended(now, after, period_starts_s)
    loans = _lent(now, after)
    then = Side(
        after,
        loans,
        ceilings(after, loans, whole),
        left(after, balances, now.rolls, now.reservations, now.now_s),
    )
    return QuotaPlan(
        tenants=tuple(_tenants(first, then)),
        loans=tuple(_changed_loans(now.loans, loans)),
        before=first,
        after=then,
        allowed=Allowed(
            policy=after,
            ceilings=then.ceilings,
            run_minutes=run_minutes(after, then.left, now.reservations, now.now_s),
            costs=now.costs,
            models=now.models,
            term_s=now.term_s,
        ),
    )


def _lent(now: Now, after: Policy) -> tuple[Loan, ...]:
    """The loans that the next round would make."""
    wanted = demand(after, now.jobs, now.partitions, now.costs)
    return lend(after, wanted, now.loans, now.capacity_millislices, now.held_lately)


def _amended(now: Now, after: Policy, period_starts_s: Mapping[str, int]) -> Mapping[str, Balance]:
    """Balances once changed budgets count in their running periods."""
    return {**now.balances, **dict(_given(now, after, period_starts_s))}


def _given(
    now: Now, after: Policy, period_starts_s: Mapping[str, int]
) -> Iterator[tuple[str, Balance]]:
    for name, tenant in after.items():
        before = now.policy[name].budget if name in now.policy else None
        balance = now.balances.get(name)
        if tenant.budget is None or tenant.budget == before or balance is None:
            continue
        entry = amended(
            name,
            before,
            tenant.budget,
            period_start_s=period_starts_s[name],
            last_roll_s=now.rolls.get(name),
            unspent_millislice_s=unspent(balance),
            author="",
            reason="",
        )
        if entry is not None:
            available = balance.available_millislice_s + entry.amount_millislice_s
            yield name, replace(balance, available_millislice_s=MillisliceSeconds(available))


def _tenants(before: Side, after: Side) -> Iterator[TenantPlan]:
    was, now = effective_nominal(before.policy), effective_nominal(after.policy)
    for name, depth in in_tree_order(after.policy):
        old = TenantSide(was[name], before.ceilings[name]) if name in was else None
        yield TenantPlan(name, depth, old, TenantSide(now[name], after.ceilings[name]))


def _changed_loans(before: Iterable[Loan], after: Iterable[Loan]) -> Iterator[LoanPlan]:
    was, now = (
        {(one.lender, one.borrower): int(one.amount_millislices) for one in loans}
        for loans in (before, after)
    )
    for lender, borrower in sorted(was.keys() | now.keys()):
        old, new = was.get((lender, borrower), 0), now.get((lender, borrower), 0)
        if old != new:
            yield LoanPlan(lender, borrower, old, new)
