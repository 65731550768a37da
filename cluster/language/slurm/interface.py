"""The interface to Slurm: every question that Slicewise asks it and every change that it makes."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from slicewise.cluster.language.jobs import (
    JobView,
    NodeView,
    PartitionView,
    PastRun,
    PlannedStart,
    ReservationView,
    RunOfJob,
    RunRecord,
    StepView,
)


@dataclass(frozen=True)
class Tasks:
    """Some tasks of one array, addressed by index (``814_[0-2,5]``)."""

    array_job_id: int
    indices: frozenset[int]


CLOCK_KNOWN_S = 60.0
"""Seconds for which slurmctld is not asked for its time again where nothing hangs on a step of it.
"""

Target = int | Tasks
"""A job id, or tasks of an array."""


def target_of(job: JobView) -> Target:
    """Return the job, or the tasks of its array that the record covers, as a target.

    The array's number alone would address all of its tasks.
    """
    if job.array_job_id is None:
        return job.job_id
    own = frozenset() if job.task_index is None else frozenset({job.task_index})
    return Tasks(job.array_job_id, job.untouched | own)


@dataclass(frozen=True)
class Association:
    """One row of ``sacctmgr show assoc``; ``user`` is "" for the account's own row.

    A user may have further rows for single partitions, each with a QOS list of its own.

    ``grp_tres``, ``grp_tres_run_mins`` and ``grp_tres_mins`` hold only the limits that are set:
    ``{"billing": 3000}``.
    The QOS list and the default QOS are those in force; ``own_qos`` and ``own_default_qos`` are
    empty where the row inherits them. ``bounds_submits`` is true where the number of jobs, waiting
    ones too, is limited. ``share`` is the raw fair share; None is that of its parent.
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
    grp_tres_mins: Mapping[str, int] = field(default_factory=dict)
    share: int | None = 1


@dataclass(frozen=True)
class Qos:
    """One row of ``sacctmgr show qos``.

    Attributes:
        preempt_exempt_s: seconds that a job runs before it may be preempted; None if that is not
            set.
        preempt_mode: what preemption does to its jobs, in small letters; "cluster" is slurm.conf's.
        flags: in small letters.
        priority: beside those of other QOS.
        grace_s: GraceTime: seconds between the announcement of a preemption and the end.
    """

    name: str
    grp_tres: Mapping[str, int]
    preempt: frozenset[str]
    max_tres_per_account: Mapping[str, int] = field(default_factory=dict)
    grp_tres_run_mins: Mapping[str, int] = field(default_factory=dict)
    preempt_exempt_s: int | None = None
    preempt_mode: str = "cluster"
    flags: frozenset[str] = frozenset()
    priority: int = 0
    grace_s: int = 0


@dataclass(frozen=True)
class Changed:
    """Outcome of changes that sacctmgr was to make.

    Attributes:
        refused: the changes that Slurm refused, with its own words.
        qos: what Slurm shows, afterwards, of the QOS that were to be added or modified.
    """

    refused: Mapping[tuple[str, ...], str] = field(default_factory=dict, hash=False)
    qos: tuple[Qos, ...] = ()


