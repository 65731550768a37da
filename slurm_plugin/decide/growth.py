"""Which limits of QOS may grow now: none by slices that others may still take."""

from collections.abc import Iterable, Iterator

from slurm_plugin.decide.ceilings import QosUse
from slurm_plugin.decide.limit_changes import shrinks
from slurm_plugin.decide.limits import BILLING, Difference, Found, Wanted, value_now
from slurm_plugin.decide.policy import LimitKey, Loan, Policy
from slurm_plugin.decide.qos_names import GATE_QOS, borrowed_qos, qos_name
from slurm_plugin.decide.tenants import children, parent


def shrinking(differences: Iterable[Difference]) -> tuple[Difference, ...]:
    """The limits of QOS that are to be less."""
    return tuple(one for one in differences if _is_limit(one) and shrinks(one))


def growing(differences: Iterable[Difference], found: Found) -> tuple[Difference, ...]:
    """The limits of QOS that are to be more; in a new QOS no job can be yet."""
    return tuple(
        one
        for one in differences
        if _is_limit(one) and one.key.name in found.qos and not shrinks(one)
    )


def _is_limit(one: Difference) -> bool:
    return one.key.entity == "qos" and one.key.field == BILLING


def overtaken(policy: Policy, wanted: Wanted, planned: QosUse, now: QosUse) -> frozenset[str]:
    """QOS that are to wait, as the tenant's other one took more before it shrank: the limits are
    those for what was in use when they were ``planned``.
    """
    return frozenset(
        name
        for tenant in policy
        for name, other in _pairs(tenant)
        if now.held.get(other, 0) > max(_limit(wanted, other), planned.held.get(other, 0))
    )


def _limit(wanted: Wanted, qos: str) -> int:
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
    right above and below. Others grow by what is ``free`` of the cluster; None is not known.
    """
    names = {one.key.name for one in stuck}
    if not names:
        return frozenset()
    waits = set(_heirs(names, policy, tuple(loans)))
    for one in sorted(grow, key=lambda one: one.key):
        amount = int(one.wanted or 0) - int(one.now or 0)
        if one.key.name in waits:
            continue
        if free is not None and amount > free:
            waits.add(one.key.name)
        elif free is not None:
            free -= amount
    return frozenset(waits)


def _heirs(stuck: set[str], policy: Policy, loans: tuple[Loan, ...]) -> Iterator[str]:
    for tenant in policy:
        yield from (name for name, other in _pairs(tenant) if other in stuck)
        if qos_name(tenant) in stuck:
            yield from (borrowed_qos(one.borrower) for one in loans if one.lender == tenant)
            yield from map(qos_name, (*children(policy, tenant), parent(policy, tenant)))


def free(capacity: int | None, wanted: Wanted, found: Found) -> int | None:
    """What no QOS of ours has yet; None is not known."""
    if capacity is None:
        return None
    ours = (key for key in wanted.settings if key.entity == "qos" and key.field == BILLING)
    return capacity - sum(int(value_now(found, key) or 0) for key in ours if key.name != GATE_QOS)
