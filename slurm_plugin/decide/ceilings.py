"""What each tenant may hold now: its nominal, less what it lends, with what it borrows."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from cluster.units import Millislices
from slurm_plugin.decide.lending import called_back, crossing, within_limits
from slurm_plugin.decide.policy import Loan, Policy, Recall
from slurm_plugin.decide.tenants import by_parent, downward, effective_nominal, own_part


@dataclass(frozen=True)
class Ceiling:
    """What a tenant and those below it may hold now.

    Attributes:
        ceiling_millislices: in all QOS together: the limit of its account.
        guarantee_millislices: in its own QOS: its own part, as the rest is its children's.
        lent_millislices: on loans that leave its subtree, and what of them is not back yet.
        borrowed_millislices: on loans that enter it.
    """

    ceiling_millislices: Millislices
    guarantee_millislices: Millislices
    lent_millislices: Millislices
    borrowed_millislices: Millislices


def ceilings(
    policy: Policy, loans: Iterable[Loan], capacity: int | None, recalls: Iterable[Recall] = ()
) -> Mapping[str, Ceiling]:
    """The ceiling of every tenant.

    It is the effective nominal, less the loans that leave the subtree, with those that enter it.
    What is recalled is in no ceiling: the lender does not have it yet, the borrower not any more.
    If the ceilings at the top are more than the cluster's capacity together, all are squeezed in
    proportion, and so on down: the children of a tenant never have more than it has. A capacity
    of None is not known and squeezes nothing. Loans that the policy does not allow count only as
    far as it does; what it cuts off is as good as recalled.
    """
    nominal, own, loans = effective_nominal(policy), own_part(policy), tuple(loans)
    allowed = within_limits(policy, loans)
    recalls = (*recalls, *called_back(loans, allowed, 0))
    on_loan, borrowed = crossing(policy, allowed)
    on_its_way, _ = crossing(policy, _in_transit(policy, own, allowed, recalls))
    lent = {name: on_loan[name] + on_its_way[name] for name in policy}
    raw = {name: nominal[name] - lent[name] + borrowed[name] for name in policy}
    ceiling = _squeezed(policy, raw, capacity)
    return {
        name: Ceiling(
            Millislices(ceiling[name]),
            Millislices(min(own[name], ceiling[name])),
            Millislices(lent[name]),
            Millislices(borrowed[name]),
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


def _squeezed(policy: Policy, raw: Mapping[str, int], capacity: int | None) -> Mapping[str, int]:
    below = by_parent(policy)
    ceiling: dict[str, int] = {}
    for name in ("", *downward(policy)):
        children = below.get(name, ())
        asked = sum(raw[child] for child in children)
        room = ceiling[name] if name else asked if capacity is None else capacity
        for child in children:
            ceiling[child] = raw[child] if asked <= room else raw[child] * room // asked
    return ceiling
