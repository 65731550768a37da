"""Carries out plans for services' slots: holds, releases, requeues, moves and cancels them.

``daemon/lease_loop.py`` changes their time limits.
"""

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import partial

from slicewise.cluster.language.jobs import JobState, JobView, NodeView
from slicewise.cluster.language.service import limit_min
from slicewise.cluster.language.slurm.interface import JobChange, Slurm, Target, Tasks
from slicewise.cluster.rpc.messages import ServiceView
from slicewise.cluster.runtime.log import bound
from slicewise.slurm_plugin.common.log import report, warn
from slicewise.slurm_plugin.rules.common.qos_names import borrowed_qos, qos_name
from slicewise.slurm_plugin.rules.services.avoidance import Release, avoidance_changes, concerns
from slicewise.slurm_plugin.rules.services.leases import lease_of
from slicewise.slurm_plugin.rules.services.slot_actions import SlotActions


def not_moved(
    array_job_id: int, seen: Iterable[JobView], changes: Mapping[Target, JobChange]
) -> Mapping[Target, JobChange]:
    """Changes, task by task, of the waiting tasks that are not in the QOS they were changed to."""
    wanted = {
        index: change
        for target, change in changes.items()
        if isinstance(target, Tasks)
        for index in target.indices
    }
    return {
        Tasks(array_job_id, frozenset({index})): wanted[index]
        for job in seen
        if job.array_job_id == array_job_id
        and job.state in {JobState.PENDING, JobState.SPECIAL_EXIT}
        for index in (job.untouched if job.task_index is None else {job.task_index})
        if index in wanted and job.qos != wanted[index].qos
    }


class Actuator:
    """Carries plans out. Plans are made for services, and services only from jobs with our tag."""

    def __init__(self, slurm: Slurm) -> None:
        self._slurm = slurm

    async def apply(
        self, service: ServiceView, plan: SlotActions, ended_s: float | None = None
    ) -> bool:
        """Give slices back first, then release; True if there was anything to do.

        ``ended_s`` is when the last run of the slots to release ended, if that is known.
        """
        if not plan.acts:
            return False
        with bound(service=f"{service.tenant}/{service.name}", tenant=service.tenant):
            return await self._apply(service, plan, ended_s)

    async def _apply(self, service: ServiceView, plan: SlotActions, ended_s: float | None) -> bool:
        array = service.array_job_id
        moved = await self._move(service, plan)
        lease_min = limit_min(lease_of(service))
        release = partial(self._slurm.release, limit_min=lease_min, ended_s=ended_s)
        actions = (
            ("requeue_hold", self._slurm.requeue_hold, plan.requeue_hold),
            ("revive", self._slurm.requeue_hold, plan.revive),
            ("hold", self._slurm.hold, plan.hold),
            ("release", release, plan.release),
        )
        for name, act, slots in actions:
            if slots:
                report(name, array=array, slots=slots)
                await act(Tasks(array, slots))
        return moved or any(slots for _, _, slots in actions)

    async def avoid(
        self, release: Release, jobs: Iterable[JobView], nodes: Collection[NodeView]
    ) -> bool:
        """Keep slots off nodes, and off no longer those that they avoided before; False if Slurm
        refused a change.

        The tags are read again: the look in ``jobs`` may be older than the last change of them. A
        slot that Slurm refuses to change starts where Slurm likes.
        """
        if not concerns(release, jobs, nodes):
            return True
        array = release.array_job_id
        now = await self._slurm.tasks({array})
        excluded = await self._slurm.excluded_nodes(array)
        changes = avoidance_changes(release, now, excluded, nodes)
        if not changes:
            return True
        refused = await self._slurm.update(changes)
        taken = [change for target, change in changes.items() if target not in refused]
        words = " ".join(refused.values())
        if not taken:
            warn("avoidance_failed", array=array, slots=release.slots, refused=words)
            return False
        report(
            "nodes_avoided",
            array=array,
            slots=release.slots,
            excluded=frozenset().union(*(job_change.excluded_nodes or () for job_change in taken)),
            refused=words,
        )
        return not refused

    async def _move(self, service: ServiceView, plan: SlotActions) -> bool:
        """Change the QOS of waiting slots; True if the plan moves any.

        A slot that Slurm refuses to move waits where it is: Slurm's limits hold there, too.
        """
        array = service.array_job_id
        changes: dict[Target, JobChange] = {
            Tasks(array, slots): JobChange(qos=qos)
            for qos, slots in (
                (qos_name(service.tenant), plan.guarantee),
                (borrowed_qos(service.tenant), plan.borrow),
            )
            if slots
        }
        if not changes:
            return False
        refused = await self._slurm.update(changes)
        report(
            "slots_moved",
            array=array,
            guaranteed=plan.guarantee,
            borrowed=plan.borrow,
            refused=" ".join(refused.values()),
        )
        if len(plan.guarantee | plan.borrow) > 1:
            await self._move_again(array, changes)
        return True

    async def _move_again(self, array_job_id: int, changes: Mapping[Target, JobChange]) -> None:
        """Move one by one the tasks that Slurm left where they were, whatever it answered.

        Otherwise such a task would wait for ever.
        """
        seen = await self._slurm.tasks({array_job_id})
        again = not_moved(array_job_id, seen, changes)
        if again:
            refused = await self._slurm.update(again)
            warn("slots_not_moved", array=array_job_id, again=len(again), refused=len(refused))

    async def unthrottle(self, arrays: Collection[int], felt: AbstractSet[int]) -> None:
        """Let all released tasks of these arrays run at the same time.

        Slurm shows the throttle of an array beside its untouched tasks. Of those that have none a
        task's reason tells: these are ``felt``.
        """
        arrays_held = await self._slurm.throttled(arrays) | felt
        if arrays_held:
            refused = await self._slurm.update(
                dict.fromkeys(sorted(arrays_held), JobChange(throttle=0))
            )
            warn("throttles_taken_off", arrays=arrays_held, refused=" ".join(refused.values()))

    async def cancel(self, array_job_id: int) -> None:
        """Cancel a service's array."""
        report("cancel", array=array_job_id)
        await self._slurm.cancel(array_job_id)
