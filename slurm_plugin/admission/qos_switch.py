"""Moves waiting jobs between their tenant's own QOS and its borrowed one, as room comes and goes.

An array waits in one QOS as a whole: once Slurm can't start one task of an array, it skips the
other tasks in that cycle, whatever their QOS. So the array is placed where its next task has room.
When that task has started, the others follow to where the one after it has room.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from cluster.language.jobs import JobState, JobTag, JobView
from cluster.slurm.interface import Target, Tasks
from slurm_plugin.common.costs import job_cost
from slurm_plugin.common.per_record import per_record
from slurm_plugin.common.qos_names import SHARED_QOS, borrowed_qos, qos_name, tenant_of
from slurm_plugin.quota.demand import is_waiting, waits_for_quota
from slurm_plugin.quota.holdings import Holdings
from slurm_plugin.quota.room import QuotaRoom
from slurm_plugin.quota.types import Policy

MOVES = 200
"""Most changes of one turn: slurmctld takes a lock for each."""


class _Waiting(NamedTuple):
    """One record of Slurm's, which may stand for many tasks of an array.

    Attributes:
        tenant: in whose QOS it waits.
        tasks: number of tasks that may take room; 0 if the record waits for something else than
            quota, since room taken for it would keep other jobs waiting.
        cost: millislices of one task.
        is_flexible: whether Slicewise may move it between the two QOS.
    """

    record: JobView
    tenant: str
    tasks: int
    cost: int
    is_flexible: bool


def moves(
    policy: Policy,
    jobs: Sequence[JobView],
    there: Holdings,
    refused: Collection[Target] = (),
) -> Mapping[Target, str]:
    """The new QOS of all waiting jobs and arrays that should change theirs.

    ``there`` are the jobs of managed partitions among all ``jobs``.

    Jobs are placed by Slurm's priority. Jobs that fit into what is left of the tenant's guaranteed
    quota belong in its own QOS, jobs that fit into what it and the tenants above it may borrow in
    the borrowed one; all others stay where they are. Only flexible jobs move; other jobs just take
    their room in turn. Jobs that Slurm has ``refused`` to move are left out. A second call after
    these moves, with nothing else changed, moves nothing. Jobs in the QOS that all tenants once
    shared move first, whatever they wait for, to their own tenant's borrowed QOS.
    """
    out = _out_of_shared(policy, jobs, refused)
    if out:
        return out
    waiting = sorted(_waiting(policy, there), key=_order)
    if not any(one.is_flexible for one in waiting):
        return {}
    room = QuotaRoom(policy, there)
    belongs: dict[int, str] = {}
    for one in waiting:
        qos = _placed(one, room)
        if qos is not None:
            belongs.setdefault(unit_of(one.record), qos)
    changes = (each for each in _changed(waiting, belongs) if each[0] not in refused)
    return dict(islice(changes, MOVES))


def _out_of_shared(
    policy: Policy, jobs: Iterable[JobView], refused: Collection[Target]
) -> Mapping[Target, str]:
    wanted = [
        (job, borrowed_qos(job.account))
        for job in jobs
        if job.qos == SHARED_QOS and can_move(job) and job.account in policy
    ]
    return dict(islice(as_units(wanted, refused), MOVES))


def can_move(job: JobView) -> bool:
    """Whether Slurm lets the job change its QOS: it waits, held or not."""
    return is_pending(job) and not job.is_doubtful


def is_pending(job: JobView) -> bool:
    """Whether the job waits, held or not, even if other fields of its record can't be read."""
    return job.state in {JobState.PENDING, JobState.SPECIAL_EXIT}


def as_units(
    wanted: Iterable[tuple[JobView, str]], refused: Collection[Target] = ()
) -> Iterator[tuple[Target, str]]:
    """Each job, or the waiting tasks of an array together, with the QOS that it should have.

    Jobs and arrays that Slurm has ``refused`` to move are left out.
    """
    found: dict[int, tuple[str, list[JobView]]] = {}
    for job, qos in wanted:
        found.setdefault(unit_of(job), (qos, []))[1].append(job)
    for unit, (qos, records) in found.items():
        target = _target(unit, records)
        if target not in refused:
            yield target, qos


def _placed(one: _Waiting, room: QuotaRoom) -> str | None:
    """The QOS where its next task has room, or None. All tasks that find room take it."""
    first = qos = _fitting(one, room)
    left = one.tasks
    while qos is not None and left:
        room.take(one.tenant, qos, one.cost, one.record.gpus)
        left -= 1
        qos = _fitting(one, room) if left else None
    return first


def _fitting(one: _Waiting, room: QuotaRoom) -> str | None:
    tenant, now = one.tenant, one.record.qos
    choice = (qos_name(tenant), borrowed_qos(tenant)) if one.is_flexible else (now,)
    return next((qos for qos in choice if room.has(tenant, qos, one.cost, one.record.gpus)), None)


def unit_of(record: JobView) -> int:
    """The id of what moves as one: the job, or the array for all of its waiting tasks."""
    return record.array_job_id or record.job_id


def unit_of_target(target: Target) -> int:
    """The id of the job, or of the array that these tasks belong to."""
    return target if isinstance(target, int) else target.array_job_id


def _changed(
    waiting: Iterable[_Waiting], belongs: Mapping[int, str]
) -> Iterator[tuple[Target, str]]:
    records = [one.record for one in waiting if one.is_flexible]
    moving: dict[int, list[JobView]] = {}
    for record in records:
        if belongs.get(unit_of(record), record.qos) != record.qos:
            moving.setdefault(unit_of(record), []).append(record)
    for unit, found in moving.items():
        yield _target(unit, found), belongs[unit]


def _target(unit: int, records: Sequence[JobView]) -> Target:
    if records[0].array_job_id is None:
        return unit
    own = frozenset(record.task_index for record in records if record.task_index is not None)
    return Tasks(unit, own.union(*(record.untouched for record in records)))


def _order(one: _Waiting) -> tuple[int, int, int]:
    """Sort key: by priority, then number; tasks of an array by index, own record or not."""
    record = one.record
    index = min(record.untouched) if record.untouched else record.task_index or 0
    return -record.priority, unit_of(record), index


def _waiting(policy: Policy, there: Holdings) -> Iterator[_Waiting]:
    for job in there.others:
        tenant = tenant_of(job.qos)
        if tenant is None or tenant not in policy or not is_waiting(job) or job.is_doubtful:
            continue
        if cost := job_cost(job, there.costs):
            tasks = max(1, len(job.untouched)) if waits_for_quota(job) else 0
            yield _Waiting(job, tenant, tasks, cost, _flexible_of(job) == tenant)


@per_record
def _flexible_of(job: JobView) -> str | None:
    """The tenant between whose two QOS Slicewise may move the job; None for other jobs."""
    tag = JobTag.find(job.admin_comment)
    is_flexible = tag is not None and tag.is_flexible and tag.tenant == job.account
    return job.account if is_flexible else None
