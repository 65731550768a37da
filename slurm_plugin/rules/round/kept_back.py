"""Counts the slots that quota keeps from starting among the jobs that wait for a loan.

The launcher wants them, and nobody releases them while their tenant holds all that it may ever
borrow. As held tasks they would want nothing. So when something else of the tenant ended, the same
round would lend all that comes free to others, a moment before these slots are released.
"""

from collections.abc import Mapping
from dataclasses import replace

from slicewise.cluster.language.jobs import WAITING, JobView
from slicewise.slurm_plugin.rules.common.qos_names import borrowed_qos, holder_of
from slicewise.slurm_plugin.rules.quota.waits import QOS_SLICES


def kept_back_waiting(
    jobs: tuple[JobView, ...], kept_back: Mapping[int, frozenset[int]]
) -> tuple[JobView, ...]:
    """The jobs, with held slots that are ``kept_back`` as tasks that wait for borrowed quota.

    ``kept_back`` has their indices by array job id. No such slot waits since a known moment: it
    gets no turn, and nothing is late for it. Others of its array that share its record are left
    out: they want nothing.
    """
    if not any(kept_back.values()):
        return jobs
    return tuple(_waiting(job, kept_back.get(job.array_job_id or 0, frozenset())) for job in jobs)


def _waiting(job: JobView, slots: frozenset[int]) -> JobView:
    if not job.held or job.state not in WAITING:
        return job
    untouched = job.untouched.intersection(slots)
    if not untouched and job.task_index not in slots:
        return job
    return replace(
        job,
        untouched=untouched,
        held=False,
        qos=borrowed_qos(holder_of(job)),
        reason=QOS_SLICES,
        submit_s=None,
        eligible_s=None,
    )
