"""Remembers which jobs on borrowed quota went back to the queue, and for whose jobs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from slicewise.cluster.language.jobs import ALLOTTED, WAITING, JobView, is_of_service
from slicewise.slurm_plugin.rules.common.qos_names import holder_of, is_borrowed, is_own

_TAKEN_WITHIN_S = 30
"""Seconds before and after which the job that took the place has started: Slurm waits for the end
of the one and starts the other when it looks again."""


@dataclass(frozen=True)
class GaveWay:
    """A run on borrowed quota that was requeued.

    Attributes:
        at_s: when that was seen, in Unix seconds.
        tenant: whose job it is.
        ran_s: for how many seconds it had run; None if that is not known.
        nodes: where.
        tenants: whose jobs have started there on their guaranteed quota since; () if none is known.
    """

    at_s: int
    tenant: str
    ran_s: int | None
    nodes: tuple[str, ...]
    tenants: tuple[str, ...] = ()


def gave_way(
    records: Mapping[int, GaveWay], before: Iterable[JobView], jobs: Iterable[JobView], now_s: int
) -> Mapping[int, GaveWay]:
    """Follow from one look at Slurm's jobs to the next; the result has waiting jobs only.

    Slots of services are left out: their services say why they end.
    """
    ran = {
        job.job_id: job
        for job in before
        if job.state in ALLOTTED and is_borrowed(job.qos) and not is_of_service(job)
    }
    if not ran and not records:
        return records
    gave_way, starts = dict[int, GaveWay](), list[JobView]()
    for job in jobs:
        if job.state in ALLOTTED:
            if is_own(job.qos) and (job.start_s or 0) >= now_s - 2 * _TAKEN_WITHIN_S:
                starts.append(job)
        elif job.state in WAITING:
            if job.job_id in ran:
                gave_way[job.job_id] = _requeued(ran[job.job_id], now_s)
            elif job.job_id in records:
                gave_way[job.job_id] = records[job.job_id]
    return {number: _for_whom(record, starts) for number, record in gave_way.items()}


def _requeued(job: JobView, now_s: int) -> GaveWay:
    ran_s = None if job.start_s is None else max(0, now_s - job.start_s)
    return GaveWay(now_s, holder_of(job), ran_s, job.nodes)


def _for_whom(record: GaveWay, starts: Iterable[JobView]) -> GaveWay:
    if record.tenants:
        return record
    tenants = {
        holder_of(job)
        for job in starts
        if abs((job.start_s or 0) - record.at_s) <= _TAKEN_WITHIN_S
        and not set(record.nodes).isdisjoint(job.nodes)
    }
    return replace(record, tenants=tuple(sorted(tenants - {record.tenant})))
