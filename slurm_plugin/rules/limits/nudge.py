"""Decides by which change of a job slurmctld is told to schedule, once a limit has grown.

slurmctld schedules after a submission, an end and each change of a job, and otherwise every
``sched_interval`` (a minute by default) and ``bf_interval``. A QOS limit that grows is none of
these: jobs that waited for it would go on waiting. Any change that it accepts will do, also one to
the value that is there, so a waiting job is given the QOS that it has.
"""

from collections.abc import Collection, Iterable, Mapping

from slicewise.cluster.language.jobs import JobState, JobTag, JobView
from slicewise.cluster.language.slurm.interface import JobChange, Target, Tasks, target_of


def nudge(jobs: Iterable[JobView], changed: Collection[str]) -> Mapping[Target, JobChange]:
    """Return a change of one job that waits in one of these QOS; {} if none does.

    slurmctld then looks at all jobs. Jobs without a tag are not ours to change. Of tasks that share
    a record Slurm would make another record for the one that is changed: so they come last, and of
    them the first.
    """
    waiting = (
        job
        for job in jobs
        if job.state is JobState.PENDING
        and job.qos in changed
        and not (job.held or job.is_doubtful)
        and JobTag.find(job.admin_comment) is not None
    )
    job = min(waiting, key=_rank, default=None)
    if job is None:
        return {}
    target = target_of(job)
    if isinstance(target, Tasks):
        target = Tasks(target.array_job_id, frozenset({min(target.indices)}))
    return {target: JobChange(qos=job.qos)}


def _rank(job: JobView) -> tuple[bool, int, int]:
    return len(job.untouched) > 1, -job.priority, job.job_id
