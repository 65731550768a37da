"""Computes each tenant's limit now: its nominal, less what it lends, plus what it borrows."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.common.qos_names import borrowed_qos, qos_name
from slicewise.slurm_plugin.rules.quota.lending import called_back, crossing, within_limits
from slicewise.slurm_plugin.rules.quota.tenants import (
    effective_nominal,
    guaranteed_quota,
    guaranteed_types,
)
from slicewise.slurm_plugin.rules.quota.types import Loan, Policy, Recall


@dataclass(frozen=True)
class Standing:
    """What a tenant and the tenants below it may hold now.

    Attributes:
        limit_millislices: what the subtree may hold in all QOS together.
        guaranteed_millislices: the tenant's guaranteed quota: its nominal less what its children
            are due.
        lent_millislices: loans that leave the subtree, and recalled loans that are not back yet.
        borrowed_millislices: loans that enter the subtree.
        own_qos_limit_millislices: the limit of the tenant's own QOS: its guaranteed quota, less
            what it lends of that part itself.
        borrowed_qos_limit_millislices: the limit of the tenant's borrowed QOS: the loans to the
            tenant itself. ``by_use`` moves some of the guaranteed quota there.
    """

    limit_millislices: Millislices
    guaranteed_millislices: Millislices
    lent_millislices: Millislices
    borrowed_millislices: Millislices
    own_qos_limit_millislices: Millislices = Millislices(0)
    borrowed_qos_limit_millislices: Millislices = Millislices(0)


@dataclass(frozen=True)
class QosUse:
    """What jobs of managed partitions hold and wait for, by QOS.

    Attributes:
        held: millislices of jobs that Slurm counts in the limits.
        waiting: millislices that a tenant's own QOS keeps for its waiting jobs.
        tasks: millislices of each of the first waiting jobs or tasks, in Slurm's order.
        doubtful: QOS that have a job with an unreadable record.
        own_first: tenants' own QOS whose waiting jobs come before what runs on loan: guarantees of
            types.
    """

    held: Mapping[str, int] = field(default_factory=dict, hash=False)
    waiting: Mapping[str, int] = field(default_factory=dict, hash=False)
    tasks: Mapping[str, Sequence[int]] = field(default_factory=dict, hash=False)
    doubtful: frozenset[str] = frozenset()
    own_first: frozenset[str] = frozenset()


def limits_by_qos(standings: Mapping[str, Standing]) -> Mapping[str, int]:
    """Millislices that jobs may hold in each tenant's two QOS."""
    own = {
        qos_name(name): standing.own_qos_limit_millislices for name, standing in standings.items()
    }
    on_loan = {
        borrowed_qos(name): standing.borrowed_qos_limit_millislices
        for name, standing in standings.items()
    }
    return {**own, **on_loan}


def by_use(standings: Mapping[str, Standing], use: QosUse) -> Mapping[str, Standing]:
    """Divide each limit between the tenant's two QOS as its jobs need it, with the same sum.

    A loan is what a tenant's jobs need beyond its guaranteed quota: a job that costs 3.5 slices, of
    a tenant with 2 unused slices, is lent 1.5. So the borrowed QOS gets some of the guaranteed
    quota: first what its running jobs hold beyond its limit, unless jobs of the own QOS hold that,
    or wait for it where they are ``own_first``; then what its waiting jobs lack, unless jobs of the
    own QOS hold or wait for that. Waiting jobs that could not each start even then do not count.
    """
    return {name: _by_use(name, standing, use) for name, standing in standings.items()}


def _by_use(tenant: str, standing: Standing, use: QosUse) -> Standing:
    own, borrowed = standing.own_qos_limit_millislices, standing.borrowed_qos_limit_millislices
    its_own, on_loan = qos_name(tenant), borrowed_qos(tenant)
    if use.doubtful & {its_own, on_loan}:
        return standing
    left, running = max(0, own - use.held.get(its_own, 0)), use.held.get(on_loan, 0)
    waiting = use.waiting.get(its_own, 0)
    first = waiting if its_own in use.own_first else 0
    moved = min(max(0, left - first), max(0, running - borrowed))
    spare = max(0, left - moved - waiting)
    room = max(0, borrowed + moved - running)
    # Only Slurm knows for which of these tasks GPUs are free, so all that could start count.
    wanted = sum(cost for cost in use.tasks.get(on_loan, ()) if cost <= room + spare)
    moved += min(spare, max(0, wanted - room))
    if not moved:
        return standing
    return replace(
        standing,
        own_qos_limit_millislices=Millislices(own - moved),
        borrowed_qos_limit_millislices=Millislices(borrowed + moved),
    )


