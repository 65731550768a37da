"""The loads, split in time: what policies learn from, and what they are judged by."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

import numpy as np
import numpy.typing as npt

from slicewise.simulation.rules.history.jobs import HistoryJob
from studies.autoscale.workload import Floats
from studies.headline import loads
from studies.headline.loads import GPUS_OF_NODE, Load
from studies.priorities.processor_logs import LOGS, read_log
from studies.priorities.queues import Queue

Numbers = npt.NDArray[np.int64]
Truths = npt.NDArray[np.bool_]
FULL = 0.9
"""Mean demand of a part as a share of its pool."""
TRAINED_DAYS = 14.0
WARM_DAYS = 1.0
"""Days of a log of processors before the jobs that count: nothing is learnt from these."""
WARM_S = 86_400.0
"""Seconds of the trained part that are replayed before the jobs that count."""
GPU_LOADS = {"helios": loads.helios, "philly": loads.philly}
LOADS = (*GPU_LOADS, *LOGS)


@dataclass(frozen=True)
class Split:
    """One load in two parts.

    Attributes:
        trained: its jobs, and a pool that they fill to ``FULL``.
        counted: what is replayed on Slurm's model, from ``WARM_S`` before ``count_from_s`` on.
        count_from_s: jobs that come from here on count.
    """

    trained: Load
    counted: Load
    count_from_s: float


def read_split(name: str, folder: Path, seed: int, days: float | None) -> Split:
    """Read a load and split it; with ``days``, so many are learnt from and so many count."""
    if name not in LOGS:
        load = GPU_LOADS[name](folder, seed, None if days is None else 2 * days)
        return split(load, TRAINED_DAYS if days is None else days)
    log = LOGS[name]
    load = read_log(log, folder, seed, None if days is None else WARM_DAYS + days)
    found = split(load, WARM_DAYS)
    if log.gpus is None:
        return found
    return replace(found, counted=replace(found.counted, gpus=_of_size(found.counted, log.gpus)))


def split(load: Load, trained_days: float) -> Split:
    """Split a load; jobs that were cancelled while they waited are left out.

    What ran when a part begins is taken to have started when it came: nobody knows better.
    """
    begun = tuple(
        replace(job, started_s=job.submit_s) for job in load.jobs if not job.is_cancelled_waiting
    )
    at_s = load.begin_s + trained_days * 86_400.0
    warm_s = at_s - min(WARM_S, at_s - load.begin_s)
    early = tuple(job for job in begun if job.submit_s < at_s)
    trained = replace(load, jobs=early, gpus=_pool(load, begun, load.begin_s, at_s), end_s=at_s)
    counted = replace(load, jobs=begun, gpus=_pool(load, begun, at_s, load.end_s), begin_s=warm_s)
    return Split(trained, counted, at_s)


def _pool(
    load: Load, jobs: Sequence[HistoryJob], begin_s: float, end_s: float
) -> Mapping[str, int]:
    """The GPUs of each tenant in a pool that the demand between both times fills to ``FULL``.

    Whole nodes, with room for the largest job, and divided as the load's own GPUs are.
    """
    demand_s = sum(
        sum(job.gpus.values())
        * max(0.0, min(job.submit_s + job.run_s, end_s) - max(job.submit_s, begin_s))
        for job in jobs
    )
    largest = max((sum(job.gpus.values()) for job in jobs), default=1)
    wanted = max(largest, demand_s / (end_s - begin_s) / FULL)
    pool, whole = GPUS_OF_NODE * ceil(wanted / GPUS_OF_NODE), sum(load.gpus.values())
    found = {name: max(1, pool * own // whole) for name, own in load.gpus.items()}
    return _filled_up(found, pool)


def _of_size(load: Load, gpus: int) -> Mapping[str, int]:
    """The tenants' GPUs where the pool has so many."""
    whole = sum(load.gpus.values())
    return _filled_up({name: max(1, gpus * own // whole) for name, own in load.gpus.items()}, gpus)


def _filled_up(gpus: Mapping[str, int], pool: int) -> Mapping[str, int]:
    """What rounding left over goes to the largest."""
    first = max(gpus, key=lambda name: gpus[name])
    return {**gpus, first: gpus[first] + pool - sum(gpus.values())}


@dataclass(frozen=True)
class Window:
    """A span of the trained part, for the light scheduler.

    Attributes:
        submit_s: rising; jobs that ran when it begins come then, for the rest of their time.
        tenant: of each job, a place in ``own``.
        own: GPUs of each tenant.
        counts: whether a job came within the window.
    """

    submit_s: Floats
    gpus: Floats
    limit_s: Floats
    run_s: Floats
    tenant: Numbers
    counts: Truths
    own: Floats
    begin_s: float

    @property
    def pool_gpus(self) -> int:
        """GPUs of the pool."""
        return int(self.own.sum())

    def queue(self, of: Sequence[int], now_s: float, held: Floats, free: float) -> Queue:
        """What a policy sees of these jobs."""
        at = np.array(of)
        tenants = self.tenant[at]
        came_s = self.submit_s[at]
        return Queue(
            gpus=self.gpus[at],
            limit_s=self.limit_s[at],
            came_s=came_s - self.begin_s,
            waited_s=now_s - came_s,
            held=held[tenants] / self.own[tenants],
            share=np.ones(at.size),
            pool_gpus=self.pool_gpus,
            free=free / self.pool_gpus,
        )


def busy_windows(load: Load, hours: float, most: int) -> list[Window]:
    """The windows of so many hours with most GPU-seconds asked for, in order of time."""
    span_s = hours * 3600.0
    count = int((load.end_s - load.begin_s) / span_s)
    begins = [load.begin_s + nth * span_s for nth in range(count)]
    found = [_window(load, begin_s, begin_s + span_s) for begin_s in begins]
    busiest = sorted(found, key=lambda one: -_demand_s(one, span_s))[:most]
    return sorted(busiest, key=lambda one: one.begin_s)


def _demand_s(window: Window, span_s: float) -> float:
    ends_s = np.minimum(window.submit_s + window.run_s, window.begin_s + span_s)
    return float((window.gpus * (ends_s - window.submit_s)).sum())


def _window(load: Load, begin_s: float, end_s: float) -> Window:
    names = {name: nth for nth, name in enumerate(load.gpus)}
    jobs = [job for job in load.jobs if job.submit_s < end_s and job.submit_s + job.run_s > begin_s]
    submit_s = np.array([job.submit_s for job in jobs])
    ran_s = np.maximum(0.0, begin_s - submit_s)
    return Window(
        submit_s=np.maximum(submit_s, begin_s),
        gpus=np.array([float(sum(job.gpus.values())) for job in jobs]),
        limit_s=np.maximum(60.0, np.array([float(job.time_limit_s or 0) for job in jobs]) - ran_s),
        run_s=np.array([job.run_s for job in jobs]) - ran_s,
        tenant=np.array([names[job.account] for job in jobs]),
        counts=ran_s == 0.0,
        own=np.array([float(own) for own in load.gpus.values()]),
        begin_s=begin_s,
    )
