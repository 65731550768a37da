"""Computes the demand for instances, waiting and expected, and the duration of a repartition."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from slicewise.cluster.language.gpus.mig_profiles import Board
from slicewise.cluster.language.gpus.repartitions import (
    RepartitionStep,
)
from slicewise.cluster.language.jobs import JobView, NodeView, RunRecord, is_of_service
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.common.costs import job_cost
from slicewise.slurm_plugin.rules.common.qos_names import holder_of, is_own
from slicewise.slurm_plugin.rules.mig.guaranteed_shapes import Needs
from slicewise.slurm_plugin.rules.mig.instance_value import InstanceDemand, InstanceRequest
from slicewise.slurm_plugin.rules.mig.node_checks import unfit
from slicewise.slurm_plugin.rules.quota.attainable import highest_limits
from slicewise.slurm_plugin.rules.quota.demand import take_types, types_left, within_guarantees
from slicewise.slurm_plugin.rules.quota.jobs import JobsByHolder, is_managed
from slicewise.slurm_plugin.rules.quota.tenants import guaranteed_quota, guaranteed_types
from slicewise.slurm_plugin.rules.quota.types import Policy
from slicewise.slurm_plugin.rules.quota.waits import waits_of
from slicewise.slurm_plugin.rules.slurm_config.gres import ProfileKind

_PARTS = (RepartitionStep.CUT, RepartitionStep.TELL, RepartitionStep.VERIFY, RepartitionStep.RESUME)
"""Steps during which drained instances are not available."""
_NEWEST, _ENOUGH = 20, 3
REPARTITION_S = 60
"""Seconds that a repartition is assumed to take until some were measured."""
MOVE_S = 60
"""Seconds that a move is assumed to take until some were measured."""


class Awaited(NamedTuple):
    """An instance for which a job waits.

    Attributes:
        waited_s: seconds for which the job has waited.
        is_guaranteed: whether the job is in its tenant's own QOS.
        is_owed: whether its tenant is guaranteed this very instance, by type (``owed_tasks``).
    """

    gres_type: str
    waited_s: int
    is_guaranteed: bool
    is_owed: bool = False


def profiles_by_type(board: Board, types: Mapping[ProfileKind, str]) -> Mapping[str, str]:
    """Profile names of that board, by the site's GRES types."""
    return {
        gres_type: kind.profile
        for kind, gres_type in types.items()
        if kind.model == board.model and kind.profile in board.profiles
    }


def demand(
    waiting: Sequence[Awaited],
    in_use: Mapping[str, float],
    needed: Needs,
    elsewhere: Mapping[str, int],
    profiles: Mapping[str, str],
) -> InstanceDemand:
    """The demand for one board. ``profiles`` are its profile names by GRES type.

    ``waiting``, ``in_use`` (see the functions below) and ``needed`` by guarantees are those of the
    whole cluster. ``elsewhere`` are instances on nodes on which nothing can be planned: they serve
    their part of the demand.
    """
    mine = [
        InstanceRequest(
            profiles[awaited.gres_type],
            awaited.waited_s,
            is_guaranteed=awaited.is_guaranteed,
            is_owed=awaited.is_owed,
        )
        for awaited in waiting
        if awaited.gres_type in profiles
    ]
    count = Counter(request.profile for request in mine)
    expected = {
        profile: in_use.get(gres_type, 0.0) + count[profile] - elsewhere.get(gres_type, 0)
        for gres_type, profile in profiles.items()
    }
    return InstanceDemand(
        tuple(mine),
        {profile: mean for profile, mean in expected.items() if mean > 0},
        _not_elsewhere(needed.claimed, elsewhere, profiles),
        _not_elsewhere(needed.all, elsewhere, profiles),
    )


def _not_elsewhere(
    needed: Mapping[str, int], elsewhere: Mapping[str, int], profiles: Mapping[str, str]
) -> Mapping[str, int]:
    return {
        profile: most
        for gres_type, profile in profiles.items()
        if (most := needed.get(gres_type, 0) - elsewhere.get(gres_type, 0)) > 0
    }


