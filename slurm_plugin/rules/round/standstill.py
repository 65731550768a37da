"""Finds jobs that could start by what Slicewise knows, and that Slurm does not start.

To Slicewise a job needs quota, and GPUs of some types on some nodes. Slurm knows more: nodes that
the user has named or left out, who may use a reservation, what CPUs and memory are left. A job that
waits for something only Slurm sees would hold a loan for nothing, while others could start on it.

Slurm's own reason is no help: Slurm looks at few jobs of a partition, and leaves the old reasons of
the others as they are.

Slurm may also pass over a job whose GPUs are free: backfill reserves whole nodes for the jobs
before it, whatever type of GPU they wait for. Where a node has several types, jobs that wait for
one of them so keep those of another idle.
"""

from collections.abc import Collection, Iterable, Mapping
from math import inf
from typing import NamedTuple

from slicewise.cluster.language.jobs import JobTag, JobView, NodeView
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.common.costs import job_cost
from slicewise.slurm_plugin.rules.common.qos_names import borrowed_qos, is_borrowed
from slicewise.slurm_plugin.rules.quota.jobs import JobsByHolder, Shape, place_in_order
from slicewise.slurm_plugin.rules.quota.nodes import free_by_node, free_on_nodes
from slicewise.slurm_plugin.rules.quota.waits import waits_of
from slicewise.slurm_plugin.rules.reclaim.startable import FreeInstances

_PATIENCE_S = 300.0
"""Seconds that Slurm may take to reach a job that is far back in its queue."""
_LONGEST_PERIODS = 12
"""So many of these periods after its turn a job has the next one at the latest."""
FIRST_S, _AGAIN_S = 240.0, 3600.0
"""Seconds for which a job goes first, and from then on until it may again."""
PASSED_OVER_S = 5.0
"""Seconds after which Slurm's main scheduler has started what it starts by itself: it runs when a
job ends or a limit changes, and again two seconds later. Backfill comes to more jobs within half a
minute, but not to those whose nodes it has reserved for jobs of other types, and instances would be
idle until then. Nobody is put back who waits for GPUs of the same types."""
_ANY, _LAST = "", (inf, 0)
"""Stand for GPUs of any type, and for a place behind all jobs."""


class Queued(NamedTuple):
    """A waiting job with its number of untouched array tasks; 1 for a single job.

    When one of these tasks starts, the number changes, and the rest begins a new wait.
    """

    job_id: int
    tasks: int


def standing_still(
    before: Mapping[Queued, float],
    by_holder: JobsByHolder,
    nodes: Iterable[NodeView],
    limits: Mapping[str, int],
    *,
    partitions: frozenset[str],
    now_s: float,
) -> Mapping[Queued, float]:
    """Since when each job that waits for a loan could have started by what Slicewise knows.

    Such a job has room in its QOS and on the nodes, besides all jobs before it. ``limits`` are
    millislices by QOS; jobs in other QOS are left out. ``before`` is the result of the previous
    look; times are by the clock of ``now_s``. A job that has stood still for long is followed even
    while it has no quota: otherwise the loan would go to and fro.
    """
    free = free_by_node(by_holder.runs, free_on_nodes(nodes, partitions))
    kinds = {
        gres_type for on_node in free.values() for gres_type, count in on_node.items() if count > 0
    }
    if not kinds:
        return {}
    room = _room(by_holder, limits)
    long = {queued.job_id for queued, since_s in before.items() if now_s - since_s >= _PATIENCE_S}
    # Most jobs are left out at once: there may be tens of thousands, and they are seen each second.
    seen = (
        job
        for qos, queue in by_holder.queues.items()
        if is_borrowed(qos) and qos in limits
        for job in queue.waiting
        if job.waits.for_quota and (room[qos] >= job.cost_millislices or job.job_id in long)
        if job.shape and all(gres_type in kinds for gres_type, _ in job.shape)
    )
    left = FreeInstances(free)
    nowhere: set[tuple[Shape, int]] = set()
    since: dict[Queued, float] = {}
    for job in sorted(seen, key=lambda job: job.place):
        qos, cost = borrowed_qos(job.tenant), job.cost_millislices
        queued = Queued(job.job_id, job.tasks)
        since_s = before.get(queued, now_s)
        has_quota = room[qos] >= cost
        is_followed = has_quota or now_s - since_s >= _PATIENCE_S
        if job.alike in nowhere or not is_followed:
            continue
        if not (left.place(job) if has_quota else left.nodes(job)):
            nowhere.add(job.alike)
            continue
        room[qos] -= cost if has_quota else 0
        since[queued] = since_s
    return since


