"""Jobs that could start, as far as is known here, and that Slurm does not start.

Here a job needs quota, and GPUs of some types on some nodes. Slurm knows more: which nodes its user
has named or left out, who may use a reservation, what CPUs and memory are left. Who waits for what
only Slurm sees would hold a loan for nothing, while others could start on it.

Slurm's own reason is no help: it looks at few jobs of a partition, and of others leaves what it
said before.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from cluster.jobs import ALLOTTED, JobView, NodeView
from cluster.units import Millislices
from slurm_plugin.decide.charging import run_cost
from slurm_plugin.decide.demand import free_by_node, is_managed, waits_for_quota, wanted_on_nodes
from slurm_plugin.decide.reclaim.ready import Left
from slurm_plugin.decide.reclaim.room import Need, shape_of

_PATIENCE_S = 300.0
"""So long Slurm may take to come to a job that is far back in its queue."""


def standing_still(
    before: Mapping[int, float],
    jobs: Iterable[JobView],
    nodes: Iterable[NodeView],
    limits: Mapping[str, int],
    *,
    partitions: frozenset[str],
    costs: Mapping[str, Millislices],
    now_s: float,
) -> Mapping[int, float]:
    """Since when each waiting job has had what is known here, by job id: its QOS has room for it
    (``limits``, in millislices: only of these QOS), and GPUs of its types are free on enough nodes.

    ``before`` is this at the look before. Who has stood still for long is followed also while it
    has no quota: else the loan would go to and fro.
    """
    ours = [job for job in jobs if any(job.gpus.values()) and is_managed(job, partitions)]
    room = Counter(limits)
    for job in ours:
        if job.state in ALLOTTED:
            room[job.qos] -= run_cost(job.gpus, costs)
    left = Left(free_by_node(ours, nodes, partitions))
    has_gpus: dict[Need, bool] = {}
    found: dict[int, float] = {}
    for job in ours:
        since_s = before.get(job.job_id, now_s)
        has_quota = room[job.qos] >= run_cost(job.gpus, costs)
        is_followed = has_quota or now_s - since_s >= _PATIENCE_S
        if job.qos not in limits or not is_followed or not waits_for_quota(job):
            continue
        instances, count = wanted_on_nodes(job)
        need = Need(0, shape_of(instances), count)
        if need not in has_gpus:
            has_gpus[need] = bool(left.nodes(need))
        if has_gpus[need]:
            found[job.job_id] = since_s
    return found


def stuck(since_s: Mapping[int, float], now_s: float) -> frozenset[int]:
    """Who comes after those that can start: for every second five minutes, since Slurm may only
    be slow.
    """
    return frozenset(
        job_id for job_id, at_s in since_s.items() if (now_s - at_s) // _PATIENCE_S % 2 == 1
    )