def waiting_for_instances(
    jobs: Iterable[JobView],
    partitions: frozenset[str],
    room: Mapping[str, int],
    costs: Mapping[str, Millislices],
    now_s: float,
    *,
    owed: Mapping[int, int],
    busy: Mapping[int, int],
) -> Iterator[Awaited]:
    """Each instance for which a job waits because other jobs hold those that exist.

    Jobs that wait for quota, a time or another job do not count: an instance would not help them.
    Those that are ``owed`` theirs do count while their tenant takes quota back, and tasks within
    guarantees whose GPUs are ``busy`` while their quota is lent meanwhile.
    Slurm gives the reason Priority also to tasks that will be over their tenant's quota once the
    first tasks run. So for each account no more tasks count than its ``room`` in millislices lets
    run.
    """
    left = dict(room)
    those = (
        job
        for job in jobs
        if (waits_of(job).for_gpus or job.job_id in owed or job.job_id in busy)
        and is_managed(job, partitions)
    )
    for job in sorted(those, key=lambda job: -job.priority):
        cost, count = job_cost(job, costs), job.tasks
        if not waits_of(job).for_gpus:
            count = min(count, max(owed.get(job.job_id, 0), busy.get(job.job_id, 0)))
        if cost and (tenant := holder_of(job)) in left:
            count = min(count, max(0, left[tenant]) // cost)
            left[tenant] -= count * cost
        since_s = job.eligible_s or job.submit_s or now_s
        waited_s = max(0, int(now_s - since_s))
        for gres_type, each in job.gpus.items():
            for task in range(count):
                awaited = Awaited(
                    gres_type, waited_s, is_own(job.qos), is_owed=task < owed.get(job.job_id, 0)
                )
                yield from [awaited] * each


def owed_tasks(policy: Policy, by_holder: JobsByHolder) -> Mapping[int, int]:
    """How many tasks of each waiting job are owed their instances, by job id.

    They fit into what is left of their tenants' guaranteed quota, which also names the type that
    they ask for. Two sorts of jobs are owed none, as a cut need not help them: those that ask for
    several instances, which could come to be on several nodes, and those that need a node which is
    down or drained.
    """
    types = guaranteed_types(policy)
    if not types:
        return {}
    return Counter(
        job.job_id
        for job in within_guarantees(by_holder, policy)
        if sum(job.gpus.values()) == 1
        and job.gpus.keys() <= types.get(job.tenant, {}).keys()
        and not job.waits.for_nodes
    )


def preempting(policy: Policy, by_holder: JobsByHolder) -> Mapping[int, int]:
    """For how many successors like each replica Slurm preempts jobs on loan, by job id.

    These replicas run within their tenants' guarantees, which have room for so many more beside all
    that their tenants' jobs hold and wait for, also on loan: what waits there takes such room
    first. What a doubtful job holds is not known, so no replica of its tenant counts.
    """
    left, types = Counter(guaranteed_quota(policy)), types_left(policy, by_holder)
    left.subtract(by_holder.held.by_tenant)
    for job in by_holder.waiting:
        if job.waits.for_quota:
            left[job.tenant] -= job.total_millislices
            asked = {gres_type: count * job.tasks for gres_type, count in job.gpus.items()}
            take_types(types.get(job.tenant), asked)
    for record in by_holder.doubtful:
        left[holder_of(record)] = 0
    counts: dict[int, int] = {}
    for run, cost, _ in by_holder.held.priced:
        tenant = holder_of(run)
        if is_of_service(run) and is_own(run.qos) and cost > 0:
            of = types.get(tenant, {})
            rooms = [
                of[gres_type] // count
                for gres_type, count in run.gpus.items()
                if gres_type in of and count
            ]
            counts[run.job_id] = max(0, min([left[tenant] // cost, *rooms]))
    return {job_id: count for job_id, count in counts.items() if count}


def room_of(policy: Policy, used: Mapping[str, int]) -> Mapping[str, int]:
    """Millislices that each tenant's jobs may still take, including all that it may ever borrow."""
    highest = highest_limits(policy, None)
    return {name: most - used.get(name, 0) for name, most in highest.items()}


def in_use(runs: Iterable[RunRecord], since_s: float, now_s: float) -> Mapping[str, float]:
    """By GRES type, the mean number of instances that runs held from ``since_s`` to ``now_s``."""
    held_s = Counter[str]()
    for run in runs:
        end_s = now_s if run.end_s is None else min(run.end_s, now_s)
        lasted_s = max(0, int(end_s - max(run.start_s, since_s)))
        for gres_type, count in run.gpus.items():
            held_s[gres_type] += count * lasted_s
    return {gres_type: total_s / (now_s - since_s) for gres_type, total_s in held_s.items()}


def instances_of(nodes: Iterable[NodeView]) -> Mapping[str, int]:
    """Instances by GRES type, on nodes that Slurm can use."""
    instances = Counter[str]()
    for node in nodes:
        if not unfit(node):
            instances.update(node.gpus)
    return instances


def repartition_s(step_seconds: Mapping[RepartitionStep, Sequence[float]], otherwise: int) -> int:
    """Duration of a repartition in seconds: the median of the last 20.

    ``step_seconds`` come newest first. ``otherwise`` is the result until there are 3.
    """
    parts = (step_seconds.get(step, ()) for step in _PARTS)
    totals = [sum(seconds) for seconds in zip(*parts, strict=False)][:_NEWEST]
    return max(1, round(median(totals))) if len(totals) >= _ENOUGH else otherwise


def move_s(step_seconds: Mapping[RepartitionStep, Sequence[float]], otherwise: int) -> int:
    """Seconds for which a replica and its successor both hold an instance.

    The median of the last 20 repartitions that moved a replica; ``otherwise`` until there are 3.
    """
    moves = [
        seconds for seconds in step_seconds.get(RepartitionStep.MOVE, ()) if seconds >= _MOVED_S
    ][:_NEWEST]
    return round(median(moves)) if len(moves) >= _ENOUGH else otherwise


_MOVED_S = 2.0
"""A shorter step found no replica to move."""
