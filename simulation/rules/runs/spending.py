"""What of its budgets a site has used up where a simulation begins."""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from slicewise.cluster.language.periods import period_start_s
from slicewise.simulation.rules.history.jobs import HistoryJob
from slicewise.simulation.rules.site.past_requests import Replayable
from slicewise.simulation.rules.site.plans import KnownSpending, SlicewisePlan
from slicewise.simulation.rules.snapshot.site import SiteDescription
from slicewise.slurm_plugin.rules.quota.tenants import payers


class _Held(NamedTuple):
    """A run of the past: who paid, and how much it held."""

    payer: str
    cost_millislices: int
    start_s: float
    end_s: float


def spent_before(
    plan: SlicewisePlan, jobs: Iterable[HistoryJob], can: Replayable, begin_s: float
) -> Mapping[str, int]:
    """Millislice-seconds of each budget that are used up in the period in which ``begin_s`` lies.

    In the period in which the snapshot was taken that is what it says was used up, less what the
    history's jobs used from ``begin_s`` on; in others what they used in the period before.
    """
    budgets = {name: tenant.budget for name, tenant in plan.tenants.items() if tenant.budget}
    if not budgets:
        return {}
    held = tuple(_held(plan, jobs, can))
    spending, zone = plan.known_spending, plan.settings.ledger.time_zone
    used = {}
    for name, budget in budgets.items():
        start_s = period_start_s(budget.period, int(begin_s), zone)
        if (
            spending is not None
            and spending.periods_s.get(name) == start_s
            and begin_s <= spending.at_s
        ):
            later = _used(held, name, begin_s, spending.at_s)
            used[name] = spending.millislice_s[name] - later
        else:
            used[name] = _used(held, name, start_s, begin_s)
    return used


def spending_of(now: SiteDescription) -> KnownSpending | None:
    """What the snapshot's ledger says of the periods in which it was taken; None of other sites."""
    ledger = now.ledger
    spent = {
        name: budget.amount - ledger.left[name].left_millislice_s
        for name, tenant in ledger.tenants.items()
        if (budget := tenant.budget) is not None and name in ledger.left
    }
    return KnownSpending(now.taken_s, spent, ledger.rollovers) if now.taken_s else None


def _held(plan: SlicewisePlan, jobs: Iterable[HistoryJob], can: Replayable) -> Iterator[_Held]:
    paid_by, partitions = payers(plan.tenants), plan.settings.cluster.partitions
    for job in jobs:
        if job.started_s is None:
            continue
        decision = can.of(0, job, job.submit_s)
        if not isinstance(decision, str) and decision.request.partition in partitions:
            account = decision.request.account
            payer, end_s = paid_by.get(account, account), job.started_s + job.run_s
            yield _Held(payer, decision.cost_millislices, job.started_s, end_s)


def _used(held: Iterable[_Held], payer: str, from_s: float, until_s: float) -> int:
    return sum(
        int(holding.cost_millislices * (min(until_s, holding.end_s) - max(from_s, holding.start_s)))
        for holding in held
        if holding.payer == payer and holding.start_s < until_s and holding.end_s > from_s
    )