def beyond_loans(
    policy: Policy, standings: Mapping[str, Standing], held: Mapping[str, int]
) -> Mapping[str, int]:
    """Millislices of its guaranteed quota that each tenant's runs outside its own QOS hold.

    It is what these have ``held`` beyond what is lent to the tenant. A tenant whose guarantee names
    types is left out: jobs in its own QOS come before these runs.
    """
    first = guaranteed_types(policy)
    return {
        name: max(0, held.get(name, 0) - max(0, _lent_to(standing)))
        for name, standing in standings.items()
        if name in policy and name not in first
    }


def _lent_to(standing: Standing) -> int:
    both = standing.own_qos_limit_millislices + standing.borrowed_qos_limit_millislices
    return both - standing.guaranteed_millislices


def less_elsewhere(
    standings: Mapping[str, Standing], elsewhere: Mapping[str, int]
) -> Mapping[str, Standing]:
    """Reduce the limits of both QOS by the millislices that tenants' jobs hold ``elsewhere``.

    These jobs run in other QOS, in which they started earlier. The borrowed QOS' limit is reduced
    first, because the quota for them was lent.
    """
    return {name: _less(standing, elsewhere.get(name, 0)) for name, standing in standings.items()}


def _less(standing: Standing, held: int) -> Standing:
    if not held:
        return standing
    own, borrowed = standing.own_qos_limit_millislices, standing.borrowed_qos_limit_millislices
    return replace(
        standing,
        own_qos_limit_millislices=Millislices(own - min(own, max(0, held - borrowed))),
        borrowed_qos_limit_millislices=Millislices(max(0, borrowed - held)),
    )


def less_uncounted(
    standings: Mapping[str, Standing], uncounted: Mapping[str, int]
) -> Mapping[str, Standing]:
    """Reduce the limit of each QOS by the millislices of its own runs that Slurm does not count."""
    if not uncounted:
        return standings
    return {
        name: replace(
            standing,
            own_qos_limit_millislices=_left(
                standing.own_qos_limit_millislices, uncounted.get(qos_name(name), 0)
            ),
            borrowed_qos_limit_millislices=_left(
                standing.borrowed_qos_limit_millislices, uncounted.get(borrowed_qos(name), 0)
            ),
        )
        for name, standing in standings.items()
    }


def _left(limit: int, taken: int) -> Millislices:
    return Millislices(max(0, limit - taken))


def standings(
    policy: Policy, loans: Iterable[Loan], recalls: Iterable[Recall] = ()
) -> Mapping[str, Standing]:
    """Compute the limit of every tenant.

    A limit is the effective nominal, less the loans that leave the subtree, plus those that enter
    it. A recalled amount is in no limit: the lender does not have it yet, and the borrower has it
    no longer. In every subtree the limits of all tenants' QOS add up to at most the limit.

    Loans count only up to what the policy allows; the excess is treated as recalled.
    """
    nominal, own, loans = effective_nominal(policy), guaranteed_quota(policy), tuple(loans)
    allowed = within_limits(policy, loans)
    recalls = (*recalls, *called_back(loans, allowed, 0))
    on_loan, borrowed = crossing(policy, allowed)
    in_transit = tuple(_in_transit(policy, own, allowed, recalls))
    on_its_way, _ = crossing(policy, in_transit)
    lent = {name: on_loan[name] + on_its_way[name] for name in policy}
    limit = {name: nominal[name] - lent[name] + borrowed[name] for name in policy}
    gone, come = Counter[str](), Counter[str]()
    for loan in (*allowed, *in_transit):
        gone[loan.lender] += loan.amount_millislices
    for loan in allowed:
        come[loan.borrower] += loan.amount_millislices
    return {
        name: Standing(
            Millislices(limit[name]),
            Millislices(min(own[name], limit[name])),
            Millislices(lent[name]),
            Millislices(borrowed[name]),
            Millislices(own[name] - gone[name]),
            Millislices(come[name]),
        )
        for name in policy
    }


def _in_transit(
    policy: Policy, own: Mapping[str, int], loans: Iterable[Loan], recalls: Iterable[Recall]
) -> Iterator[Loan]:
    """Yield recalls as loans, limited to what their lenders' guaranteed quotas leave beside other
    loans.
    """
    left = Counter(own)
    for loan in loans:
        left[loan.lender] -= loan.amount_millislices
    for recall in sorted(recalls):
        if recall.lender in policy and recall.borrower in policy:
            amount = max(0, min(recall.amount_millislices, left[recall.lender]))
            left[recall.lender] -= amount
            yield Loan(recall.lender, recall.borrower, Millislices(amount))
