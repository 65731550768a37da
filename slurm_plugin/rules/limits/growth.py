"""Decides which limits of QOS may grow now.

No limit grows by slices, or by parts of a budget, that jobs in other QOS may still take.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from slicewise.cluster.language.billing import BillingUnit
from slicewise.slurm_plugin.rules.common.qos_names import GATE_QOS, borrowed_qos, qos_name
from slicewise.slurm_plugin.rules.limits.changes import shrinks
from slicewise.slurm_plugin.rules.limits.desired import (
    BILLING,
    RUN_MINUTES,
    DesiredLimits,
    Difference,
    SlurmLimits,
    value_now,
)
from slicewise.slurm_plugin.rules.quota.standings import QosUse
from slicewise.slurm_plugin.rules.quota.tenants import children, parent
from slicewise.slurm_plugin.rules.quota.types import LimitKey, Loan, Policy


def shrinking(
    differences: Iterable[Difference], slurm_limits: SlurmLimits
) -> tuple[Difference, ...]:
    """Return the limits of QOS that shall shrink."""
    return tuple(
        difference
        for difference in differences
        if _is_limit(difference) and not _grows(difference, slurm_limits)
    )


def growing(differences: Iterable[Difference], slurm_limits: SlurmLimits) -> tuple[Difference, ...]:
    """Return the limits of QOS that shall grow; those of QOS that don't exist yet grow from 0."""
    return tuple(
        difference
        for difference in differences
        if _is_limit(difference) and _grows(difference, slurm_limits)
    )


def without(
    waits: Collection[Difference], differences: Iterable[Difference], slurm_limits: SlurmLimits
) -> tuple[Difference, ...]:
    """Return the ``differences`` without the limits that must wait.

    A QOS that does not exist yet gets 0 for such a limit.
    """
    return tuple(
        replace(difference, wanted="0") if difference in waits else difference
        for difference in differences
        if difference not in waits or difference.key.name not in slurm_limits.qos
    )


def _grows(difference: Difference, slurm_limits: SlurmLimits) -> bool:
    return difference.key.name not in slurm_limits.qos or not shrinks(difference)


def _is_limit(difference: Difference) -> bool:
    return difference.key.entity == "qos" and difference.key.field in {BILLING, RUN_MINUTES}


def overtaken(
    policy: Policy, wanted: DesiredLimits, planned: QosUse, now: QosUse, billing: BillingUnit
) -> frozenset[str]:
    """Return the QOS that must wait because jobs in the tenant's other QOS took more meanwhile.

    The limits were computed for the ``planned`` use; ``now`` the other QOS holds more than that,
    and more than its own wanted limit.
    """
    return frozenset(
        name
        for tenant in policy
        for name, other in _pairs(tenant)
        if (held := now.held.get(other, 0)) > planned.held.get(other, 0)
        and billing.held(held) > _limit(wanted, other)
    )


def _limit(wanted: DesiredLimits, qos: str) -> int:
    """Return the wanted limit of a QOS in Slurm's billing; 0 if none is wanted."""
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
    """Return the QOS that must wait for slices of a ``stuck`` QOS, which Slurm refuses to shrink.

    They are the tenant's other QOS, the borrowed QOS of its borrowers, and the own QOS of the
    tenants right above and below. Other QOS must wait if together they would grow by more than what
    is ``free`` of the cluster, in Slurm's billing; None means not known, and keeps none waiting.
    """
    names = {difference.key.name for difference in stuck if difference.key.field == BILLING}
    if not names:
        return frozenset()
    waits = set(_heirs(names, policy, tuple(loans)))
    for difference in sorted(grow, key=lambda difference: difference.key):
        amount = int(difference.wanted or 0) - int(difference.now or 0)
        if difference.key.name in waits or difference.key.field != BILLING:
            continue
        if free is not None and amount > free:
            waits.add(difference.key.name)
        elif free is not None:
            free -= amount
    return frozenset(waits)


def overdrawn(stuck: Iterable[Difference], draws: Mapping[str, Sequence[str]]) -> frozenset[str]:
    """Return the QOS that must wait because Slurm refuses to shrink a part of one of their budgets.

    ``draws`` has the budgets that bind each QOS.
    """
    parts = (difference.key.name for difference in stuck if difference.key.field == RUN_MINUTES)
    short = {budget for name in parts for budget in draws.get(name, ())}
    return frozenset(name for name, budgets in draws.items() if short.intersection(budgets))


def _heirs(stuck: set[str], policy: Policy, loans: tuple[Loan, ...]) -> Iterator[str]:
    for tenant in policy:
        yield from (name for name, other in _pairs(tenant) if other in stuck)
        if qos_name(tenant) in stuck:
            yield from (borrowed_qos(loan.borrower) for loan in loans if loan.lender == tenant)
            yield from map(qos_name, (*children(policy, tenant), parent(policy, tenant)))


def free(
    capacity_millislices: int | None, wanted: DesiredLimits, slurm_limits: SlurmLimits
) -> int | None:
    """Return the capacity that no QOS of Slicewise has yet, in Slurm's billing; None if unknown."""
    if capacity_millislices is None:
        return None
    capacity = slurm_limits.billing.limit(capacity_millislices)
    ours = (key for key in wanted.settings if key.entity == "qos" and key.field == BILLING)
    return capacity - sum(
        int(value_now(slurm_limits, key) or 0) for key in ours if key.name != GATE_QOS
    )
