"""The records of slurmctld's job list, as the model keeps them and as callers see them."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from slicewise.cluster.language.jobs import JobState, JobView
from slicewise.simulation.rules.slurm_model.job_requests import ModelRequest

if TYPE_CHECKING:
    from slicewise.simulation.rules.slurm_model.nodes import ModelNode

NO_REASON = "None"
HELD_BY_USER = "JobHeldUser"
HELD_BY_ADMIN = "JobHeldAdmin"
HELD_AFTER_REQUEUE = "job requeued in held state"
BEGIN_TIME = "BeginTime"
RESOURCES = "Resources"
PRIORITY = "Priority"
INVALID_QOS = "InvalidQOS"
NODES_DOWN = (
    "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions"
)
NOT_AVAILABLE = "ReqNodeNotAvail, UnavailableNodes:"
"""Followed by names of nodes."""
NODE_FAIL = "NODE_FAIL"
"""The state of a run that ended because its node failed."""
SPECIAL_EXIT = "SPECIAL_EXIT"
"""The state of a run that ended with a code of RequeueExitHold, and of its job while it is held."""
PARTITION_TIME_LIMIT = "PartitionTimeLimit"
LIMITED = ("QOSGrp", "AssocGrp", "Max", PARTITION_TIME_LIMIT)
"""Beginnings of the reasons that name a limit."""
BECOMES_PRIORITY = frozenset({NO_REASON, RESOURCES, NODES_DOWN})
"""Reasons that Slurm replaces by Priority where a job waits behind another one of its partition."""

Key = tuple[int, int, float, int, int, int]
"""A job's place in the queue; the lowest is first."""


@dataclass(frozen=True, eq=False)
class Shape:
    """What a job asks for on each of its nodes; ``gpus`` are in the order of their types.

    Equal shapes are one object, which ``NodeTable.shape`` returns.
    """

    gpus: tuple[tuple[str, int], ...]
    cpus: int = 0
    memory_mib: int = 0


@dataclass(frozen=True)
class EndedRun:
    """One run that has ended, or a job that was cancelled before it ran.

    Attributes:
        task: index of the array's task; None for a job, and for tasks cancelled together while
            nothing had touched them.
        gpus: on all nodes together, by type.
        eligible_s, start_s: None if it never was.
        state: sacct's word: COMPLETED, TIMEOUT, CANCELLED, PREEMPTED, REQUEUED, SPECIAL_EXIT or
            NODE_FAIL.
    """

    job_id: int
    array_job_id: int | None
    task: int | None
    account: str
    user: str
    partition: str
    qos: str
    gpus: Mapping[str, int]
    submit_s: float
    eligible_s: float | None
    start_s: float | None
    end_s: float
    state: str


