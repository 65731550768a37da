"""The only place that changes jobs in Slurm."""

from cluster.slurm.interface import Slurm, Tasks
from slurm_plugin.decide.slots import SlotPlan
from slurm_plugin.observe import report


class Actuator:
    """Carries plans out. Plans are made of services, and services only of jobs with our tag."""

    def __init__(self, slurm: Slurm) -> None:
        self._slurm = slurm

    async def apply(self, array_job_id: int, plan: SlotPlan) -> bool:
        """Give back first, then release; True if there was anything to do."""
        actions = (
            ("requeue_hold", self._slurm.requeue_hold, plan.requeue_hold),
            ("hold", self._slurm.hold, plan.hold),
            ("release", self._slurm.release, plan.release),
        )
        for name, act, slots in actions:
            if slots:
                report(name, array=array_job_id, slots=slots)
                await act(Tasks(array_job_id, slots))
        return any(slots for _, _, slots in actions)

    async def cancel(self, array_job_id: int) -> None:
        """Cancel a service's array."""
        report("cancel", array=array_job_id)
        await self._slurm.cancel(array_job_id)
