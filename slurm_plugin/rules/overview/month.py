"""Sums up money and joules of the running month, by tenant."""

from collections import Counter
from collections.abc import Iterable, Mapping

from slicewise.cluster.rpc.overview_messages import MonthNow, TenantThisMonth
from slicewise.slurm_plugin.rules.accounting.energy import EnergySums
from slicewise.slurm_plugin.rules.accounting.money_budgets import TenantCost
from slicewise.slurm_plugin.rules.overview.overview_facts import OverviewFacts, Reader


def tenant_months(
    costs: Iterable[TenantCost], energy: Mapping[str, EnergySums] | None
) -> tuple[TenantThisMonth, ...]:
    """One for each tenant that used anything, by name. ``energy`` is by tenant, that of "" is
    nobody's; None if it is not known.
    """
    cost: Counter[str] = Counter()
    for each in costs:
        if each.millionths is not None:
            cost[each.tenant] += each.millionths
    return tuple(
        _tenant_month(
            name, cost.get(name), None if energy is None else energy.get(name, EnergySums())
        )
        for name in sorted({*cost, *(energy or ())})
    )


def _tenant_month(name: str, millionths: int | None, sums: EnergySums | None) -> TenantThisMonth:
    if sums is None:
        return TenantThisMonth(tenant=name, millionths=millionths)
    nobodys_mj = 0 if name else sums.idle_mj + sums.unknown_mj
    return TenantThisMonth(
        tenant=name,
        millionths=millionths,
        energy_mj=sums.runs_mj + nobodys_mj,
        measured_mj=sums.counter_mj + sums.power_mj + nobodys_mj,
    )


def month_now(facts: OverviewFacts, reader: Reader) -> MonthNow | None:
    """The month as a reader may see it; what is nobody's is for operators."""
    month = facts.month
    if month is None or reader.tenants is None:
        return month
    own = tuple(each for each in month.tenants if each.tenant and reader.may_read(each.tenant))
    return month.model_copy(update={"tenants": own}) if own else None
