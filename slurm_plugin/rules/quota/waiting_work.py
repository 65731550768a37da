"""What of an account waits for Slicewise's quota."""

from collections.abc import Iterable
from dataclasses import dataclass

from slicewise.cluster.language.jobs import WAITING, JobState, JobTag, JobView, is_resting
from slicewise.slurm_plugin.rules.common.qos_names import is_ours
from slicewise.slurm_plugin.rules.quota.jobs import is_managed


@dataclass(frozen=True)
class WaitingWork:
    """What of an account waits for Slicewise's quota, and starts no more without one.

    Attributes:
        jobs: jobs and array tasks; slots of services that rest are left out.
        services: names of services that have slots which do not run.
    """

    jobs: int = 0
    services: tuple[str, ...] = ()


def waiting_work(jobs: Iterable[JobView], account: str, partitions: frozenset[str]) -> WaitingWork:
    """Return what of an account waits in the managed ``partitions``."""
    ours = [
        job
        for job in jobs
        if job.account == account and is_ours(job.qos) and is_managed(job, partitions)
    ]
    pending = (job for job in ours if job.state is JobState.PENDING and not is_resting(job))
    tags = (JobTag.find(job.admin_comment) for job in ours if job.state in WAITING)
    services = {tag.service for tag in tags if tag is not None and tag.service is not None}
    return WaitingWork(sum(job.tasks for job in pending), tuple(sorted(services)))
