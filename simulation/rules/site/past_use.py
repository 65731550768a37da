"""What had been used when a simulated site begins: fair share and Slicewise's priorities follow it.

It is known of jobs whose history says when they really started.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from slicewise.simulation.rules.history.jobs import HistoryJob
from slicewise.simulation.rules.site.past_requests import Replayable
from slicewise.slurm_plugin.rules.admission.decayed_use import Holding, recorded


@dataclass(frozen=True)
class EarlierRun:
    """A run before the beginning; of one that went on, the part until then.

    Attributes:
        holding: of the account.
    """

    user: str
    partition: str
    holding: Holding


def earlier_runs(
    jobs: Iterable[tuple[int, HistoryJob]], can: Replayable, begin_s: float
) -> tuple[EarlierRun, ...]:
    """Return what numbered jobs held before ``begin_s``, without those that can't be replayed."""
    return tuple(_runs(jobs, can, begin_s))


def _runs(
    jobs: Iterable[tuple[int, HistoryJob]], can: Replayable, begin_s: float
) -> Iterator[EarlierRun]:
    for number, job in jobs:
        if job.started_s is None or job.started_s >= begin_s:
            continue
        decision = can.of(number, job, begin_s)
        if isinstance(decision, str):
            continue
        request, end_s = decision.request, min(begin_s, job.started_s + job.run_s)
        holding = Holding(request.account, decision.cost_millislices, job.started_s, end_s)
        yield EarlierRun(request.user, request.partition, holding)


def used_billing_s(
    runs: Iterable[EarlierRun], at_s: float, half_life_s: float
) -> Mapping[tuple[str, str], float]:
    """Billing × seconds of each user in each account, as fair share counts them at ``at_s``.

    ``half_life_s`` is Slurm's: with 0 nothing is forgotten.
    """
    found: defaultdict[tuple[str, str], list[Holding]] = defaultdict(list)
    for run in runs:
        found[run.holding.tenant, run.user].append(run.holding)
    return {key: _used(holdings, at_s, half_life_s) for key, holdings in found.items()}


def _used(holdings: Sequence[Holding], at_s: float, half_life_s: float) -> float:
    if half_life_s:
        return sum(recorded(holdings, at_s, half_life_s).millislice_s.values())
    return sum(
        holding.amount_millislices
        * ((at_s if holding.end_s is None else holding.end_s) - holding.start_s)
        for holding in holdings
    )
