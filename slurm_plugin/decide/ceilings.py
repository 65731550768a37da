"""What each tenant may hold now: its nominal, less what it lends, with what it borrows."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cluster.units import Millislices
from slurm_plugin.decide.lending import called_back, crossing, within_limits
from slurm_plugin.decide.policy import Loan, Policy, Recall
from slurm_plugin.decide.qos_names import borrowed_qos, qos_name
from slurm_plugin.decide.tenants import by_parent, downward, effective_nominal, own_part


@dataclass(frozen=True)
class Ceiling:
    """What a tenant and those below it may hold now.

    Attributes:
        ceiling_millislices: in all QOS together.
        guarantee_millislices: its own part, as the rest is its children's.
        lent_millislices: on loans that leave its subtree, and what of them is not back yet.
        borrowed_millislices: on loans that enter it.
        own_limit_millislices: in its own QOS: its own part, less what it lends of that itself.
        borrowed_limit_millislices: in its borrowed QOS: on loans to itself; ``by_use`` moves some
            of the own part there.
    """

    ceiling_millislices: Millislices
    guarantee_millislices: Millislices
    lent_millislices: Millislices
    borrowed_millislices: Millislices
    own_limit_millislices: Millislices = Millislices(0)
    borrowed_limit_millislices: Millislices = Millislices(0)


@dataclass(frozen=True)
class QosUse:
    """What jobs of managed partitions do with limits, by QOS.

    Attributes:
        held: millislices.
        waiting: millislices for which tenants' own QOS are kept.
        tasks: millislices of each that waits, as Slurm would start them; the first ones.
        doubtful: QOS with a job of which nobody can read what it holds.
    """

    held: Mapping[str, int] = field(default_factory=dict, hash=False)
    waiting: Mapping[str, int] = field(default_factory=dict, hash=False)
    tasks: Mapping[str, Sequence[int]] = field(default_factory=dict, hash=False)
    doubtful: frozenset[str] = frozenset()


def by_use(found: Mapping[str, Ceiling], use: QosUse) -> Mapping[str, Ceiling]:
    """The ceilings with the limits of both QOS as jobs need them; together they are the same.

    A loan is what a tenant's jobs need beyond its own part: one that costs 3.5 slices, of a tenant
    that has 2 at rest, is lent 1.5. So the borrowed QOS has of the own part what its running jobs
    hold of what the own QOS does not, and what those lack that wait and could each start, of what
    no job of the own QOS holds or waits for.
    """
    return {name: _by_use(name, ceiling, use) for name, ceiling in found.items()}


def _by_use(tenant: str, ceiling: Ceiling, use: QosUse) -> Ceiling:
    own, borrowed = ceiling.own_limit_millislices, ceiling.borrowed_limit_millislices
    its_own, on_loan = qos_name(tenant), borrowed_qos(tenant)
    if use.doubtful & {its_own, on_loan}:
        return ceiling
    left, running = max(0, own - use.held.get(its_own, 0)), use.held.get(on_loan, 0)
    moved = min(left, max(0, running - borrowed))
    spare = max(0, left - moved - use.waiting.get(its_own, 0))
    room = max(0, borrowed + moved - running)
    # For which of them GPUs are free Slurm knows.
    wanted = sum(cost for cost in use.tasks.get(on_loan, ()) if cost <= room + spare)
    moved += min(spare, max(0, wanted - room))
    return replace(
        ceiling,
        own_limit_millislices=Millislices(own - moved),
        borrowed_limit_millislices=Millislices(borrowed + moved),
    )


def less_elsewhere(
    found: Mapping[str, Ceiling], elsewhere: Mapping[str, int]
) -> Mapping[str, Ceiling]:
    """The ceilings with the limits of both QOS less what their tenants' jobs hold ``elsewhere``, in
    QOS in which they ran before: first of what was lent for it.
    """
    return {name: _less(ceiling, elsewhere.get(name, 0)) for name, ceiling in found.items()}


def _less(ceiling: Ceiling, held: int) -> Ceiling:
    own, borrowed = ceiling.own_limit_millislices, ceiling.borrowed_limit_millislices
    return replace(
        ceiling,
        own_limit_millislices=Millislices(own - min(own, max(0, held - borrowed))),
        borrowed_limit_millislices=Millislices(max(0, borrowed - held)),
    )


def ceilings(
    policy: Policy, loans: Iterable[Loan], capacity: int | None, recalls: Iterable[Recall] = ()
) -> Mapping[str, Ceiling]:
    """The ceiling of every tenant.

    It is the effective nominal, less the loans that leave the subtree, with those that enter it.
    What is recalled is in no ceiling: the lender does not have it yet, the borrower not any more.
    The limits of the two QOS of all tenants in a subtree are no more than its ceiling together.
    If the ceilings at the top are more than the cluster's capacity together, all are squeezed in
    proportion, and so on down: what a tenant has for itself and its children have together is
    never more than it has. A capacity of None is not known and squeezes nothing. Loans that the
    policy does not allow count only as far as it does; what it cuts off is as good as recalled.
    """
    nominal, own, loans = effective_nominal(policy), own_part(policy), tuple(loans)
    allowed = within_limits(policy, loans)
    recalls = (*recalls, *called_back(loans, allowed, 0))
    on_loan, borrowed = crossing(policy, allowed)
    in_transit = tuple(_in_transit(policy, own, allowed, recalls))
    on_its_way, _ = crossing(policy, in_transit)
    lent = {name: on_loan[name] + on_its_way[name] for name in policy}
    raw = {name: nominal[name] - lent[name] + borrowed[name] for name in policy}
    gone, come = Counter[str](), Counter[str]()
    for loan in (*allowed, *in_transit):
        gone[loan.lender] += loan.amount_millislices
    for loan in allowed:
        come[loan.borrower] += loan.amount_millislices
    asked = {name: (own[name] - gone[name], come[name]) for name in policy}
    ceiling, limits = _squeezed(policy, raw, asked, capacity)
    return {
        name: Ceiling(
            Millislices(ceiling[name]),
            Millislices(min(own[name], ceiling[name])),
            Millislices(lent[name]),
            Millislices(borrowed[name]),
            *map(Millislices, limits[name]),
        )
        for name in policy
    }


def _in_transit(
    policy: Policy, own: Mapping[str, int], loans: Iterable[Loan], recalls: Iterable[Recall]
) -> Iterator[Loan]:
    """Recalls as far as their lenders have so much beside their loans."""
    left = Counter(own)
    for loan in loans:
        left[loan.lender] -= loan.amount_millislices
    for one in sorted(recalls):
        if one.lender in policy and one.borrower in policy:
            amount = max(0, min(one.amount_millislices, left[one.lender]))
            left[one.lender] -= amount
            yield Loan(one.lender, one.borrower, Millislices(amount))


_Limits = Mapping[str, tuple[int, int]]
"""Of its own QOS and its borrowed one, by tenant."""


def _squeezed(
    policy: Policy, raw: Mapping[str, int], limits: _Limits, capacity: int | None
) -> tuple[Mapping[str, int], _Limits]:
    below = by_parent(policy)
    ceiling: dict[str, int] = {}
    squeezed: dict[str, tuple[int, int]] = {}
    for name in ("", *downward(policy)):
        children, own = below.get(name, ()), limits.get(name, (0, 0))
        asked = sum(own) + sum(raw[child] for child in children)
        room = ceiling[name] if name else asked if capacity is None else capacity
        for child in children:
            ceiling[child] = _share(raw[child], asked, room)
        if name:
            squeezed[name] = _share(own[0], asked, room), _share(own[1], asked, room)
    return ceiling, squeezed


def _share(amount: int, asked: int, room: int) -> int:
    return amount if asked <= room else amount * room // asked