@dataclass(frozen=True)
class Requeued:
    """Outcome of requeues of runs. A run that had ended before is in neither, nor is one for which
    slurmctld gave no answer while it did for others: that one may be asked for again.

    Attributes:
        ended: the runs that end now.
        refused: those that Slurm refused to requeue, with its own words: they run on.
    """

    ended: frozenset[RunOfJob] = frozenset()
    refused: Mapping[RunOfJob, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class JobChange:
    """What to change of a pending job; None leaves a setting as it is.

    Attributes:
        time_limit_min: minutes. Of a running job, too: its end moves by the difference.
        gres: per node, as ``--gres`` takes it.
        tres_per_job, tres_per_task: with Slurm's own prefix (``gres:gpu:1g.10gb:1``).
        excluded_nodes: nodes that the job is not to get, in place of all that it excluded before.
        throttle: how many tasks of the array may run at the same time; 0 is any number.

    For gres and tres, "" clears what was asked for. Slurm gives untyped GPUs a type only after they
    have been cleared.
    """

    qos: str | None = None
    site_factor: int | None = None
    gres: str | None = None
    tres_per_job: str | None = None
    tres_per_task: str | None = None
    admin_comment: str | None = None
    time_limit_min: int | None = None
    excluded_nodes: frozenset[str] | None = None
    throttle: int | None = None


@dataclass(frozen=True)
class JobRequest:
    """What a waiting job asks for, in Slurm's own text; "" and None where unset.

    Attributes:
        gres: per node.
        exclusive: whether the job asks for whole nodes.
        requeue: whether the job may be requeued.
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
    """The parts of a job that never change: its script and the directory of its submission."""

    script: str
    directory: str


@dataclass(frozen=True)
class PriorityRow:
    """A pending job's row of ``sprio``: the weighted part of each factor, as Slurm has it now."""

    job_id: int
    priority: int
    site: int
    parts: Mapping[str, int] = field(default_factory=dict, hash=False)


class SlurmReader(Protocol):
    """Questions to slurmctld. Raises what ``Slurm`` raises."""

    async def version(self) -> tuple[int, ...]:
        """The running slurmctld's version, such as (22, 5, 8)."""
        ...

    async def clock_s(self, known_for_s: float = 0.0) -> float:
        """Unix seconds by slurmctld's clock, by an answer of it no older than so many seconds.

        It is the time in which starts and ends of jobs are; this host's clock may show another.
        """
        ...

    async def config(self) -> Mapping[str, str]:
        """The running slurmctld's configuration, by slurm.conf's keys."""
        ...

    async def partitions(self) -> tuple[PartitionView, ...]:
        """Every partition."""
        ...

    async def jobs(self) -> tuple[JobView, ...]:
        """Every job that slurmctld still knows, array tasks one by one."""
        ...

    async def tasks(self, array_job_ids: Collection[int]) -> tuple[JobView, ...]:
        """The records of these arrays alone, for a caller that is about to change them.

        Otherwise as ``jobs``, but some of the untouched tasks may be missing.
        """
        ...

    async def nodes(self) -> tuple[NodeView, ...]:
        """Every node."""
        ...

    async def steps(self, jobs: Collection[JobView]) -> tuple[StepView, ...]:
        """Running steps with reserved ports of these running jobs: the first eight of each job."""
        ...

    async def plans(self) -> tuple[PlannedStart, ...]:
        """Planned starts of the waiting jobs for which Slurm has found a place and a time."""
        ...

    async def reservations(self) -> tuple[ReservationView, ...]:
        """Every reservation that has not ended."""
        ...

    async def reserved(self) -> Mapping[int, frozenset[str]]:
        """Names of the reservations in which running jobs run, by job id."""
        ...

    async def cores(self, jobs: Collection[JobView]) -> Mapping[int, Mapping[str, frozenset[int]]]:
        """The cores that each of these running jobs has on its node, by job id and node.

        Cores that are not beyond doubt are left out. Meant for jobs of one node each.
        """
        ...

    async def devices(
        self, jobs: Collection[JobView]
    ) -> Mapping[int, Mapping[str, frozenset[int]]]:
        """The GPUs that these running jobs have, by job id and node.

        They are indices in the order of gres.conf. GPUs that Slurm does not name are left out, and
        users can hide them; ``gpus_held`` of the node is beyond doubt.
        """
        ...

    async def batch_script(self, job_id: int) -> str:
        """The script of a job or array."""
        ...

    async def submissions(self, job_ids: Collection[int]) -> Mapping[int, Submission]:
        """Scripts and directories of these jobs or arrays, by id.

        A job is left out if Slurm does not return its script now.
        """
        ...

    async def requests(self, job_ids: Collection[int]) -> Mapping[int, JobRequest]:
        """What these jobs ask for, by id; jobs that are not pending are left out."""
        ...

    async def excluded_nodes(self, array_job_id: int) -> Mapping[int, frozenset[str]]:
        """The nodes that the array's pending tasks are not to get, by job id of their records."""
        ...

    async def throttled(self, array_job_ids: Collection[int]) -> frozenset[int]:
        """Those of these arrays with a bound on how many tasks may run at the same time.

        An array of which no task waits is left out.
        """
        ...

    async def priorities(self, job_ids: Collection[int]) -> tuple[PriorityRow, ...]:
        """Priority rows of these jobs; jobs that are not pending and eligible are left out."""
        ...


class SlurmActor(Protocol):
    """Changes of jobs and nodes in slurmctld. Raises what ``Slurm`` raises."""

    async def hold(self, target: Target) -> None:
        """Hold as administrator (JobHeldAdmin), so that the job's user can't release it.

        Jobs and tasks that have started meanwhile are left alone.
        """
        ...

    async def release(
        self, target: Target, limit_min: int | None = None, ended_s: float | None = None
    ) -> None:
        """Make eligible now and release. StartTime=now comes first, else a requeued task waits.

        ``limit_min`` is the new time limit in minutes: without it, a requeued task keeps the limit
        to which its last run was extended. ``ended_s`` is the Unix second in which the last run of
        these tasks ended, 0 if none has run; without it Slurm is asked.
        """
        ...

    async def requeue_hold(self, target: Target) -> None:
        """End the run (TERM, KillWait later KILL) and bring the task back held."""
        ...

    async def requeue(self, runs: Collection[RunOfJob]) -> Requeued:
        """End these runs as preemption does (TERM, KillWait later KILL); their jobs wait again.

        A run that has ended meanwhile is left alone, and so is a later run of its job.
        """
        ...

    async def cancel(self, target: Target) -> None:
        """Cancel; a task's index never comes back."""
        ...

    async def update(self, changes: Mapping[Target, JobChange]) -> Mapping[Target, str]:
        """Change pending jobs together; return what Slurm refused, with Slurm's own words.

        A job that has ended or started meanwhile counts as refused, too.
        """
        ...

    async def weigh_nodes(self, weights: Mapping[str, int]) -> None:
        """Set the weights of these nodes.

        They hold until slurmctld restarts or is reconfigured, which restores those of slurm.conf.
        """
        ...


class SlurmAccounting(Protocol):
    """Questions to slurmdbd and changes in it. Raises what ``Slurm`` raises."""

    async def runs(self, since_s: int) -> tuple[RunRecord, ...]:
        """Accounting's runs that ended after ``since_s`` or still run, each run of a requeued job.

        Suspended runs may be left out.
        """
        ...

    async def job_history(self, since_s: int, until_s: int) -> tuple[PastRun, ...]:
        """What accounting has of jobs that waited or ran in this time, each run of a requeued job.

        Jobs that were never eligible may be left out. Meant for a day at a time.
        """
        ...

    async def associations(self) -> tuple[Association, ...]:
        """Every association of this cluster."""
        ...

    async def coordinators(self) -> Mapping[str, frozenset[str]]:
        """The users who coordinate each account, by account; empty if that can't be known."""
        ...

    async def qos(self) -> tuple[Qos, ...]:
        """Every QOS."""
        ...

    async def qos_elsewhere(self) -> frozenset[str]:
        """Names of QOS that associations of other clusters on the same slurmdbd may use."""
        ...

    async def sacctmgr(self, changes: Sequence[tuple[str, ...]]) -> Mapping[tuple[str, ...], str]:
        """Run changes such as ``("modify", "qos", "where", "name=x", "set", "grptres=billing=5")``.

        They run side by side, so none may depend on another. Return those that Slurm refused, with
        its own words. A change that Slurm refuses may look as if it had been made; look again
        afterwards.
        """
        ...

    async def set_limits(self, changes: Sequence[tuple[str, ...]]) -> Changed:
        """Run changes as ``sacctmgr`` does, then look at the QOS that they name and no others."""
        ...


class Slurm(SlurmReader, SlurmActor, SlurmAccounting, Protocol):
    """Questions to Slurm and changes in it; decisions are made elsewhere.

    Every call raises UnreachableError (SW-SLURM-DOWN), or OutsideError (SW-SLURM-FAILED) with
    Slurm's own words.
    """