class JobRecord:
    """One record: a job, one task of an array, or all tasks that nothing has touched yet.

    Attributes:
        untouched: indices of those tasks, rising; empty for other records.
        tres: amounts that limits count, on all nodes together.
        eligible_s: when it became eligible, or will; None while that is not known.
        begin_s: the earliest start (``--begin``, or the wait after a requeue).
        until_s: when it gives its GPUs back at the latest; inf without a limit.
        ends_s: when its run ends by itself, or by its limit.
        turn: counts what has happened; an event with another number is void.
        returns: whether it waits again once it has completed, and ``returns_held`` whether held.
        preempting_s: when it last made others end, to start itself.
        key: its place in the queue while it is in there.
        kind: a number that it shares with the jobs that ask for the same under the same limits.
    """

    __slots__ = (
        "admin_comment", "array_job_id", "begin_s", "eligible_s", "end_s", "ended", "ends_s",
        "excluded", "held", "held_gpus", "job_id", "key", "kind", "limit_s", "nodes",
        "preempting_s", "priority", "qos", "reason", "request", "restarts", "returns",
        "returns_held", "shape",
        "site_factor", "start_s", "state", "submit_s", "task_index", "tres", "turn", "until_s",
        "untouched", "view", "word",
    )  # fmt: skip

    def __init__(self, job_id: int, request: ModelRequest, shape: Shape, submit_s: float) -> None:
        self.job_id = job_id
        self.request = request
        self.shape = shape
        self.array_job_id: int | None = None
        self.task_index: int | None = None
        self.untouched: list[int] = []
        self.qos = request.qos
        self.admin_comment = request.admin_comment
        self.site_factor = request.site_factor
        self.limit_s: float = inf
        self.excluded = 0
        self.state = JobState.PENDING
        self.reason = NO_REASON
        self.held = False
        self.priority = 0
        self.tres: Mapping[str, int] = {}
        self.submit_s = submit_s
        self.begin_s = submit_s
        self.eligible_s: float | None = None
        self.start_s: float | None = None
        self.end_s: float | None = None
        self.ends_s = inf
        self.until_s = inf
        self.nodes: tuple[int, ...] = ()
        self.held_gpus: list[tuple[ModelNode, str, int, int]] = []
        self.restarts = 0
        self.word = ""
        self.ended = ""
        self.returns = False
        self.returns_held = False
        self.preempting_s: float | None = None
        self.turn = 0
        self.key: Key | None = None
        self.kind = -1
        self.view: JobView | None = None

    def split(self, job_id: int, task_index: int) -> "JobRecord":
        """A record of its own for one untouched task; this record keeps the others."""
        task = JobRecord(job_id, self.request, self.shape, self.submit_s)
        for name in ("array_job_id", "qos", "admin_comment", "site_factor", "limit_s"):
            setattr(task, name, getattr(self, name))
        for name in ("excluded", "reason", "held", "priority", "tres", "begin_s", "eligible_s"):
            setattr(task, name, getattr(self, name))
        task.task_index = task_index
        self.untouched.remove(task_index)
        return task

    @property
    def gpus(self) -> Mapping[str, int]:
        """GPUs by type that it holds, or asks for, on all nodes together."""
        gpus: dict[str, int] = {}
        for _, kind, count, _ in self.held_gpus:
            gpus[kind] = gpus.get(kind, 0) + count
        return gpus or {kind: count * self.request.nodes for kind, count in self.shape.gpus}


def job_view(record: JobRecord, names: tuple[str, ...]) -> JobView:
    """What Slurm shows of a record; the same object until the record changes.

    As in ``squeue``, an array's last untouched task is shown by its own index.
    """
    if record.view is not None:
        return record.view
    request, is_over = record.request, record.state in {JobState.ENDED, JobState.COMPLETING}
    several = len(record.untouched) > 1 and record.state is not JobState.ENDED
    alone = record.untouched[0] if len(record.untouched) == 1 else None
    end_s = record.end_s if is_over else record.until_s
    waits = record.state is JobState.PENDING
    is_special = record.held and waits and record.word == SPECIAL_EXIT
    record.view = JobView(
        job_id=record.job_id,
        array_job_id=record.array_job_id,
        task_index=record.task_index if record.task_index is not None else alone,
        untouched=frozenset(record.untouched) if several else frozenset(),
        name=request.name,
        user=request.user,
        uid=request.uid,
        account=request.account,
        partition=request.partition,
        qos=record.qos,
        state=JobState.SPECIAL_EXIT if is_special else record.state,
        reason=record.reason,
        held=record.held and waits,
        priority=0 if record.held else record.priority,
        admin_comment=record.admin_comment,
        comment=request.comment,
        tres=_tres(record),
        nodes=tuple(names[i] for i in record.nodes),
        submit_s=int(record.submit_s),
        start_s=_seconds(record.start_s),
        end_s=None if waits else _seconds(end_s),
        eligible_s=_seconds(record.eligible_s),
        time_limit_s=_seconds(record.limit_s),
        restarts=record.restarts,
        ended=record.ended,
    )
    return record.view


def _seconds(at_s: float | None) -> int | None:
    return None if at_s is None or at_s == inf else int(at_s)


def _tres(record: JobRecord) -> Mapping[str, str]:
    return {
        name: f"{amount}M" if name == "mem" else str(amount)
        for name, amount in record.tres.items()
        if amount
    }
