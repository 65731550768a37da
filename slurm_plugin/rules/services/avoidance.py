"""Decides which nodes slots of services are kept off for a while, since replicas fail there.

The job's tag names them (``avoids=gpu01``), so that they can be told from nodes that the job's user
excludes. They never keep a slot from starting: at most half of the nodes that could run it are
avoided, only for its first minute of waiting, and not if Slurm finds no other node for it.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from slicewise.cluster.language.jobs import WAITING, JobTag, JobView, NodeView, retagged
from slicewise.cluster.language.slurm.interface import JobChange, Target, Tasks
from slicewise.slurm_plugin.rules.common.free_instances import is_usable
from slicewise.slurm_plugin.rules.quota.jobs import wanted_on_nodes

LONGEST_S = 60.0
"""Seconds that a slot waits for another node than those that it avoids."""
_NO_NODE = "BadConstraints"
"""Slurm's reason for a job that no node can run; Slurm holds such a job."""


@dataclass(frozen=True)
class Release:
    """Slots of an array that are about to start, or wait, and the nodes that they are to avoid.

    Attributes:
        avoid: names of nodes, those first that matter most.
    """

    array_job_id: int
    slots: frozenset[int]
    avoid: Sequence[str] = ()


def concerns(release: Release, jobs: Iterable[JobView]) -> bool:
    """Whether any of the slots has to avoid a node, or has avoided one."""
    if not release.slots:
        return False
    return bool(release.avoid) or any(_avoids(job) for job, _ in _records(release, jobs))


def avoidance_changes(
    release: Release,
    jobs: Iterable[JobView],
    excluded: Mapping[int, frozenset[str]],
    nodes: Collection[NodeView],
) -> Mapping[Target, JobChange]:
    """Return the changes of tags and excluded nodes, of slots for which anything changes.

    ``excluded`` are the excluded nodes by job id; a job that it lacks is left alone.
    """
    changes: dict[Target, JobChange] = {}
    for job, slots in _records(release, jobs):
        tag = JobTag.find(job.admin_comment)
        if tag is None or job.job_id not in excluded:
            continue
        own = excluded[job.job_id] - frozenset(tag.avoids)
        avoids = _bounded(release.avoid, job, own, nodes)
        if avoids == tag.avoids:
            continue
        changes[Tasks(release.array_job_id, slots)] = JobChange(
            excluded_nodes=own.union(avoids),
            admin_comment=retagged(job.admin_comment, replace(tag, avoids=avoids).text()),
        )
    return changes


def waits_too_long(jobs: Iterable[JobView], now_s: float) -> Mapping[int, frozenset[int]]:
    """Return the slots, by array job id, that have waited for another node for a minute."""
    slots_by_array: dict[int, set[int]] = {}
    for job in jobs:
        is_waiting = job.state in WAITING and not job.held and job.array_job_id is not None
        if is_waiting and _avoids(job) and now_s - (job.eligible_s or now_s) >= LONGEST_S:
            slots_by_array.setdefault(job.array_job_id or 0, set()).update(_indices(job))
    return {array: frozenset(slots) for array, slots in slots_by_array.items()}


def avoiding(jobs: Iterable[JobView]) -> tuple[Release, ...]:
    """Return the waiting slots that avoid a node, held ones too; they are to avoid none."""
    slots_by_array: dict[int, set[int]] = {}
    for job in jobs:
        if job.array_job_id is not None and job.state in WAITING and _avoids(job):
            slots_by_array.setdefault(job.array_job_id, set()).update(_indices(job))
    return tuple(
        Release(array, frozenset(slots)) for array, slots in sorted(slots_by_array.items())
    )


def _bounded(
    avoid: Sequence[str], job: JobView, own: frozenset[str], nodes: Iterable[NodeView]
) -> tuple[str, ...]:
    """Return the nodes that the job avoids, sorted.

    They are at most half of those that could run a part of it, and leave as many as it needs.
    """
    if job.reason == _NO_NODE:
        return ()
    gpus, needed = wanted_on_nodes(job)
    could = {node.name for node in nodes if _could_run(node, job, gpus)} - own
    most = max(0, min(len(could) // 2, len(could) - needed))
    return tuple(sorted([name for name in avoid if name in could][:most]))


def _could_run(node: NodeView, job: JobView, gpus: Mapping[str, int]) -> bool:
    has_gpus = all(node.gpus.get(name, 0) >= count for name, count in gpus.items())
    return has_gpus and is_usable(node) and node.is_in(frozenset(job.partition.split(",")))


def _records(release: Release, jobs: Iterable[JobView]) -> Iterator[tuple[JobView, frozenset[int]]]:
    """Yield the records of the slots in Slurm, each with its slots."""
    for job in jobs:
        slots = _indices(job) & release.slots
        if slots and job.array_job_id == release.array_job_id and job.state in WAITING:
            yield job, slots


def _indices(job: JobView) -> frozenset[int]:
    return job.untouched if job.task_index is None else frozenset({job.task_index})


def _avoids(job: JobView) -> bool:
    tag = JobTag.find(job.admin_comment)
    return tag is not None and bool(tag.avoids)
