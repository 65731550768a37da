"""What each tenant may hold now: its nominal, less what it lends, with what it borrows."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cluster.units import Millislices
from slurm_plugin.decide.lending import crossing, within_limits
from slurm_plugin.decide.policy import Loan, Policy
from slurm_plugin.decide.tenants import by_parent, downward, effective_nominal, own_part


@dataclass(frozen=True)
class Ceiling:
    """What a tenant and those below it may hold now.

    Attributes:
        ceiling_millislices: in all QOS together: the limit of its account.
        guarantee_millislices: in its own QOS: its own part, as the rest is its children's.
        lent_millislices, borrowed_millislices: on loans that leave or enter its subtree.
    """

    ceiling_millislices: Millislices
    guarantee_millislices: Millislices
    lent_millislices: Millislices
    borrowed_millislices: Millislices


def ceilings(policy: Policy, loans: Iterable[Loan], capacity: int | None) -> Mapping[str, Ceiling]:
    """The ceiling of every tenant.

    It is the effective nominal, less the loans that leave the subtree, with those that enter it.
    If the ceilings at the top are more than the cluster's capacity together, all are squeezed in
    proportion, and so on down: the children of a tenant never have more than it has. A capacity
    of None is not known and squeezes nothing. Loans that the policy does not allow count only as
    far as it does.
    """
    nominal, own = effective_nominal(policy), own_part(policy)
    lent, borrowed = crossing(policy, within_limits(policy, loans))
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
