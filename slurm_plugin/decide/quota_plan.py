"""What a change of quotas would do now: ceilings, loans, budgets, the limits in Slurm.

Whom it would hurt: ``quota_harms``, ``budget_harms``.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from cluster.units import MillisliceSeconds
from slurm_plugin.decide.books import Books
from slurm_plugin.decide.budgets import Left, amended, due_roll, unspent
from slurm_plugin.decide.ceilings import Ceiling
from slurm_plugin.decide.limits import Allowed
from slurm_plugin.decide.model import Balance, BudgetEntry
from slurm_plugin.decide.policy import Budget, Loan, Policy, TenantUpdate
from slurm_plugin.decide.quota_round import plan
from slurm_plugin.decide.standing import in_tree_order
from slurm_plugin.decide.statement import unposted_millislice_s
from slurm_plugin.decide.tenants import effective_nominal
from slurm_plugin.decide.world import World


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
        asked: borrowers that give back by replicas that go in good order.
        going: why replicas go, by job id: those that would stay without the change.
    """

    tenants: tuple[TenantPlan, ...]
    loans: tuple[LoanPlan, ...]
    before: Side
    after: Side
    allowed: Allowed
    asked: frozenset[str]
    going: Mapping[int, str] = field(hash=False)


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


def quota_plan(world: World, tenants: Policy, period_starts_s: Mapping[str, int]) -> QuotaPlan:
    """What the next round would come to if the ledger had these ``tenants``; nobody's jobs come,
    end or ask for more meanwhile.

    ``period_starts_s`` are the starts of the running periods of the tenants' budgets.
    """
    edited = replace(world, books=_edited(world.books, tenants, period_starts_s))
    now, then = plan(world), plan(edited)
    lent = replace(edited, books=replace(edited.books, loans=then.loans, recalls=()))
    before, after = _side(world), _side(lent)
    return QuotaPlan(
        tenants=tuple(_tenants(before, after)),
        loans=tuple(_changed_loans(before.loans, after.loans)),
        before=before,
        after=after,
        allowed=lent.allowed(),
        asked=frozenset(one.borrower for one in then.recalls),
        going={
            job_id: why
            for job_id, why in then.reclaim.victims.items()
            if job_id not in now.reclaim.victims
        },
    )


def _side(world: World) -> Side:
    return Side(world.policy, world.books.loans, world.ceilings, world.books.left)


def _edited(books: Books, tenants: Policy, period_starts_s: Mapping[str, int]) -> Books:
    """With those tenants, and their budgets begun."""
    changed = dict(_changed_budgets(books.tenants, tenants))
    begun = {name: max(books.rolls.get(name, 0), period_starts_s[name]) for name in changed}
    return replace(
        books,
        tenants=tenants,
        balances={**books.balances, **dict(_given(books, changed, period_starts_s))},
        rolls={**books.rolls, **begun},
    )


def _changed_budgets(before: Policy, after: Policy) -> Iterator[tuple[str, Budget]]:
    for name, tenant in after.items():
        was = before[name].budget if name in before else None
        if tenant.budget is not None and tenant.budget != was:
            yield name, tenant.budget


def _given(
    books: Books, changed: Mapping[str, Budget], period_starts_s: Mapping[str, int]
) -> Iterator[tuple[str, Balance]]:
    """Balances once changed budgets count in their running periods."""
    for name, budget in changed.items():
        balance = books.balances.get(name, _nothing(name))
        entry = _entry(books, budget, balance, period_starts_s[name])
        if entry is not None:
            available = balance.available_millislice_s + entry.amount_millislice_s
            yield name, replace(balance, available_millislice_s=MillisliceSeconds(available))


def _nothing(name: str) -> Balance:
    zero = MillisliceSeconds(0)
    return Balance(name, zero, zero, zero, zero, zero)


def _entry(
    books: Books, budget: Budget, balance: Balance, period_start_s: int
) -> BudgetEntry | None:
    """What the change books at once, or else the roll that follows it."""
    name, last_roll_s = balance.tenant, books.rolls.get(balance.tenant)
    if last_roll_s is not None and period_start_s <= last_roll_s:
        return amended(
            name,
            books.tenants[name].budget if name in books.tenants else None,
            budget,
            period_start_s=period_start_s,
            last_roll_s=last_roll_s,
            unspent_millislice_s=unspent(balance),
            author="",
            reason="",
        )
    posts = sum(
        unposted_millislice_s(held, period_start_s)
        for held in books.reservations
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
