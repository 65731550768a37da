"""What a change of quotas would do now: ceilings, loans, budgets, the limits in Slurm.

Whom it would hurt: ``quota_harms``, ``budget_harms``.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from cluster.jobs import JobView, NodeView
from cluster.mig_profiles import WholeBoard
from cluster.units import Millislices, MillisliceSeconds
from cluster.wire import ServiceView
from slurm_plugin.decide.budgets import Left, amended, due_roll, left, run_minutes, unspent
from slurm_plugin.decide.ceilings import Ceiling, by_use, ceilings
from slurm_plugin.decide.demand import capacity, demand, qos_use
from slurm_plugin.decide.limits import Allowed
from slurm_plugin.decide.model import Balance, BudgetEntry, Reservation
from slurm_plugin.decide.policy import Budget, Loan, Policy, Recall, TenantUpdate
from slurm_plugin.decide.reclaim.inputs import leaving, replicas
from slurm_plugin.decide.standing import in_tree_order
from slurm_plugin.decide.statement import unposted_millislice_s
from slurm_plugin.decide.tenants import effective_nominal
from slurm_plugin.decide.whole_jobs import lend_whole_jobs, waits


@dataclass(frozen=True)
class Now:
    """What there is.

    Attributes:
        policy: in force.
        services: with what their owners ordered.
        costs: millislices of an instance by GRES type; models, whole_boards: of what it is a part.
        held_lately: millislices that each tenant has held on average; empty if that does not count.
        balances, rolls, reservations: of budgets, as the ledger has them.
        grace_s, term_s, turn_s: [lending].
    """

    policy: Policy = field(hash=False)
    loans: tuple[Loan, ...]
    recalls: tuple[Recall, ...]
    jobs: tuple[JobView, ...] = field(hash=False)
    nodes: tuple[NodeView, ...] = field(hash=False)
    services: tuple[ServiceView, ...] = field(hash=False)
    partitions: frozenset[str]
    costs: Mapping[str, Millislices] = field(hash=False)
    whole_boards: Mapping[str, WholeBoard] = field(hash=False)
    models: Mapping[str, str] = field(hash=False)
    balances: Mapping[str, Balance] = field(hash=False)
    rolls: Mapping[str, int] = field(hash=False)
    reservations: tuple[Reservation, ...] = field(hash=False)
    held_lately: Mapping[str, int] = field(hash=False)
    now_s: int
    grace_s: int
    term_s: int
    turn_s: int

    @property
    def capacity_millislices(self) -> int | None:
        """None without any GPU: something is wrong then, and nothing is squeezed or lent."""
        return capacity(self.nodes, self.partitions, self.costs, self.whole_boards) or None


@dataclass(frozen=True)
class Side:
    """How things stand, before or after.

    Attributes:
        loans: once those that are due have changed; nothing of them is on its way back any more.
        left: of each budget that has begun; one that is changed has begun afterwards.
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
    """One tenant before and after; ``before`` is None of a new one, ``after`` of one that is
    removed. ``depth`` in the tree.
    """

    tenant: str
    depth: int
    before: TenantSide | None
    after: TenantSide | None


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
        tenants: each followed by those below it, also those of whom nothing changes; in the end
            those who are removed.
        allowed: what Slurm would be brought to.
    """

    tenants: tuple[TenantPlan, ...]
    loans: tuple[LoanPlan, ...]
    before: Side
    after: Side
    allowed: Allowed


class HarmKind(StrEnum):
    """What becomes of somebody."""

    REMOVED = "removed"
    """It is no tenant any more and holds something."""
    OVERCOMMITTED = "overcommitted"
    """The quotas at the top are more than the cluster has: every ceiling is squeezed."""
    OWN_PART = "own-part"
    """It holds more in its own QOS than its own part: nothing new starts there for a while."""
    CEILING = "ceiling"
    """It holds more in all than its ceiling: likewise."""
    TYPE = "type"
    """It holds more instances of a type than it may: likewise."""
    CALLED_BACK = "called-back"
    """It holds more on loan than it would be lent."""
    REPLICA = "replica"
    """A borrowed replica is drained; others of its service take over what they can."""
    NEVER_STARTS = "never-starts"
    """A waiting job would have more than its tenant can ever have."""
    MIN_REPLICAS = "min-replicas"
    """A service's least replicas would not all fit into its tenant's own part."""
    IN_DEBT = "in-debt"
    """A budget would have nothing left to start runs on."""
    USED_UP = "used-up"
    """What runs now would use up a budget before it begins anew, or within a year."""


@dataclass(frozen=True)
class Harm:
    """One thing that somebody would not like.

    Attributes:
        tenant: "" of all together.
        about: the job, replica or service; "" of the tenant itself.
        amount_millislices: too many; 0 where it is no matter of slices.
        in_s: in how many seconds; 0 at once.
    """

    kind: HarmKind
    tenant: str
    about: str
    amount_millislices: int
    words: str
    in_s: int = 0


def in_order(policy: Policy, updates: Iterable[TenantUpdate]) -> tuple[TenantUpdate, ...]:
    """As they can be made one after the other, if they can: who comes or moves after those above it
    then, who is removed in the end and after those below it now.
    """
    updates = tuple(updates)
    now = {name: tenant.parent for name, tenant in policy.items()}
    then = now | {one.tenant: one.parent for one in updates if one.parent is not None}

    def rank(update: TenantUpdate) -> tuple[bool, int]:
        if update.removed:
            return True, -_depth(update.tenant, now)
        return False, _depth(update.tenant, then)

    return tuple(sorted(updates, key=rank))


def _depth(name: str, parents: Mapping[str, str]) -> int:
    """Also where somebody would be above itself, which is refused later."""
    above = {name}
    while (name := parents.get(name, "")) not in {"", *above}:
        above.add(name)
    return len(above)


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
    changed = dict(_changed_budgets(now, after))
    balances = {**now.balances, **dict(_given(now, changed, period_starts_s))}
    begun = {name: max(now.rolls.get(name, 0), period_starts_s[name]) for name in changed}
    loans = _lent(now, after)
    then = Side(
        after,
        loans,
        ceilings(after, loans, whole),
        left(after, balances, {**now.rolls, **begun}, now.reservations, now.now_s),
    )
    return QuotaPlan(
        tenants=tuple(_tenants(first, then)),
        loans=tuple(_changed_loans(now.loans, loans)),
        before=first,
        after=then,
        allowed=Allowed(
            policy=after,
            ceilings=by_use(then.ceilings, qos_use(now.jobs, now.partitions, now.costs)),
            run_minutes=run_minutes(after, then.left, now.reservations, now.now_s),
            costs=now.costs,
            models=now.models,
            term_s=now.term_s,
        ),
    )


def _lent(now: Now, after: Policy) -> tuple[Loan, ...]:
    """The loans that the next round would make."""
    wanted = demand(after, now.jobs, now.partitions, now.costs)
    waiting = waits(
        after,
        now.jobs,
        now.nodes,
        now.partitions,
        now.costs,
        replicas=replicas(now.services),
        leaving=leaving(now.services, now.grace_s),
        now_s=now.now_s,
        turn_s=now.turn_s,
    )
    capacity, lately = now.capacity_millislices, now.held_lately
    lent = lend_whole_jobs(after, wanted, waiting, now.loans, capacity=capacity, lately=lately)
    return lent.loans


def _changed_budgets(now: Now, after: Policy) -> Iterator[tuple[str, Budget]]:
    for name, tenant in after.items():
        before = now.policy[name].budget if name in now.policy else None
        if tenant.budget is not None and tenant.budget != before:
            yield name, tenant.budget


def _given(
    now: Now, changed: Mapping[str, Budget], period_starts_s: Mapping[str, int]
) -> Iterator[tuple[str, Balance]]:
    """Balances once changed budgets count in their running periods."""
    for name, budget in changed.items():
        balance = now.balances.get(name, _nothing(name))
        entry = _entry(now, budget, balance, period_starts_s[name])
        if entry is not None:
            available = balance.available_millislice_s + entry.amount_millislice_s
            yield name, replace(balance, available_millislice_s=MillisliceSeconds(available))


def _nothing(name: str) -> Balance:
    zero = MillisliceSeconds(0)
    return Balance(name, zero, zero, zero, zero, zero)


def _entry(now: Now, budget: Budget, balance: Balance, period_start_s: int) -> BudgetEntry | None:
    """What the change books at once, or else the roll that follows it."""
    name, last_roll_s = balance.tenant, now.rolls.get(balance.tenant)
    if last_roll_s is not None and period_start_s <= last_roll_s:
        return amended(
            name,
            now.policy[name].budget if name in now.policy else None,
            budget,
            period_start_s=period_start_s,
            last_roll_s=last_roll_s,
            unspent_millislice_s=unspent(balance),
            author="",
            reason="",
        )
    posts = sum(
        unposted_millislice_s(held, period_start_s)
        for held in now.reservations
        if held.payer == name
    )
    return due_roll(
        name,
        budget,
        period_start_s=period_start_s,
        last_roll_s=last_roll_s,
        unspent_millislice_s=unspent(balance) - posts,
        used_since_millislice_s=0,
        reason="",
    )


def _tenants(before: Side, after: Side) -> Iterator[TenantPlan]:
    was, now = effective_nominal(before.policy), effective_nominal(after.policy)

    def side(of: Side, nominal: Mapping[str, int], name: str) -> TenantSide | None:
        return TenantSide(nominal[name], of.ceilings[name]) if name in nominal else None

    gone = [(name, depth) for name, depth in in_tree_order(before.policy) if name not in now]
    for name, depth in (*in_tree_order(after.policy), *gone):
        yield TenantPlan(name, depth, side(before, was, name), side(after, now, name))


def _changed_loans(before: Iterable[Loan], after: Iterable[Loan]) -> Iterator[LoanPlan]:
    was, now = (
        {(one.lender, one.borrower): int(one.amount_millislices) for one in loans}
        for loans in (before, after)
    )
    for lender, borrower in sorted(was.keys() | now.keys()):
        old, new = was.get((lender, borrower), 0), now.get((lender, borrower), 0)
        if old != new:
            yield LoanPlan(lender, borrower, old, new)
