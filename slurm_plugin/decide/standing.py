"""Where each tenant stands: its quota, loans, use and budget side by side."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from slurm_plugin.decide import tenants
from slurm_plugin.decide.ceilings import Ceiling, ceilings
from slurm_plugin.decide.model import Reservation, StatementRow
from slurm_plugin.decide.policy import Loan, Policy, QuotaChange, Recall, Tenant


@dataclass(frozen=True)
class Standing:
    """A tenant as it is now.

    Attributes:
        depth: how many tenants are above it.
        nominal_millislices: in effect: of a group without a nominal of its own, its parts' sum.
        in_use_millislices: what running jobs hold, those of the tenants below it included.
        own_in_use_millislices: what its own running jobs hold.
        running: how many jobs of its own run.
        payer: whose budget its runs use up, itself if nobody has one.
        left_millislice_s: what its budget has left now; None without one that has begun.
        in_slurm: whether Slurm has its account; None if Slurm did not answer.
    """

    tenant: Tenant
    depth: int
    nominal_millislices: int
    ceiling: Ceiling
    in_use_millislices: int
    own_in_use_millislices: int
    running: int
    payer: str
    left_millislice_s: int | None
    in_slurm: bool | None


@dataclass(frozen=True)
class Details:
    """A tenant with everything that belongs to it.

    Attributes:
        children: names of the tenants right below it.
        loans: those that it gave or took itself.
        resets_s: when its budget begins anew, in Unix seconds; None if never.
        last: the last change.
        in_force: whether Slurm's limits contain that.
    """

    standing: Standing
    children: tuple[str, ...]
    loans: tuple[Loan, ...]
    resets_s: int | None
    last: QuotaChange
    in_force: bool


@dataclass(frozen=True)
class Gathered:
    """What was read for it.

    Attributes:
        left_millislice_s: of each tenant with a budget that has begun.
        capacity_millislices, accounts: as Slurm has them; None if it did not answer.
    """

    policy: Policy = field(hash=False)
    loans: tuple[Loan, ...]
    recalls: tuple[Recall, ...]
    reservations: tuple[Reservation, ...]
    left_millislice_s: Mapping[str, int] = field(hash=False)
    capacity_millislices: int | None
    accounts: frozenset[str] | None


def standings(gathered: Gathered) -> tuple[Standing, ...]:
    """Every tenant, each followed by those below it."""
    policy = gathered.policy
    nominal = tenants.effective_nominal(policy)
    payers = tenants.payers(policy)
    ceiling = ceilings(policy, gathered.loans, gathered.capacity_millislices, gathered.recalls)
    own, runs = Counter[str](), Counter[str]()
    for run in gathered.reservations:
        own[run.tenant] += run.cost_millislices
        runs[run.tenant] += 1
    total = with_those_below(policy, own)
    return tuple(
        Standing(
            tenant=policy[name],
            depth=depth,
            nominal_millislices=nominal[name],
            ceiling=ceiling[name],
            in_use_millislices=total[name],
            own_in_use_millislices=own[name],
            running=runs[name],
            payer=payers[name],
            left_millislice_s=gathered.left_millislice_s.get(name),
            in_slurm=None if gathered.accounts is None else name in gathered.accounts,
        )
        for name, depth in in_tree_order(policy)
    )


def with_those_below(policy: Policy, own: Mapping[str, int]) -> Mapping[str, int]:
    """What each tenant has together with the tenants below it, of what each has itself."""
    total = {name: own.get(name, 0) for name in policy}
    for name in reversed(tenants.downward(policy)):
        if above := tenants.parent(policy, name):
            total[above] += total[name]
    return total


def in_tree_order(policy: Policy) -> Iterable[tuple[str, int]]:
    """Names and depths, each followed by those below it."""
    below = tenants.by_parent(policy)
    waiting = [(name, 0) for name in reversed(below.get("", ()))]
    while waiting:
        name, depth = waiting.pop()
        yield name, depth
        waiting += [(child, depth + 1) for child in reversed(below.get(name, ()))]


def overcommitted_millislices(policy: Policy, capacity_millislices: int) -> int:
    """How far the nominals at the top together are above what the cluster has; 0 if they fit."""
    nominal = tenants.effective_nominal(policy)
    top = sum(nominal[name] for name in tenants.children(policy, ""))
    return max(0, top - capacity_millislices)


def used_since(rows: Iterable[StatementRow], payer: str, start_s: int) -> int:
    """Millislice-seconds that the runs of a payer have used since then.

    ``rows`` are those that ended since or still run; each counts whole in a statement.
    """
    return sum(
        max(0, row.used_millislice_s - row.run.cost_millislices * _seconds_before(row, start_s))
        for row in rows
        if row.run.payer == payer
    )


def _seconds_before(row: StatementRow, start_s: int) -> int:
    return max(0, start_s - row.run.key.start_s)
