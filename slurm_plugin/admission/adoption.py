"""Decides which waiting jobs get their tenant's QOS when a site switches over to mode enforce.

Jobs that were submitted before are in the site's own QOS. Once the gate is closed they would wait
for ever with reason QOSGrpBilling.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from cluster.language.jobs import JobState, JobTag, JobView
from cluster.slurm.interface import Target, target_of
from slurm_plugin.common.qos_names import is_ours, qos_name
from slurm_plugin.quota.demand import is_managed

_UNTYPED = "gres/gpu"
_WAITS = frozenset({JobState.PENDING, JobState.SPECIAL_EXIT})


@dataclass(frozen=True)
class Adoption:
    """What becomes of the waiting jobs in managed partitions that are not in a QOS of Slicewise.

    Attributes:
        moves: the tenant's own QOS, by job or tasks of an array.
        no_tenant: jobs whose account has no such QOS: the gate keeps them.
        untyped: jobs whose GPUs have no type: neither gate nor limits count them.
    """

    moves: Mapping[Target, str] = field(hash=False)
    no_tenant: tuple[JobView, ...]
    untyped: tuple[JobView, ...]


def adoption(jobs: Iterable[JobView], partitions: frozenset[str], qos: Collection[str]) -> Adoption:
    """Decide on these jobs; ``qos`` are the names of all QOS that Slurm has.

    Jobs without GPUs pass the gate and stay as they are; so do jobs that admission has decided.
    """
    waiting = [
        job
        for job in jobs
        if job.state in _WAITS and not is_ours(job.qos) and is_managed(job, partitions)
        if not job.is_doubtful and JobTag.find(job.admin_comment) is None
    ]
    typed = [job for job in waiting if job.gpus]
    return Adoption(
        {target_of(job): qos_name(job.account) for job in typed if qos_name(job.account) in qos},
        tuple(job for job in typed if qos_name(job.account) not in qos),
        tuple(job for job in waiting if not job.gpus and job.tres.get(_UNTYPED, "0") != "0"),
    )
