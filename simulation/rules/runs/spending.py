"""What of its budgets a site has used up where a simulation begins."""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from slicewise.cluster.language.periods import period_start_s
from slicewise.simulation.rules.history.jobs import HistoryJob
from slicewise.simulation.rules.site.plans import KnownSpending, SlicewisePlan
from slicewise.simulation.rules.site.requests import Replayable
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
    budgets = {name: one.budget for name, one in plan.tenants.items() if one.budget}
    if not budgets:
        return {}
    held = tuple(_held(plan, jobs, can))
    known, zone = plan.known_spending, plan.settings.ledger.time_zone
    found = {}
    for name, budget in budgets.items():
        start_s = period_start_s(budget.period, int(begin_s), zone)
        if known is not None and known.periods_s.get(name) == start_s and begin_s <= known.at_s:
            later = _used(held, name, begin_s, known.at_s)
            found[name] = known.millislice_s[name] - later
        else:
            found[name] = _used(held, name, start_s, begin_s)
    return found


def spending_of(now: SiteDescription) -> KnownSpending | None:
    """What the snapshot's ledger says of the periods in which it was taken; None of other sites."""
    ledger = now.ledger
    spent = {
        name: budget.amount_millislice_s - ledger.left[name].left_millislice_s
        for name, one in ledger.tenants.items()
        if (budget := one.budget) is not None and name in ledger.left
    }
    return KnownSpending(now.taken_s, spent, ledger.rollovers) if now.taken_s else None


def _held(plan: SlicewisePlan, jobs: Iterable[HistoryJob], can: Replayable) -> Iterator[_Held]:
    paid_by, partitions = payers(plan.tenants), plan.settings.cluster.partitions
    for job in jobs:
        if job.started_s is None:
            continue
        found = can.of(0, job, job.submit_s)
        if not isinstance(found, str) and found.request.partition in partitions:
            account = found.request.account
            payer, end_s = paid_by.get(account, account), job.started_s + job.run_s
            yield _Held(payer, found.cost_millislices, job.started_s, end_s)


def _used(held: Iterable[_Held], payer: str, from_s: float, until_s: float) -> int:
    return sum(
        int(one.cost_millislices * (min(until_s, one.end_s) - max(from_s, one.start_s)))
        for one in held
        if one.payer == payer and one.start_s < until_s and one.end_s > from_s
    )
