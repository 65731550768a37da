"""Counts slots that quota kept back, and no longer does, among the jobs that wait for it.

The launcher wants them, and releases them once it sees that there is room. As held tasks they would
want nothing. So the round on the look that shows the end of something else of their tenant would
lend all that came free to others, a moment before these slots are released.
"""

from collections.abc import Mapping
from dataclasses import replace

from slicewise.cluster.language.jobs import WAITING, JobView
from slicewise.slurm_plugin.rules.common.released_soon import ReleasedSoon
from slicewise.slurm_plugin.rules.quota.waits import QOS_SLICES


def kept_back_waiting(
    jobs: tuple[JobView, ...], soon: Mapping[int, ReleasedSoon]
) -> tuple[JobView, ...]:
    """The jobs, with held slots that are released ``soon`` as tasks that wait in their QOS.

    ``soon`` is by array job id. No such slot waits since a known moment: it gets no turn, and
    nothing is late for it. Others of its array that share its record are left out: they want
    nothing.
    """
    if not soon:
        return jobs
    return tuple(
        _waiting(job, released)
        if job.held and job.state in WAITING and (released := soon.get(job.array_job_id or 0))
        else job
        for job in jobs
    )


def _waiting(job: JobView, released: ReleasedSoon) -> JobView:
    untouched = job.untouched & released.slots
    if not untouched and job.task_index not in released.slots:
        return job
    return replace(
        job,
        untouched=untouched,
        held=False,
        qos=released.qos,
        reason=QOS_SLICES,
        submit_s=None,
        eligible_s=None,
    )
