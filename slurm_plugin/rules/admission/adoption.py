"""Decides which waiting jobs get their tenant's QOS when a site switches over to mode enforce.

Jobs that were submitted before are in the site's own QOS. Once the gate is closed they would wait
for ever with reason QOSGrpBilling.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from slicewise.cluster.language.jobs import JobState, JobTag, JobView
from slicewise.cluster.language.slurm.interface import Association, Target, target_of
from slicewise.slurm_plugin.rules.common.qos_names import is_ours, qos_name
from slicewise.slurm_plugin.rules.quota.jobs import is_managed

_WAITS = frozenset({JobState.PENDING, JobState.SPECIAL_EXIT})


@dataclass(frozen=True)
class Adoption:
    """What becomes of the waiting jobs in managed partitions that are not in a QOS of Slicewise.

    Attributes:
        moves: the tenant's own QOS, by job or tasks of an array.
        no_tenant: jobs whose account is no tenant: the gate keeps them.
        no_qos: jobs whose tenant may not use its own QOS in this cluster yet.
        untyped: jobs that ask for GPUs of any type: neither gate nor limits count them.
    """

    moves: Mapping[Target, str] = field(hash=False)
    no_tenant: tuple[JobView, ...]
    no_qos: tuple[JobView, ...]
    untyped: tuple[JobView, ...]


def adoption(
    jobs: Iterable[JobView],
    partitions: frozenset[str],
    tenants: Collection[str],
    associations: Iterable[Association],
) -> Adoption:
    """Decide on these jobs; ``tenants`` are the ledger's, ``associations`` this cluster's.

    A QOS of a tenant's name proves nothing: a removed tenant or another cluster on the same
    slurmdbd may have left it. Jobs without GPUs pass the gate and stay as they are; so do jobs that
    the daemon has still to decide. A decided job is in a QOS of the site only if someone moved it.
    """
    ready = {row.account for row in associations if qos_name(row.account) in row.qos}
    waiting = [
        job
        for job in jobs
        if job.state in _WAITS and not is_ours(job.qos) and is_managed(job, partitions)
        if not job.is_doubtful and not _is_undecided(job)
    ]
    typed = [job for job in waiting if job.gpus and not job.untyped_gpus]
    of_tenants = [job for job in typed if job.account in tenants]
    return Adoption(
        {target_of(job): qos_name(job.account) for job in of_tenants if job.account in ready},
        tuple(job for job in typed if job.account not in tenants),
        tuple(job for job in of_tenants if job.account not in ready),
        tuple(job for job in waiting if job.untyped_gpus),
    )


def _is_undecided(job: JobView) -> bool:
    tag = JobTag.find(job.admin_comment)
    return tag is not None and tag.is_undecided
