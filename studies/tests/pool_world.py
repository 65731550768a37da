"""Jobs of virtual clusters that share a pool of GPUs, and their loads."""

from collections.abc import Mapping
from typing import Any

from slicewise.simulation.rules.history.jobs import HistoryJob
from studies.headline.loads import Load, whole_gpus_job

HOUR_S = 3600.0
_SPARE_S = 60
"""By how much a job's time limit is longer than its run."""


def pool_job(account: str, gpus: int, at_s: float = 0.0, run_s: float = HOUR_S) -> HistoryJob:
    """A job of a virtual cluster, over nodes of eight GPUs."""
    limit_s = int(run_s) + _SPARE_S
    return whole_gpus_job(1, account, at_s, gpus, run_s=run_s, limit_s=limit_s)


def pool_load(gpus: Mapping[str, int], *jobs: HistoryJob, end_s: float, **more: Any) -> Load:
    """The jobs of virtual clusters with so many GPUs, from second 0 on."""
    return Load("made up", jobs, gpus, 0.0, end_s, **more)
