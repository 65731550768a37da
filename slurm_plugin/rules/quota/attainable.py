"""Computes the most that a tenant could ever have, so that admission can refuse jobs beyond it."""

from collections.abc import Mapping
from dataclasses import dataclass

from slicewise.cluster.language.periods import Period
from slicewise.slurm_plugin.rules.quota.tenants import (
    by_parent,
    downward,
    effective_nominal,
    guaranteed_quota,
    parent,
    payers,
)
from slicewise.slurm_plugin.rules.quota.types import Policy


@dataclass(frozen=True)
class Attainable:
    """The most that each tenant could have at any hour, in millislices.

    Attributes:
        quotas: the largest guaranteed quota (its nominal less what its children are due).
        borrowing_limits: what it may borrow beyond that.
        highest_limits: what its jobs could ever hold, with all that may be borrowed.
    """

    quotas: Mapping[str, int]
    borrowing_limits: Mapping[str, int]
    highest_limits: Mapping[str, int]


def attainable(policy: Policy, highest: Policy | None, capacity: int | None) -> Attainable:
    """Compute the bounds from the policy in force, or from ``highest`` if there is a calendar.

    ``highest`` has the most that each tenant has at any hour; None without a calendar. With one,
    children may have less at some hours, so a tenant's whole nominal counts as its guaranteed
    quota.
    """
    most = policy if highest is None else highest
    own = guaranteed_quota(policy) if highest is None else effective_nominal(highest)
    limits = {name: tenant.quota.borrowing_limit_millislices for name, tenant in most.items()}
    return Attainable(own, limits, _highest_limits(most, own, capacity))


def highest_limits(policy: Policy, capacity: int | None) -> Mapping[str, int]:
    """Compute the most millislices that each tenant's jobs could hold, with all that is borrowed.

    That is what the tenant is guaranteed, and what others could lend it if all they have were idle:
    as the borrowing limits of the tenant and of each tenant above it allow, and the lending limits
    of the others. ``capacity`` (None if not known) limits it too.
    """
    return _highest_limits(policy, guaranteed_quota(policy), capacity)


def _highest_limits(
    policy: Policy, own: Mapping[str, int], capacity: int | None
) -> Mapping[str, int]:
    """The highest limits, where tenants have ``own`` for their own jobs at most."""
    nominal, below = effective_nominal(policy), by_parent(policy)
    lends: dict[str, int] = {}
    for name in reversed(downward(policy)):
        inside = min(nominal[name], own[name] + sum(lends[child] for child in below.get(name, ())))
        lends[name] = min(inside, policy[name].quota.lending_limit_millislices)
    lent = {name: sum(lends[child] for child in below.get(name, ())) for name in ("", *policy)}
    gets: dict[str, int] = {}
    for name in downward(policy):
        above = parent(policy, name)
        others = own.get(above, 0) + lent[above] - lends[name] + gets.get(above, 0)
        gets[name] = min(policy[name].quota.borrowing_limit_millislices, others)
    most = {name: min(nominal[name], own[name] + lent[name]) + gets[name] for name in policy}
    return (
        most
        if capacity is None
        else {name: min(millislices, capacity) for name, millislices in most.items()}
    )


def period_budgets(policy: Policy) -> Mapping[str, int]:
    """Compute the most millislice-seconds that a tenant's payer has in a period, by tenant.

    Tenants without a budget are left out. So are those with a budget without periods, as grants may
    enlarge it at any time.
    """
    limits: dict[str, int] = {}
    for name, payer in payers(policy).items():
        budget = policy[payer].budget
        if budget is not None and budget.period is not Period.NONE:
            limits[name] = budget.amount + budget.carry_over + budget.overdraft
    return limits