def _room(by_holder: JobsByHolder, limits: Mapping[str, int]) -> dict[str, int]:
    """What runs leave of the limits, by QOS."""
    return {qos: limit - by_holder.held.in_qos.get(qos, 0) for qos, limit in limits.items()}


def _kinds(job: JobView) -> Collection[str]:
    """The types of the GPUs that a job asks for."""
    return [gres_type for gres_type, count in job.gpus.items() if count]


def stuck(since_s: Mapping[Queued, float], now_s: float) -> frozenset[int]:
    """Ids of jobs that come after jobs that can start.

    A job that stands still is none of them for five minutes now and then, since Slurm may only be
    slow: each time after twice as long, after an hour at the latest.
    """
    return frozenset(
        queued.job_id
        for queued, at_s in since_s.items()
        if not _is_tried(int((now_s - at_s) // _PATIENCE_S))
    )


def _is_tried(period: int) -> bool:
    """Whether a job that stands still has its turn in this period: 0, 2, 6, 12, 14, 24, ..."""
    return period % _LONGEST_PERIODS == 0 or (period + 2).bit_count() == 1


def first_until_s(
    before: Mapping[int, float],
    since_s: Mapping[Queued, float],
    by_holder: JobsByHolder,
    limits: Mapping[str, int],
    now_s: float,
) -> Mapping[int, float]:
    """Until when jobs go first that Slurm keeps waiting though their GPUs are free: by the id of
    the job, of an array by the array's.

    Such a job has stood still for some seconds (``since_s`` is what ``standing_still`` found), and
    no job before it waits for GPUs of its types. It goes first for four minutes; if it waits
    longer, something else keeps it. ``before`` is the result of the last look, and its last hour
    stays: so nobody goes first more often by a hold, or by cancelling a task of an array. A job
    that takes whole nodes may want more than GPUs, and does not go first; what is before it of all
    types it waits for. ``limits`` are millislices by QOS.
    """
    passed = {key: at_s for key, at_s in before.items() if now_s < at_s - FIRST_S + _AGAIN_S}
    late = {queued.job_id for queued, at_s in since_s.items() if now_s - at_s >= PASSED_OVER_S}
    over = [
        job
        for job in (by_holder.others if late else ())
        if job.job_id in late and _key(job) not in passed and not _takes_nodes(job)
    ]
    if not over:
        return passed
    still, last = {queued.job_id for queued in since_s}, max(map(place_in_order, over))
    before_them = (job for job in by_holder.others if place_in_order(job) < last)
    # Slurm keeps whole nodes for who takes them, even where GPUs of its types are free.
    others = (job for job in before_them if job.job_id not in still or _takes_nodes(job))
    firsts = _firsts(others, _room(by_holder, limits), by_holder.costs)
    for job in over:
        place = place_in_order(job)
        if all(place < firsts.get(gres_type, _LAST) for gres_type in (*_kinds(job), _ANY)):
            passed[_key(job)] = now_s + FIRST_S
    return passed


def _firsts(
    jobs: Iterable[JobView], room: Mapping[str, int], costs: Mapping[str, Millislices]
) -> Mapping[str, tuple[float, int]]:
    """The place in Slurm's order of the first job that waits for GPUs of each type, and of the
    first one that waits for whole nodes (``_ANY``).

    Slurm's reason is not enough: a job whose limit has just grown keeps the old one until backfill
    comes to it, which then keeps GPUs for it.
    """
    firsts: dict[str, tuple[float, int]] = {}
    for job in jobs:
        has_quota = room.get(job.qos, -1) >= job_cost(job, costs)
        waits = waits_of(job)
        if waits.for_gpus or (has_quota and waits.for_quota):
            place = place_in_order(job)
            for gres_type in (_ANY,) if _takes_nodes(job) else _kinds(job):
                firsts[gres_type] = min(firsts.get(gres_type, place), place)
    return firsts


def _key(job: JobView) -> int:
    return job.array_job_id or job.job_id


def _takes_nodes(job: JobView) -> bool:
    tag = JobTag.find(job.admin_comment)
    return tag is not None and tag.whole_millislices > 0
