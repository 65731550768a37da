"""The figures of a policy under a load, and which policy follows from them."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from slicewise.simulation.rules.runs.measure import wait_s
from slicewise.simulation.rules.runs.summary import jain, mean, percentile
from slicewise.simulation.rules.site.records import ReplayedJob, SiteRecord
from studies.headline.systems import GPU_MILLISLICES
from studies.priorities.light import SHORTEST_S

LARGE_GPUS = 8
"""Jobs of a whole node and more are large."""
WITHIN = 1.02


@dataclass(frozen=True)
class PolicyFigures:
    """One policy under one load. Waits are in seconds, from submission to start.

    Attributes:
        slowdown: mean time from submission to end, in lengths of the run (of 10 s at least).
        worst_s: the mean wait of the tenant that waits longest on average.
        large_s: the mean wait of jobs of ``LARGE_GPUS`` or more; large_longest_s the longest.
        jain: Jain's index of the tenants' mean slowdowns.
        unstarted: jobs that never started.
    """

    jobs: int
    slowdown: float
    wait_s: float
    p99_s: float
    worst_s: float
    longest_s: float
    large_s: float
    large_longest_s: float
    jain: float
    unstarted: int


def figures_of(record: SiteRecord, count_from_s: float) -> PolicyFigures:
    """Measure the jobs that came from then on."""
    jobs = [job for job in record.jobs if job.number >= 0 and job.submit_s >= count_from_s]
    waits_s = [wait_s(job, record.stopped_s) for job in jobs]
    slowdowns = [_slowdown(job, waited) for job, waited in zip(jobs, waits_s, strict=True)]
    large = [
        waited
        for job, waited in zip(jobs, waits_s, strict=True)
        if job.cost_millislices >= LARGE_GPUS * GPU_MILLISLICES
    ]
    by_tenant: defaultdict[str, list[int]] = defaultdict(list)
    for nth, job in enumerate(jobs):
        by_tenant[job.tenant].append(nth)
    return PolicyFigures(
        jobs=len(jobs),
        slowdown=mean(slowdowns),
        wait_s=mean(waits_s),
        p99_s=percentile(sorted(waits_s), 99),
        worst_s=max(mean([waits_s[nth] for nth in of]) for of in by_tenant.values()),
        longest_s=max(waits_s),
        large_s=mean(large),
        large_longest_s=max(large, default=0.0),
        jain=jain(mean([slowdowns[nth] for nth in of]) for of in by_tenant.values()),
        unstarted=sum(not job.runs for job in jobs),
    )


def _slowdown(job: ReplayedJob, waited_s: float) -> float:
    return max(1.0, (waited_s + job.run_s) / max(job.run_s, SHORTEST_S))


Result = Mapping[str, Any]
"""Load, seed, policy, seconds of training, and the policy's figures."""


def means(results: Sequence[Result]) -> Mapping[str, Mapping[str, Mapping[str, float]]]:
    """The mean over seeds of each figure, by load and policy."""
    found: dict[str, dict[str, Mapping[str, float]]] = {}
    for load in dict.fromkeys(one["load"] for one in results):
        for policy in dict.fromkeys(one["policy"] for one in results):
            several = [
                one["figures"] for one in results if (one["load"], one["policy"]) == (load, policy)
            ]
            if several:
                found.setdefault(load, {})[policy] = {
                    key: fmean(one[key] for one in several) for key in several[0]
                }
    return found


def beside_best(
    shown: Mapping[str, Mapping[str, Mapping[str, float]]], key: str
) -> Mapping[str, float]:
    """Each policy's figure beside the least of all, as the mean over loads."""
    ratios: defaultdict[str, list[float]] = defaultdict(list)
    for policies in shown.values():
        best = min(one[key] for one in policies.values())
        for name, one in policies.items():
            ratios[name].append(one[key] / best)
    # Who was tried on some loads only is compared with nobody.
    everywhere = (item for item in ratios.items() if len(item[1]) == len(shown))
    return {name: fmean(several) for name, several in everywhere}


def chosen(ratios: Mapping[str, float], simplest_first: Sequence[str]) -> str:
    """Return the simplest policy within 2 % of the best."""
    best = min(ratios.values())
    return next(name for name in simplest_first if ratios[name] <= WITHIN * best)
