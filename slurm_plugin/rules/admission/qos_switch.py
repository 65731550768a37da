"""Moves waiting jobs between their tenant's own QOS and its borrowed one, as room comes and goes.

An array waits in one QOS as a whole: once Slurm can't start one task of an array, it skips the
other tasks in that cycle, whatever their QOS. So the array is placed where its next task belongs.
When that task has started, the others follow to where the one after it belongs.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from slicewise.cluster.language.jobs import JobState, JobTag, JobView
from slicewise.cluster.language.slurm.interface import Target, Tasks
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.rules.common.costs import job_cost
from slicewise.slurm_plugin.rules.common.qos_names import borrowed_qos, qos_name, tenant_of
from slicewise.slurm_plugin.rules.quota.jobs import JobsByHolder, QosQueue
from slicewise.slurm_plugin.rules.quota.room import QuotaRoom, Room
from slicewise.slurm_plugin.rules.quota.standings import Standing
from slicewise.slurm_plugin.rules.quota.tenants import upward
from slicewise.slurm_plugin.rules.quota.types import Policy
from slicewise.slurm_plugin.rules.quota.waits import waits_of

MOVES = 200
"""Most changes of one turn: slurmctld takes a lock for each."""


class _Waiting(NamedTuple):
    """What is to be known of one record of Slurm's, which may stand for many tasks of an array.

    Attributes:
        tenant: in whose QOS it waits.
        unit: the id of what moves as one (``unit_of``).
        tasks: number of tasks that may take room; 0 if the record waits for something else than
            quota, since room taken for it would keep other jobs waiting.
        is_flexible: whether Slicewise may move it between the two QOS of its tenant.
        order: sort key: by priority, then number; tasks of an array by index, own record or not.
    """

    tenant: str
    unit: int
    tasks: int
    is_flexible: bool
    order: tuple[int, int, int]


class Change(NamedTuple):
    """A job or array that should change its QOS; ``order`` is its place in Slurm's order."""

    order: tuple[int, int, int]
    target: Target
    qos: str


class TreeMoves(NamedTuple):
    """The changes in one tree of tenants, and what they follow from.

    Attributes:
        left: the room of its tenants.
    """

    policy: Policy
    queues: Sequence[QosQueue]
    left: Sequence[Room]
    changes: Sequence[Change]


_UNKNOWN: Mapping[str, TreeMoves] = {}


def moves(
    policy: Policy,
    by_holder: JobsByHolder,
    standings: Mapping[str, Standing],
    refused: Collection[Target] = (),
    *,
    trees: Mapping[str, TreeMoves] | None = None,
) -> Mapping[Target, str]:
    """The new QOS of all waiting jobs and arrays that should change theirs.

    ``there`` are the jobs of managed partitions, ``standings`` the limits in force, and ``trees``
    what ``tree_moves`` found of them, if that is known.

    Jobs are placed by Slurm's priority. Jobs that fit into what is left of the tenant's guaranteed
    quota, beside what its borrowed runs hold of that, belong in its own QOS. All others belong in
    the borrowed one if the tenant may borrow: in its own QOS no loan would start them. What waits
    for something else than quota stays in its own QOS, since no loan would start it anywhere. Only
    flexible jobs move; other jobs just take their room in turn. Jobs that Slurm has ``refused`` to
    move are left out. A second call after these moves, with nothing else changed, moves nothing.
    """
    moves = tree_moves(policy, by_holder, standings) if trees is None else trees
    changes = sorted(
        (change for tree in moves.values() for change in tree.changes),
        key=lambda change: change.order,
    )
    wanted = ((change.target, change.qos) for change in changes if change.target not in refused)
    return dict(islice(wanted, MOVES))


def tree_moves(
    policy: Policy,
    by_holder: JobsByHolder,
    standings: Mapping[str, Standing],
    before: Mapping[str, TreeMoves] = _UNKNOWN,
) -> Mapping[str, TreeMoves]:
    """The changes in each tree of tenants, by the tenant at its top.

    Trees share no room. So what was found ``before`` stays for a tree of which nothing has changed.
    """
    above, room = upward(policy), QuotaRoom(policy, by_holder, standings)
    queues: dict[str, list[QosQueue]] = {}
    for qos, queue in by_holder.queues.items():
        tenant = tenant_of(qos)
        if tenant is not None and tenant in policy:
            queues.setdefault(above[tenant][-1], []).append(queue)
    moves: dict[str, TreeMoves] = {}
    for top, of in queues.items():
        last_moves, left = before.get(top), room.left(top)
        if (
            last_moves is None
            or last_moves.policy is not policy
            or (last_moves.queues, last_moves.left) != (of, left)
        ):
            moves[top] = TreeMoves(policy, of, left, _changes(of, room, by_holder.costs))
        else:
            moves[top] = last_moves
    return moves


