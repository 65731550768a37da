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

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from slicewise.cluster.language.jobs import JobTag, JobView, NodeView
from slicewise.slurm_plugin.rules.common.costs import job_cost
from slicewise.slurm_plugin.rules.quota.demand import (
    free_by_node,
    free_on_nodes,
    is_managed,
    waits_for_others,
    waits_for_quota,
)
from slicewise.slurm_plugin.rules.quota.holdings import Holdings, by_priority
from slicewise.slurm_plugin.rules.reclaim.busy import need_of
from slicewise.slurm_plugin.rules.reclaim.capacity import Shape
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


class Queued(NamedTuple):
    """A waiting job with its number of untouched array tasks; 0 for a single job.

    When one of these tasks starts, the number changes, and the rest begins a new wait.
    """

    job_id: int
    tasks: int


def standing_still(
    before: Mapping[Queued, float],
    there: Holdings,
    nodes: Iterable[NodeView],
    limits: Mapping[str, int],
    *,
    partitions: frozenset[str],
    now_s: float,
) -> Mapping[Queued, float]:
    """Since when each waiting job could have started by what Slicewise knows.

    Such a job has room in its QOS and on the nodes, besides all jobs before it. ``limits`` are
    millislices by QOS; jobs in other QOS are left out. ``before`` is the result of the previous
    look; times are by the clock of ``now_s``. A job that has stood still for long is followed even
    while it has no quota: otherwise the loan would go to and fro.
    """
    room = Counter(limits)
    for (_, qos), cost in there.by_qos.items():
        room[qos] -= cost
    left = FreeInstances(free_by_node(there.runs, free_on_nodes(nodes, partitions)))
    nowhere: set[tuple[Shape, int]] = set()
    found: dict[Queued, float] = {}
    for job in by_priority(job for job in there.others if waits_for_quota(job)):
        if not any(job.gpus.values()):
            continue
        queued, cost = Queued(job.job_id, len(job.untouched)), job_cost(job, there.costs)
        since_s = before.get(queued, now_s)
        has_quota = room[job.qos] >= cost
        is_followed = has_quota or now_s - since_s >= _PATIENCE_S
        if job.qos not in limits or not is_followed:
            continue
        need = need_of(job)
        if (need.shape, need.nodes) in nowhere:
            continue
        if not (left.place(need) if has_quota else left.nodes(need)):
            nowhere.add((need.shape, need.nodes))
            continue
        room[job.qos] -= cost if has_quota else 0
        found[queued] = since_s
    return found


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
    jobs: Iterable[JobView],
    partitions: frozenset[str],
    now_s: float,
) -> Mapping[int, float]:
    """Until when jobs go first that Slurm keeps waiting though their GPUs are free: by the id of
    the job, of an array by the array's.

    Such a job has stood still for some seconds (``since_s`` is what ``standing_still`` found), and
    no job before it waits for GPUs of its types. It goes first for four minutes; if it waits
    longer, something else keeps it. ``before`` is the result of the last look, and its last hour
    stays: so nobody goes first more often by a hold, or by cancelling a task of an array. A job
    that takes whole nodes may want more than GPUs, and does not go first.
    """
    found = {key: at_s for key, at_s in before.items() if now_s < at_s - FIRST_S + _AGAIN_S}
    if all(now_s - at_s < PASSED_OVER_S for at_s in since_s.values()):
        return found
    wanted: set[str] = set()
    for job in by_priority(job for job in jobs if is_managed(job, partitions)):
        kinds = {kind for kind, count in job.gpus.items() if count}
        since = since_s.get(Queued(job.job_id, len(job.untouched)))
        if since is None:
            wanted |= kinds if waits_for_others(job) else set()
        elif now_s - since >= PASSED_OVER_S and not kinds & wanted and not _takes_nodes(job):
            found.setdefault(job.array_job_id or job.job_id, now_s + FIRST_S)
    return found


def _takes_nodes(job: JobView) -> bool:
    tag = JobTag.find(job.admin_comment)
    return tag is not None and tag.whole_millislices > 0
