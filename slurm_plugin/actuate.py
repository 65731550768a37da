"""Moves services' slots: all that the daemon itself changes of them in Slurm is here."""

from functools import partial

from cluster.service import limit_min
from cluster.slurm.interface import JobChange, Slurm, Target, Tasks
from cluster.wire import ServiceView
from slurm_plugin.decide.leases import lease_of
from slurm_plugin.decide.limits import BORROWED_QOS, qos_name
from slurm_plugin.decide.slots import SlotPlan
from slurm_plugin.observe import report


class Actuator:
    """Carries plans out. Plans are made of services, and services only of jobs with our tag."""

    def __init__(self, slurm: Slurm) -> None:
        self._slurm = slurm

    async def apply(self, service: ServiceView, plan: SlotPlan) -> bool:
        """Give back first, then release; True if there was anything to do."""
        array = service.array_job_id
        moved = await self._move(service, plan)
        release = partial(self._slurm.release, limit_min=limit_min(lease_of(service)))
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

    async def _move(self, service: ServiceView, plan: SlotPlan) -> bool:
        """What Slurm refuses to move waits where it is: its limits hold there, too."""
        array = service.array_job_id
        changes: dict[Target, JobChange] = {
            Tasks(array, slots): JobChange(qos=qos)
            for qos, slots in (
                (qos_name(service.tenant), plan.guarantee),
                (BORROWED_QOS, plan.borrow),
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
        return True

    async def cancel(self, array_job_id: int) -> None:
        """Cancel a service's array."""
        report("cancel", array=array_job_id)
        await self._slurm.cancel(array_job_id)
