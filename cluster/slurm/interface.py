"""The one door to Slurm: what can be asked of it and done with it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from cluster.jobs import JobView, NodeView, RunRecord, StepView


@dataclass(frozen=True)
class Tasks:
    """Some tasks of one array, addressed by index (``814_[0-2,5]``)."""

    array_job_id: int
    indices: frozenset[int]


Target = int | Tasks
"""A job id, or tasks of an array."""


@dataclass(frozen=True)
class Association:
    """One row of ``sacctmgr show assoc``; ``user`` is "" for the account's own row.

    ``grp_tres`` holds only the limits that are set: ``{"billing": 3000}``.
    """

    cluster: str
    account: str
    user: str
    parent: str
    qos: frozenset[str]
    default_qos: str
    grp_tres: Mapping[str, int]


@dataclass(frozen=True)
class Qos:
    """One row of ``sacctmgr show qos``."""

    name: str
    grp_tres: Mapping[str, int]
    preempt: frozenset[str]


class Slurm(Protocol):
    """Every call raises UnreachableError (SW-SLURM-DOWN), or OutsideError (SW-SLURM-FAILED) with
    Slurm's own words. Nothing here decides anything.
    """

    async def version(self) -> tuple[int, ...]:
        """The running slurmctld's, such as (22, 5, 8)."""
        ...

    async def jobs(self) -> tuple[JobView, ...]:
        """Every job that slurmctld still knows, array tasks one by one."""
        ...

    async def nodes(self) -> tuple[NodeView, ...]:
        """Every node."""
        ...

    async def steps(self) -> tuple[StepView, ...]:
        """Every running step with reserved ports, of jobs that carry a tag."""
        ...

    async def runs(self, since_s: int) -> tuple[RunRecord, ...]:
        """Accounting's runs that ended after ``since_s`` or still run, requeued ones one by one.

        Suspended ones may be left out.
        """
        ...

    async def batch_script(self, job_id: int) -> str:
        """The script of a job or array."""
        ...

    async def associations(self) -> tuple[Association, ...]:
        """Of this cluster."""
        ...

    async def qos(self) -> tuple[Qos, ...]:
        """All QOS."""
        ...

    async def hold(self, tasks: Tasks) -> None:
        """Hold as administrator (JobHeldAdmin): their user can't release them.

        Tasks that have started meanwhile are left alone.
        """
        ...

    async def release(self, target: Target) -> None:
        """Make eligible at once and release: StartTime=now first, else a requeued task waits."""
        ...

    async def requeue_hold(self, target: Target) -> None:
        """End the run (TERM, KillWait later KILL) and bring the task back held."""
        ...

    async def cancel(self, target: Target) -> None:
        """Cancel; a task's index never comes back."""
        ...

    async def sacctmgr(self, changes: Sequence[Sequence[str]]) -> None:
        """Run changes such as ``("modify", "qos", "where", "name=x", "set", "grptres=billing=5")``
        in order.
        """
        ...
