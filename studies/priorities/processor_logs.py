"""Logs of clusters without GPUs whose users said time limits: processors stand for GPUs.

They are of the Parallel Workloads Archive, in the Standard Workload Format. What they say of
limits and of when jobs came is real. A seed draws which of the users are one tenant, and moves each
job by some minutes, so that no figure rests on one order of events.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from slicewise.simulation.history.formats import read_history
from slicewise.simulation.rules.history.jobs import HistoryJob
from studies.headline.loads import GPU, Load, drawn_limit_s, sized, spread

_DAY_S = 86_400.0
_TENANTS = 8
_MOVED_S = 1800.0
"""Seconds by which a job comes earlier or later, at most."""


@dataclass(frozen=True)
class ProcessorLog:
    """How a log becomes a load.

    Attributes:
        file: its name in the folder of traces.
        partition: whose jobs are replayed; "" is all.
        processors: that stand for one GPU.
        days: length of the span that is replayed; None is all of it. The span is the one that asks
            for most processor-hours, of spans that follow each other.
        gpus: of the cluster; None lets its demand fill it, as other loads' does.
        has_nodes: whether jobs go over nodes of eight GPUs.
    """

    name: str
    file: str
    partition: str
    processors: int
    days: float | None
    gpus: int | None
    has_nodes: bool


CURIE = ProcessorLog("curie", "curie.swf", "8", 4, None, 288, has_nodes=True)
"""CEA Curie's nodes with GPUs, under Slurm: 144 nodes of eight processors and two GPUs."""
KTH = ProcessorLog("kth", "kth.swf", "", 1, 28.0, None, has_nodes=False)
"""KTH's SP2: 100 processors, EASY."""
ATLAS = ProcessorLog("atlas", "atlas.swf", "", 8, 28.0, None, has_nodes=False)
"""LLNL's Atlas, under Slurm: 1,152 nodes of eight processors, each of which stands for a GPU."""
LOGS = {one.name: one for one in (CURIE, KTH, ATLAS)}


def read_log(log: ProcessorLog, folder: Path, seed: int, days: float | None) -> Load:
    """Read a log; with ``days``, only so many of its span."""
    rng = random.Random(seed)  # noqa: S311 -- not for secrets
    found = read_history(folder / log.file).jobs
    found = tuple(job for job in found if not log.partition or job.partition == log.partition)
    tenants = {user: f"t{rng.randrange(_TENANTS)}" for user in sorted({one.user for one in found})}
    moved = sorted(
        (_of_gpus(job, log, tenants[job.user], rng) for job in found if job.cpus and job.run_s),
        key=lambda job: job.submit_s,
    )
    begin_s, end_s = _busiest(moved, log.days)
    if days is not None:
        end_s = min(end_s, begin_s + days * _DAY_S)
    jobs = tuple(job for job in moved if begin_s <= job.submit_s < end_s)
    return Load(log.name, jobs, sized(jobs, end_s - begin_s), begin_s, end_s, log.has_nodes)


def _of_gpus(job: HistoryJob, log: ProcessorLog, tenant: str, rng: random.Random) -> HistoryJob:
    wanted = -(-job.cpus // log.processors)
    nodes, each = spread(wanted) if log.has_nodes else (1, wanted)
    limit_s = job.time_limit_s or drawn_limit_s(job.run_s, rng)
    return replace(
        job,
        account=tenant,
        user=tenant,
        submit_s=job.submit_s + rng.uniform(-_MOVED_S, _MOVED_S),
        run_s=min(job.run_s, float(limit_s)),
        time_limit_s=int(limit_s),
        gpus={GPU: nodes * each},
        nodes=nodes,
        cpus=0,
        memory_mib=0,
    )


def _busiest(jobs: Sequence[HistoryJob], days: float | None) -> tuple[float, float]:
    first_s, last_s = jobs[0].submit_s, jobs[-1].submit_s + 1.0
    if days is None:
        return first_s, last_s
    span_s = days * _DAY_S
    work_s: dict[int, float] = {}
    for job in jobs:
        nth = int((job.submit_s - first_s) / span_s)
        work_s[nth] = work_s.get(nth, 0.0) + sum(job.gpus.values()) * job.run_s
    best = max(work_s, key=lambda nth: work_s[nth])
    return first_s + best * span_s, min(last_s, first_s + (best + 1) * span_s)
