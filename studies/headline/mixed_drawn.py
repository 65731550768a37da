"""Batch jobs that are drawn, for a load that no rule and no setting was chosen by.

Tenants hand in campaigns: many jobs alike, within minutes, then nothing for a while. A quarter of
the jobs has most of the work, and time limits are rounded up to what users type.
"""

import random
from collections.abc import Iterator, Mapping

from slicewise.simulation.rules.history.jobs import HistoryJob
from studies.headline.mixed_load import BATCH_TENANTS
from studies.headline.mixed_services import BEGIN_S, HOURS, PARTITION

_HOUR_S = 3600.0
_CAMPAIGN_JOBS = (1, 24)
_CAMPAIGN_S = 300.0
"""Within so many seconds the jobs of a campaign come."""
_MEDIAN_S, _SPREAD = 240.0, 1.4
"""Of the run times of campaigns, with the standard deviation of their logarithm."""
_ALIKE = 0.2
"""The same standard deviation within a campaign."""
_LEAST_S, _MOST_S = 10.0, 3 * 3600.0
_LIMITS_S = (300, 900, 1800, 3600, 2 * 3600, 4 * 3600, 8 * 3600, 24 * 3600)


def drawn(asked: Mapping[str, float], seed: int, hours: float = HOURS) -> tuple[HistoryJob, ...]:
    """Draw campaigns until instances of each type are asked for as they shall be on average."""
    draw = random.Random(seed)  # noqa: S311 -- not for secrets
    end_s = BEGIN_S + hours * _HOUR_S
    found: list[HistoryJob] = []
    for kind, instances in sorted(asked.items()):
        left_s = instances * hours * _HOUR_S
        while left_s > 0:
            for job in _campaign(draw, kind, hours):
                if left_s > 0 and job.submit_s < end_s:
                    left_s -= min(job.run_s, end_s - job.submit_s)
                    found.append(job)
    found.sort(key=lambda job: job.submit_s)
    return tuple(found)


def _campaign(draw: random.Random, kind: str, hours: float) -> Iterator[HistoryJob]:
    at_s = BEGIN_S + draw.uniform(0, hours * _HOUR_S)
    of_all_s = _MEDIAN_S * draw.lognormvariate(0.0, _SPREAD)
    tenant = f"batch{draw.choices(range(1, BATCH_TENANTS + 1), (8, 4, 2, 1))[0]}"
    for _ in range(draw.randint(*_CAMPAIGN_JOBS)):
        run_s = min(max(of_all_s * draw.lognormvariate(0.0, _ALIKE), _LEAST_S), _MOST_S)
        limit_s = next(one for one in _LIMITS_S if one >= run_s)
        yield HistoryJob(
            job_id=0,
            user=tenant,
            account=tenant,
            partition=PARTITION,
            qos="",
            submit_s=at_s + draw.uniform(0, _CAMPAIGN_S),
            run_s=run_s,
            time_limit_s=limit_s,
            gpus={kind: 1},
            nodes=1,
        )
