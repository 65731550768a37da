"""Decides which nodes slots of services are kept off for a while.

On some of them replicas fail; others lack the weights that a node with a free slice has. The job's
tag names them (``avoids=gpu01``), so that they can be told from nodes that the job's user excludes.
They never keep a slot from starting: at most half of the nodes that could run it are avoided, only
for its first minute of waiting, or seconds for weights, and not if Slurm finds no other node.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from slicewise.cluster.language.jobs import WAITING, JobTag, JobView, NodeView, retagged
from slicewise.cluster.language.slurm.interface import JobChange, Target, Tasks
from slicewise.cluster.language.starts import StartTrace, Weights
from slicewise.cluster.rpc.messages import ServiceView
from slicewise.slurm_plugin.rules.common.free_instances import idle, is_usable
from slicewise.slurm_plugin.rules.quota.jobs import wanted_on_nodes

LONGEST_S = 60.0
"""Seconds that a slot waits for another node than those that it avoids."""
FOR_WEIGHTS_S = 5.0
"""Seconds that a slot waits for a node that has its weights. A slice was free at the last look, and
Slurm tries a slot at once, or within ``batch_sched_delay`` (3 s): one that waits longer has lost it
to another job, and would soon have waited as long as a few GiB take from a shared disk.
"""
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


def lacking_weights(
    release: Release,
    traces: Iterable[StartTrace],
    services: Iterable[ServiceView],
    jobs: Iterable[JobView],
    nodes: Iterable[NodeView],
) -> tuple[str, ...]:
    """Return the nodes that the slots might get though others have their weights and free slices.

    ``traces`` are the service's last starts, the newest last. Only nodes of the lowest weight that
    have a free slice count, and slices for which slots of ``services`` wait are not free: what
    nodes' weights say is not changed. None where slices are too few for all slots, or too many
    nodes would have to be avoided. What the slots avoid already stays if it does, too: then Slurm
    need not be asked.
    """
    holders = _holders(traces, release.array_job_id)
    job = next((job for job, _ in _records(release, jobs)), None) if holders else None
    if job is None:
        return ()
    gpus, needed = wanted_on_nodes(job)
    could = [node for node in nodes if could_run(node, job, gpus)]
    rooms = {node.name: room(node, gpus) for node in could}
    lowest = min((node.weight for node in could if rooms[node.name]), default=0)
    free = {node.name for node in could if rooms[node.name] and node.weight == lowest}
    left = sum(rooms[name] for name in free & holders) - _waiting(services, job)
    tag = JobTag.find(job.admin_comment)
    had = frozenset(tag.avoids if tag is not None else ())
    others = had if free - holders <= had and had.isdisjoint(holders) else free - holders
    fits = needed == 1 and left >= len(release.slots) and len(others) <= len(could) // 2
    return tuple(sorted(others)) if fits else ()


def concerns(release: Release, jobs: Iterable[JobView], nodes: Collection[NodeView]) -> bool:
    """Whether any of the slots has to avoid other nodes than it does."""
    return any(
        tag is not None and tag.avoids != _bounded(release.avoid, job, frozenset(), nodes)
        for job, _ in _records(release, jobs)
        for tag in (JobTag.find(job.admin_comment),)
    )


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


def waits_too_long(
    jobs: Iterable[JobView], now_s: float, for_weights: Collection[int] = ()
) -> Mapping[int, frozenset[int]]:
    """Return the slots, by array job id, that have waited too long for another node.

    ``for_weights`` are the arrays whose slots wait for a node with their weights.
    """
    slots_by_array: dict[int, set[int]] = {}
    for job in jobs:
        is_waiting = job.state in WAITING and not job.held and job.array_job_id is not None
        longest_s = FOR_WEIGHTS_S if job.array_job_id in for_weights else LONGEST_S
        if is_waiting and _avoids(job) and now_s - (job.eligible_s or now_s) >= longest_s:
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


def _holders(traces: Iterable[StartTrace], array_job_id: int) -> frozenset[str]:
    """Return the nodes whose last start found the weights there, or copied them.

    Starts of another array may be of another model, and weights of another size than those of the
    last start are not those of today.
    """
    last: dict[str, Weights] = {}
    size = None
    for trace in traces:
        if trace.array_job_id == array_job_id and trace.state == "ready":
            last[trace.node], size = trace.weights, trace.weights.bytes
    return frozenset(
        node
        for node, weights in last.items()
        if weights.start_class in {"node", "copied"} and weights.bytes == size
    )


def room(node: NodeView, gpus: Mapping[str, int]) -> int:
    """Return how many slots with such GPUs find theirs free on the node."""
    counts = (idle(node, name) // count for name, count in gpus.items())
    return 0 if node.blocked else max(0, min(counts, default=0))


def _waiting(services: Iterable[ServiceView], job: JobView) -> int:
    """Return how many slots wait that might take the same slices."""
    return sum(
        slot.state == "released"
        for service in services
        if service.profile in job.gpus
        for slot in service.slots
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
    could = {node.name for node in nodes if could_run(node, job, gpus)} - own
    most = max(0, min(len(could) // 2, len(could) - needed))
    return tuple(sorted([name for name in avoid if name in could][:most]))


def could_run(node: NodeView, job: JobView, gpus: Mapping[str, int]) -> bool:
    """Whether Slurm starts jobs on the node, and it has what the job needs there, free or not."""
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