def _changes(
    queues: Iterable[QosQueue], room: QuotaRoom, costs: Mapping[str, Millislices]
) -> Sequence[Change]:
    waiting = [pair for queue in queues for pair in _waiting_in(queue)]
    if not any(waiting_job.is_flexible for waiting_job, _ in waiting):
        return ()
    waiting.sort(key=_order_of)
    return tuple(_changed(waiting, _belongs(waiting, room, costs)))


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
    units: dict[int, tuple[str, list[JobView]]] = {}
    for job, qos in wanted:
        units.setdefault(unit_of(job), (qos, []))[1].append(job)
    for unit, (qos, records) in units.items():
        target = _target(unit, records)
        if target not in refused:
            yield target, qos


def _belongs(
    waiting: Iterable[tuple[_Waiting, JobView]], room: QuotaRoom, costs: Mapping[str, Millislices]
) -> Mapping[int, str]:
    """The QOS in which the next task of each job or array belongs.

    All tasks that fit into the guaranteed quota take it, in the order of ``waiting``.
    """
    belongs: dict[int, str] = {}
    for waiting_job, job in waiting:
        tenant, cost, own = waiting_job.tenant, job_cost(job, costs), qos_name(waiting_job.tenant)
        if not cost or not (waiting_job.is_flexible or job.qos == own):
            continue
        fit = room.tasks(tenant, own, cost, job.gpus)
        taken = min(fit, waiting_job.tasks)
        room.take(
            tenant, own, taken * cost, {gres_type: taken * n for gres_type, n in job.gpus.items()}
        )
        if fit:
            belongs.setdefault(waiting_job.unit, own)
        elif waiting_job.tasks and room.borrows(tenant):
            belongs.setdefault(waiting_job.unit, borrowed_qos(tenant))
    return belongs


def unit_of(record: JobView) -> int:
    """The id of what moves as one: the job, or the array for all of its waiting tasks."""
    return record.array_job_id or record.job_id


def unit_of_target(target: Target) -> int:
    """The id of the job, or of the array that these tasks belong to."""
    return target if isinstance(target, int) else target.array_job_id


def _changed(
    waiting: Iterable[tuple[_Waiting, JobView]], belongs: Mapping[int, str]
) -> Iterator[Change]:
    moving: dict[int, list[tuple[_Waiting, JobView]]] = {}
    for waiting_job, job in waiting:
        if (
            waiting_job.unit in belongs
            and waiting_job.is_flexible
            and belongs[waiting_job.unit] != job.qos
        ):
            moving.setdefault(waiting_job.unit, []).append((waiting_job, job))
    for unit, pairs in moving.items():
        yield Change(pairs[0][0].order, _target(unit, [job for _, job in pairs]), belongs[unit])


def _target(unit: int, records: Sequence[JobView]) -> Target:
    if records[0].array_job_id is None:
        return unit
    own = frozenset(record.task_index for record in records if record.task_index is not None)
    return Tasks(unit, own.union(*(record.untouched for record in records)))


def _waiting_in(queue: QosQueue) -> Sequence[tuple[_Waiting, JobView]]:
    """The records of a QOS that could start."""
    return [
        (waiting_job, job) for job in queue.seen if (waiting_job := _waiting_of(job)) is not None
    ]


def _waiting_of(job: JobView) -> _Waiting | None:
    """What is to be known of a record in a tenant's QOS that could start; None of others."""
    tenant = tenant_of(job.qos)
    waits = waits_of(job)
    if tenant is None or not waits.could_start or job.is_doubtful:
        return None
    tag = JobTag.find(job.admin_comment)
    is_flexible = tag is not None and tag.is_flexible and tag.tenant == job.account == tenant
    unit = unit_of(job)
    return _Waiting(
        tenant,
        unit,
        job.tasks if waits.for_quota else 0,
        is_flexible,
        (-job.priority, unit, min(job.untouched) if job.untouched else job.task_index or 0),
    )


def _order_of(waiting: tuple[_Waiting, JobView]) -> tuple[int, int, int]:
    return waiting[0].order
