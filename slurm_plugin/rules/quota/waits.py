"""What a waiting job waits for, by Slurm's reason: asked once of each job and look."""

from functools import lru_cache
from typing import NamedTuple

from slicewise.cluster.language.jobs import SHAPES_NODE, WAITING, JobView
from slicewise.slurm_plugin.rules.common.qos_names import is_borrowed, is_ours

_NOT_BEFORE = frozenset({"BeginTime", "Dependency", "DependencyNeverSatisfied"})
"""Slurm's reasons for jobs that could not start now even if everything were free."""

_NO_QUOTA_HELPS = frozenset(
    {
        "AccountNotAllowed",
        "AccountingPolicy",
        "BadConstraints",
        "BurstBufferOperation",
        "BurstBufferResources",
        "BurstBufferStageIn",
        "Constraints",
        "DeadLine",
        "FedJobLock",
        "FrontEndDown",
        "InvalidAccount",
        "InvalidQOS",
        "JobArrayTaskLimit",
        "Licenses",
        "MpiPortsBusy",
        "NvidiaImexChannels",
        "PartitionConfig",
        "PartitionDown",
        "PartitionInactive",
        "PartitionNodeLimit",
        "PartitionTimeLimit",
        "PowerNotAvail",
        "PowerReserved",
        "Reservation",
        "ReservationDeleted",
        "ReservationInvalid",
    }
)
"""Slurm's reasons for jobs that more slices would not start: their array's own limit is reached,
they wait for something else, or their partition, reservation, account or QOS does not allow them.
"""

_LIMITS = ("Assoc", "QOS", "Max")
"""Prefixes of Slurm's reasons for jobs over a limit: on a type, a budget, the jobs of one user, ...
"""

_SENTENCES = ("Reservation_", "uid_")
"""Prefixes of the sentences that Slurm gives as reason if a reservation is gone, or if the job's
user may not use a partition.
"""

NODES_AWAY = "ReqNodeNotAvail"
_NO_NODES = (NODES_AWAY, "Nodes_required_for_job_are_DOWN")
"""Prefixes of Slurm's reasons for jobs that need nodes which are down, drained or reserved. Details
follow the prefix. The second one is also said of jobs behind those of another partition."""

QOS_SLICES = "QOSGrpBilling"
"""The only limit that more slices help, in a tenant's QOS; in any other QOS it is the gate's."""
QOS_TYPES = "QOSGrpGRES"
"""The reason of a job for whose GPU type its tenant's guarantee has no more instances: the tenant's
own QOS limits them. Where it may borrow, the job may start in the borrowed QOS."""
QOS_BUDGET = "QOSGrpBillingRunMinutes"
"""The reason of a job for which its QOS' part of a budget is too small."""

_FOR_OTHERS = frozenset({"Priority", "Resources"})
"""Slurm's reasons for jobs for which nothing is free."""

_REASONS = 1 << 12
"""So many reasons are remembered: thousands of jobs have the same few."""


class WaitsFor(NamedTuple):
    """What lets a waiting job start; nothing does while it is held, or may not start yet.

    Attributes:
        could_start: whether it could start now if there were room.
        for_quota: whether it could start now if its tenant might hold more; GPUs may have to come
            free. A job whose nodes are away could not: what was kept for it would lie idle until
            they are back.
        for_types: whether its tenant's guarantee covers no more of its GPU type: what a loan gives
            back does not help it.
        for_budget: whether it could start now if more of its budget were left.
        for_gpus: whether it would start if GPU instances came free.
        for_nodes: whether nodes that it needs are down, drained or reserved. Those that only await
            a repartition of their GPUs do not count.
        for_room: whether it lacks nothing but slices, budget or free GPUs.
        names_a_limit: whether Slurm's reason is a limit of an association or a QOS.
    """

    could_start: bool = False
    for_quota: bool = False
    for_types: bool = False
    for_budget: bool = False
    for_gpus: bool = False
    for_nodes: bool = False
    for_room: bool = False
    names_a_limit: bool = False


NOT_NOW = WaitsFor()
FOR_QUOTA = WaitsFor(could_start=True, for_quota=True, for_room=True)


def waits_of(job: JobView) -> WaitsFor:
    """What the job waits for; ``NOT_NOW`` of one that runs, has ended or is held."""
    if job.held or job.state not in WAITING:
        return NOT_NOW
    return _waits(job.reason, is_ours(job.qos), is_borrowed(job.qos))


@lru_cache(_REASONS)
def _waits(reason: str, in_ours: bool, in_borrowed: bool) -> WaitsFor:
    """What a job waits for that is not held, by Slurm's reason and whose QOS it is in."""
    if reason in _NOT_BEFORE:
        return NOT_NOW
    for_types = reason == QOS_TYPES and not in_borrowed
    is_by_quota = reason == QOS_SLICES or for_types
    names_a_limit, is_sentence = reason.startswith(_LIMITS), reason.startswith(_SENTENCES)
    for_nodes = reason.startswith(_NO_NODES) and SHAPES_NODE not in reason
    is_helped = reason not in _NO_QUOTA_HELPS and not is_sentence
    is_at_gate = is_by_quota and not in_ours
    is_away = for_nodes and reason.startswith(NODES_AWAY)
    is_within = is_by_quota or not names_a_limit
    return WaitsFor(
        could_start=True,
        for_quota=is_helped and is_within and not is_at_gate and not is_away,
        for_types=for_types,
        for_budget=reason == QOS_BUDGET,
        for_gpus=reason in _FOR_OTHERS or SHAPES_NODE in reason,
        for_nodes=for_nodes,
        for_room=is_helped
        and not for_nodes
        and (not names_a_limit or reason in {QOS_SLICES, QOS_BUDGET}),
        names_a_limit=names_a_limit,
    )
