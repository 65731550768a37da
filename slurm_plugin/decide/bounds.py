"""What a tenant could ever have, whatever the others leave idle: more can be refused at once."""

from collections.abc import Mapping
from dataclasses import dataclass

from slurm_plugin.decide.policy import Period, Policy
from slurm_plugin.decide.tenants import downward, effective_nominal, own_part, parent, payers


@dataclass(frozen=True)
class Bounds:
    """Of each tenant at any hour, in millislices.

    Attributes:
        quotas: its own part at most.
        borrowing_limits: how much more it may borrow.
        ceilings: what its jobs could ever hold, with all that may be borrowed.
    """

    quotas: Mapping[str, int]
    borrowing_limits: Mapping[str, int]
    ceilings: Mapping[str, int]


def bounds(policy: Policy, highest: Policy | None, capacity: int | None) -> Bounds:
    """By what holds now, and what each tenant has at most at any hour of the calendar, if there is
    one: then those below a tenant may have less, so its own part is not bounded by them.
    """
    most = policy if highest is None else highest
    own = own_part(policy) if highest is None else effective_nominal(highest)
    limits = {name: one.quota.borrowing_limit_millislices for name, one in most.items()}
    return Bounds(own, limits, highest_ceilings(most, capacity))


def highest_ceilings(policy: Policy, capacity: int | None) -> Mapping[str, int]:
    """Millislices that each tenant's jobs could ever hold, with all that may be borrowed.

    No tenant above it lets more through than its own nominal and borrowing limit. A capacity of
    None is not known.
    """
    nominal = effective_nominal(policy)
    highest: dict[str, int] = {}
    for name in downward(policy):
        most = nominal[name] + policy[name].quota.borrowing_limit_millislices
        above = highest.get(parent(policy, name), capacity)
        highest[name] = most if above is None else min(most, above)
    return highest


def period_budgets(policy: Policy) -> Mapping[str, int]:
    """Millislice-seconds that whoever pays for a tenant has in a period at most.

    Left out are those whom no budget limits, and those whose budget has no period: it grows by
    grants.
    """
    found: dict[str, int] = {}
    for name, payer in payers(policy).items():
        budget = policy[payer].budget
        if budget is not None and budget.period is not Period.NONE:
            found[name] = (
                budget.amount_millislice_s
                + budget.carry_over_millislice_s
                + budget.overdraft_millislice_s
            )
    return found
