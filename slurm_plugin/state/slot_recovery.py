"""Decides when slots with an ended task are brought back, and whether the owner cancelled all."""

from collections.abc import Iterable, Mapping

from cluster.rpc.messages import ServiceView
from slurm_plugin.services.slot_actions import lost_slots, were_cancelled

_SETTLED_S = 5.0
"""Seconds after which an owner who cancels a service task by task is done."""
_AGAIN_S = 60.0
"""Seconds until a slot that Slurm refused to bring back is tried again."""


class SlotRecovery:
    """Remembers since when slots have been lost, and which were just brought back."""

    def __init__(self) -> None:
        self._due_s: dict[tuple[int, int], float] = {}
        self._beside: Mapping[int, frozenset[int]] = {}

    def follow(self, services: Iterable[ServiceView], at_s: float) -> None:
        """Note the services seen at ``at_s``; slots no longer lost are forgotten.

        Here and in ``due``, ``at_s`` is by a clock that is never set back.
        """
        self._due_s = {
            (service.array_job_id, index): self._due_s.get(
                (service.array_job_id, index), at_s + _SETTLED_S
            )
            for service in services
            for index in lost_slots(service)
        }

    def due(self, array_job_id: int, at_s: float) -> frozenset[int]:
        """Slots of the array to bring back now. Each is due again a minute later.

        Empty while it is not known whether the last ones came back to an array that was cancelled.
        """
        if array_job_id in self._beside:
            return frozenset()
        found = frozenset(
            index
            for (array, index), due_s in self._due_s.items()
            if array == array_job_id and due_s <= at_s
        )
        self._due_s |= {(array_job_id, index): at_s + _AGAIN_S for index in found}
        return found

    def revive(self, array_job_id: int, beside: frozenset[int]) -> None:
        """Note that slots of the array are requeued, held; those ``beside`` lived right before.

        Slurm brings a task back that was cancelled a moment ago, whether it ran until then or not.
        """
        self._beside = {**self._beside, array_job_id: beside}

    def cancelled(self, services: Iterable[ServiceView]) -> frozenset[int]:
        """Arrays that their owner cancelled at the moment when slots of them were brought back.

        That is so if all the slots that lived beside those were cancelled; nothing is known while
        some of them still end. Such an array is returned until it has ended, since cancelling it
        may fail.
        """
        judged = {
            one.array_job_id: were_cancelled(one, self._beside[one.array_job_id])
            for one in services
            if one.array_job_id in self._beside
        }
        self._beside = {
            array: those
            for array, those in self._beside.items()
            if judged.get(array, False) is not False
        }
        return frozenset(array for array, is_so in judged.items() if is_so)
