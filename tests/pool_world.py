"""Jobs of virtual clusters that share a pool of GPUs, and their loads."""

from collections.abc import Mapping
from typing import Any

from benchmarks.headline.loads import GPU, Load, spread
from simulation.history.jobs import HistoryJob

HOUR_S = 3600.0
_SPARE_S = 60
"""By how much a job's time limit is longer than its run."""


def pool_job(account: str, gpus: int, at_s: float = 0.0, run_s: float = HOUR_S) -> HistoryJob:
    """A job of a virtual cluster, over nodes of eight GPUs."""
    nodes, each = spread(gpus)
    return HistoryJob(
        job_id=1,
        user=account,
        account=account,
        partition="",
        qos="",
        submit_s=at_s,
        run_s=run_s,
        time_limit_s=int(run_s) + _SPARE_S,
        gpus={GPU: nodes * each},
        nodes=nodes,
    )


def pool_load(gpus: Mapping[str, int], *jobs: HistoryJob, end_s: float, **more: Any) -> Load:
    """The jobs of virtual clusters with so many GPUs, from second 0 on."""
    return Load("made up", jobs, gpus, 0.0, end_s, **more)
