"""The one door to Slurm: what can be asked of it and done with it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cluster.jobs import (
    JobView,
    NodeView,
    PartitionView,
    PlannedStart,
    ReservationView,
    RunRecord,
    StepView,
)


@dataclass(frozen=True)
class Tasks:
    """Some tasks of one array, addressed by index (``814_[0-2,5]``)."""

    array_job_id: int
    indices: frozenset[int]


Target = int | Tasks
"""A job id, or tasks of an array."""


def target_of(job: JobView) -> Target:
    """The job, or the tasks of its array for which the record stands.

    An array's number alone would mean all of its tasks.
    """
    if job.array_job_id is None:
        return job.job_id
    own = frozenset() if job.task_index is None else frozenset({job.task_index})
    return Tasks(job.array_job_id, job.untouched | own)


@dataclass(frozen=True)
class Association:
    """One row of ``sacctmgr show assoc``; ``user`` is "" for the account's own row.

    A user may have further rows for single partitions, each with a QOS list of its own.

    ``grp_tres`` and ``grp_tres_run_mins`` hold only the limits that are set: ``{"billing": 3000}``.
    QOS list and default are what is in force; ``own_qos`` and ``own_default_qos`` are empty where
    the row inherits them. ``bounds_submits``: its jobs, waiting ones too, can't be any number.
    """

    cluster: str
    account: str
    user: str
    parent: str
    qos: frozenset[str]
    default_qos: str
    grp_tres: Mapping[str, int]
    grp_tres_run_mins: Mapping[str, int] = field(default_factory=dict)
    own_qos: frozenset[str] = frozenset()
    own_default_qos: str = ""
    partition: str = ""
    bounds_submits: bool = False


@dataclass(frozen=True)
class Qos:
    """One row of ``sacctmgr show qos``.

    Attributes:
        preempt_exempt_s: so long a job runs before it may be preempted; None if that is not set.
        preempt_mode: what becomes of its jobs then, in small letters; "cluster" is slurm.conf's.
        flags: in small letters.
    """

    name: str
    grp_tres: Mapping[str, int]
    preempt: frozenset[str]
    max_tres_per_account: Mapping[str, int] = field(default_factory=dict)
    grp_tres_run_mins: Mapping[str, int] = field(default_factory=dict)
    preempt_exempt_s: int | None = None
    preempt_mode: str = "cluster"
    flags: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Changed:
    """What has become of changes that sacctmgr was to make.

    Attributes:
        refused: those that Slurm refused, with its own words.
        qos: what it shows, afterwards, of the QOS that were to be added or modified.
    """

    refused: Mapping[tuple[str, ...], str] = field(default_factory=dict, hash=False)
    qos: tuple[Qos, ...] = ()


@dataclass(frozen=True)
class JobChange:
    """What to change of a pending job; None leaves a thing as it is.

    Attributes:
        time_limit_min: of a running job, too: its end moves by the difference.
        gres: per node, as ``--gres`` would say it.
        tres_per_job, tres_per_task: with Slurm's own prefix (``gres:gpu:1g.10gb:1``).

    Of these three "" clears what was asked for. Slurm gives GPUs of no type one only after that.
    """

    qos: str | None = None
    site_factor: int | None = None
    gres: str | None = None
    tres_per_job: str | None = None
    tres_per_task: str | None = None
    admin_comment: str | None = None
    time_limit_min: int | None = None


@dataclass(frozen=True)
class JobRequest:
    """What a waiting job asks for, in Slurm's own texts, "" and None where unset.

    Attributes:
        gres: per node.
        exclusive: whole nodes.
        requeue: whether it may be requeued.
    """

    gres: str = ""
    tres_per_job: str = ""
    tres_per_socket: str = ""
    tres_per_task: str = ""
    min_nodes: int | None = None
    tasks: int | None = None
    exclusive: bool = False
    requeue: bool = True


@dataclass(frozen=True)
class Submission:
    """What never changes of a job: its script, and where it was submitted."""

    script: str
    directory: str


@dataclass(frozen=True)
class PriorityRow:
    """A pending job's row of ``sprio``: each factor's weighted part, as Slurm has it now."""

    job_id: int
    priority: int
    site: int
    parts: Mapping[str, int] = field(default_factory=dict, hash=False)


class Slurm(Protocol):
    """Every call raises UnreachableError (SW-SLURM-DOWN), or OutsideError (SW-SLURM-FAILED) with
    Slurm's own words. Nothing here decides anything.
    """

    async def version(self) -> tuple[int, ...]:
        """The running slurmctld's, such as (22, 5, 8)."""
        ...

    async def config(self) -> Mapping[str, str]:
        """The running slurmctld's configuration by slurm.conf's keys."""
        ...

    async def partitions(self) -> tuple[PartitionView, ...]:
        """Every partition."""
        ...

    async def jobs(self) -> tuple[JobView, ...]:
        """Every job that slurmctld still knows, array tasks one by one."""
        ...

    async def tasks(self, array_job_ids: Collection[int]) -> tuple[JobView, ...]:
        """As ``jobs``, of these arrays alone: for who is about to change them.

        Of the untouched tasks not all may be named.
        """
        ...

    async def nodes(self) -> tuple[NodeView, ...]:
        """Every node."""
        ...

    async def steps(self, jobs: Collection[JobView]) -> tuple[StepView, ...]:
        """Running steps with reserved ports of these running jobs: each job's first eight."""
        ...

    async def plans(self) -> tuple[PlannedStart, ...]:
        """Waiting jobs for which Slurm has found a place and a time."""
        ...

    async def reservations(self) -> tuple[ReservationView, ...]:
        """Every reservation that has not ended."""
        ...

    async def reserved(self) -> Mapping[int, frozenset[str]]:
        """Names of the reservations in which running jobs run, by job id."""
        ...

    async def cores(self, jobs: Collection[JobView]) -> Mapping[int, Mapping[str, frozenset[int]]]:
        """Which cores of its node each of these running jobs has, as far as that is beyond doubt:
        by job id and node. Jobs of several nodes are not asked about.
        """
        ...

    async def devices(
        self, jobs: Collection[JobView]
    ) -> Mapping[int, Mapping[str, frozenset[int]]]:
        """Which GPUs of each node these running jobs have, as far as that is said: by job id and
        node, as indices in the order of gres.conf.

        Users can hide it; ``gpus_held`` of the node is beyond doubt.
        """
        ...

    async def runs(self, since_s: int) -> tuple[RunRecord, ...]:
        """Accounting's runs that ended after ``since_s`` or still run, requeued ones one by one.

        Suspended ones may be left out.
        """
        ...

    async def batch_script(self, job_id: int) -> str:
        """The script of a job or array."""
        ...

    async def submissions(self, job_ids: Collection[int]) -> Mapping[int, Submission]:
        """Of jobs or arrays, as far as Slurm hands out their scripts now."""
        ...

    async def associations(self) -> tuple[Association, ...]:
        """Of this cluster."""
        ...

    async def qos(self) -> tuple[Qos, ...]:
        """All QOS."""
        ...

    async def qos_elsewhere(self) -> frozenset[str]:
        """Names of QOS that associations of other clusters on the same slurmdbd may use."""
        ...

    async def requests(self, job_ids: Collection[int]) -> Mapping[int, JobRequest]:
        """What these jobs ask for, as far as they are pending."""
        ...

    async def hold(self, target: Target) -> None:
        """Hold as administrator (JobHeldAdmin): their user can't release them.

        What has started meanwhile is left alone.
        """
        ...

    async def release(self, target: Target, limit_min: int | None = None) -> None:
        """Make eligible at once and release: StartTime=now first, else a requeued task waits.

        With ``limit_min`` that is its time limit: a requeued task keeps the one it had got to.
        """
        ...

    async def requeue_hold(self, target: Target) -> None:
        """End the run (TERM, KillWait later KILL) and bring the task back held."""
        ...

    async def cancel(self, target: Target) -> None:
        """Cancel; a task's index never comes back."""
        ...

    async def update(self, changes: Mapping[Target, JobChange]) -> Mapping[Target, str]:
        """Change pending jobs, all in one go; those that Slurm refused, with its own words.

        A job that has ended or started meanwhile is such a refusal, too.
        """
        ...

    async def weigh_nodes(self, weights: Mapping[str, int]) -> None:
        """Set the weights of these nodes, as far as slurmctld is neither started anew nor
        reconfigured: that brings back those of slurm.conf.
        """
        ...

    async def priorities(self, job_ids: Collection[int]) -> tuple[PriorityRow, ...]:
        """Of these jobs, as far as they are pending and eligible."""
        ...

    async def sacctmgr(self, changes: Sequence[tuple[str, ...]]) -> Mapping[tuple[str, ...], str]:
        """Run changes such as ``("modify", "qos", "where", "name=x", "set", "grptres=billing=5")``
        side by side: none may depend on another. Those that Slurm refused, with its own words.

        A change that Slurm refuses may look like one that it took; look again afterwards.
        """
        ...

    async def set_limits(self, changes: Sequence[tuple[str, ...]]) -> Changed:
        """As ``sacctmgr``, with the look afterwards: at the QOS that are named and at no others."""
        ...
