"""Finds jobs that slicewise.lua has not marked: if there are any, slurmctld did not run it."""

from collections.abc import Iterable
from dataclasses import dataclass

from slicewise.cluster.language.jobs import ALLOTTED, WAITING, JobTag, JobView


@dataclass(frozen=True)
class Unadmitted:
    """Jobs with GPUs that Slicewise has not admitted.

    Attributes:
        count: number of jobs; each task of an array counts.
        newest_s: when the newest was submitted, in Unix seconds; None if there is none.
        newest: job id of the newest; 0 if there is none.
    """

    count: int = 0
    newest_s: int | None = None
    newest: int = 0


def unadmitted(
    jobs: Iterable[JobView], partitions: frozenset[str], since_s: float = 0.0
) -> Unadmitted:
    """Waiting and running jobs of these partitions that Slicewise has not admitted.

    ``since_s`` is the Unix second from which on slicewise.lua was to be asked: jobs of before are
    no fault of its.
    """
    waiting = [
        job
        for job in jobs
        if (job.state in WAITING or job.state in ALLOTTED)
        and (job.submit_s is None or job.submit_s >= since_s)
        and not partitions.isdisjoint(job.partition.split(","))
        and (job.gpus or any(name.startswith("gres/gpu") for name in job.tres))
        and JobTag.find(job.admin_comment) is None
    ]
    if not waiting:
        return Unadmitted()
    newest = max(waiting, key=lambda job: (job.submit_s or 0, job.job_id))
    return Unadmitted(sum(job.tasks for job in waiting), newest.submit_s, newest.job_id)
