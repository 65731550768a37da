"""Repartitions GPUs on the real cluster: plans now, and carries out one run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import OutsideError, UnreachableError
from slicewise.cluster.language.gpus.repartitions import (
    PlannedRepartition,
    Repartition,
    RepartitionState,
    RepartitionStepRecord,
)
from slicewise.cluster.language.slurm.interface import Slurm
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.runtime.leader_lock import LeaderLock
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.repartition.actions import LostLockError, RepartitionActions
from slicewise.slurm_plugin.repartition.cluster_site import ClusterSite
from slicewise.slurm_plugin.repartition.executor import Executor
from slicewise.slurm_plugin.repartition.planner_inputs import gathered
from slicewise.slurm_plugin.repartition.run import run
from slicewise.slurm_plugin.rules.mig.cuts_due import DueRepartitions, cuts_due
from slicewise.slurm_plugin.rules.mig.repartition_steps import (
    is_due,
)

Progress = Callable[[Repartition, RepartitionStepRecord], None]


@dataclass(frozen=True)
class RepartitionRun:
    """What a run did.

    Attributes:
        ended: the repartitions that it carried out, as they are then.
        due: what it planned; empty if it took up unfinished ones only.
    """

    ended: tuple[Repartition, ...]
    due: DueRepartitions


async def cut(
    settings: Settings,
    slurm: Slurm,
    ledger: Ledger,
    lock: LeaderLock,
    *,
    author: str,
    progress: Progress,
    is_asked_for: bool,
) -> RepartitionRun:
    """Do one run, as root on slurmctld's host, while ``lock`` is held; as ``repartition.run.run``.

    With ``is_asked_for`` (a user started it) stuck repartitions are tried again immediately. Also
    raises UnreachableError (SW-LOCK) if PostgreSQL has released the lock.
    """
    site = ClusterSite(settings, slurm, DaemonClient(settings.daemon))
    work = RepartitionActions(site, ledger.repartitions, settings.repartition.move_s, lock.hold)

    due = DueRepartitions(())

    async def planned_now() -> Sequence[PlannedRepartition]:
        nonlocal due
        due = cuts_due(await gathered(settings, slurm, ledger))
        return due.now

    executor, left = Executor(work, ledger.repartitions, progress), ledger.repartitions.unfinished()
    try:
        ended = await run(
            executor,
            [repartition for repartition in left if is_asked_for or is_due(repartition, wall_s())],
            planned_now,
            lambda repartition: ledger.repartitions.open(repartition, author),
        )
    except LostLockError:
        raise UnreachableError(
            Code.LOCK,
            "PostgreSQL released the lock: this run stopped where it was.",
            "The next run continues: slicewise repartition run",
        ) from None
    return RepartitionRun(ended, due)


def silent(_repartition: Repartition, _record: RepartitionStepRecord) -> None:
    """Ignore the progress."""


def stuck_error(ended: Sequence[Repartition]) -> OutsideError | None:
    """Return OutsideError (SW-REPARTITION-STUCK) if one is neither done nor undone; else None."""
    stuck = [repartition for repartition in ended if repartition.state is RepartitionState.STUCK]
    if not stuck:
        return None
    which = ", ".join(f"{repartition.repartition_id} ({repartition.node})" for repartition in stuck)
    return OutsideError(
        Code.REPARTITION_STUCK,
        f"Neither done nor undone: repartition {which}. The node is drained.",
        "See slicewise repartition show ID; fix the cause and run it again,"
        " or: slicewise repartition close",
    )
