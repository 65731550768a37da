"""Which limits of QOS may grow now: none by slices, or by what is left of a budget, that others may
still take.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from cluster.billing import BillingUnit
from slurm_plugin.decide.ceilings import QosUse
from slurm_plugin.decide.limit_changes import shrinks
from slurm_plugin.decide.limits import (
    BILLING,
    RUN_MINUTES,
    Difference,
    Found,
    Wanted,
    value_now,
)
from slurm_plugin.decide.policy import LimitKey, Loan, Policy
from slurm_plugin.decide.qos_names import GATE_QOS, borrowed_qos, qos_name
from slurm_plugin.decide.tenants import children, parent


def shrinking(differences: Iterable[Difference], found: Found) -> tuple[Difference, ...]:
    """The limits of QOS that are to be less."""
    return tuple(one for one in differences if _is_limit(one) and not _grows(one, found))


def growing(differences: Iterable[Difference], found: Found) -> tuple[Difference, ...]:
    """The limits of QOS that are to be more, from 0 those of QOS that are not there yet."""
    return tuple(one for one in differences if _is_limit(one) and _grows(one, found))


def without(
    waits: Collection[Difference], differences: Iterable[Difference], found: Found
) -> tuple[Difference, ...]:
    """The ``differences`` but for limits that are to wait; of a QOS that is not there yet that
    is 0.
    """
    return tuple(
        replace(one, wanted="0") if one in waits else one
        for one in differences
        if one not in waits or one.key.name not in found.qos
    )


def _grows(one: Difference, found: Found) -> bool:
    return one.key.name not in found.qos or not shrinks(one)


def _is_limit(one: Difference) -> bool:
    return one.key.entity == "qos" and one.key.field in {BILLING, RUN_MINUTES}


def overtaken(
    policy: Policy, wanted: Wanted, planned: QosUse, now: QosUse, billing: BillingUnit
) -> frozenset[str]:
    """QOS that are to wait, as the tenant's other one took more before it shrank: the limits are
    those for what was in use when they were ``planned``.
    """
    return frozenset(
        name
        for tenant in policy
        for name, other in _pairs(tenant)
        if (held := now.held.get(other, 0)) > planned.held.get(other, 0)
        and billing.held(held) > _limit(wanted, other)
    )


def _limit(wanted: Wanted, qos: str) -> int:
    """In Slurm's billing."""
    setting = wanted.settings.get(LimitKey("qos", qos, BILLING))
    return int(setting.value) if setting else 0


def _pairs(tenant: str) -> tuple[tuple[str, str], ...]:
    own, borrowed = qos_name(tenant), borrowed_qos(tenant)
    return (own, borrowed), (borrowed, own)


def unfunded(
    stuck: Iterable[Difference],
    grow: Iterable[Difference],
    policy: Policy,
    loans: Iterable[Loan],
    free: int | None,
) -> frozenset[str]:
    """QOS that are to wait for slices of a QOS that is ``stuck``: Slurm refuses to shrink it.

    They are the tenant's other QOS, those of who borrows from it, and the own ones of the tenants
    right above and below. Others grow by what is ``free`` of the cluster, in Slurm's billing; None
    is not known.
    """
    names = {one.key.name for one in stuck if one.key.field == BILLING}
    if not names:
        return frozenset()
    waits = set(_heirs(names, policy, tuple(loans)))
    for one in sorted(grow, key=lambda one: one.key):
        amount = int(one.wanted or 0) - int(one.now or 0)
        if one.key.name in waits or one.key.field != BILLING:
            continue
        if free is not None and amount > free:
            waits.add(one.key.name)
        elif free is not None:
            free -= amount
    return frozenset(waits)


def overdrawn(stuck: Iterable[Difference], draws: Mapping[str, Sequence[str]]) -> frozenset[str]:
    """QOS that are to wait for a part of a budget that Slurm refuses to make less; ``draws`` are
    the budgets that bind each QOS.
    """
    parts = (one.key.name for one in stuck if one.key.field == RUN_MINUTES)
    short = {budget for name in parts for budget in draws.get(name, ())}
    return frozenset(name for name, budgets in draws.items() if short.intersection(budgets))


def _heirs(stuck: set[str], policy: Policy, loans: tuple[Loan, ...]) -> Iterator[str]:
    for tenant in policy:
        yield from (name for name, other in _pairs(tenant) if other in stuck)
        if qos_name(tenant) in stuck:
            yield from (borrowed_qos(one.borrower) for one in loans if one.lender == tenant)
            yield from map(qos_name, (*children(policy, tenant), parent(policy, tenant)))


def free(capacity_millislices: int | None, wanted: Wanted, found: Found) -> int | None:
    """What no QOS of ours has yet, in Slurm's billing; None is not known."""
    if capacity_millislices is None:
        return None
    capacity = found.billing.limit(capacity_millislices)
    ours = (key for key in wanted.settings if key.entity == "qos" and key.field == BILLING)
    return capacity - sum(int(value_now(found, key) or 0) for key in ours if key.name != GATE_QOS)
