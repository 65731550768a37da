"""When slots whose task has ended are brought back, and when their owner had cancelled them all."""

from collections.abc import Iterable, Mapping

from cluster.wire import ServiceView
from slurm_plugin.decide.slots import lost_slots, were_cancelled

_SETTLED_S = 5.0
"""Who cancels a service task by task is done by then."""
_AGAIN_S = 60.0
"""Before what Slurm refused is tried again."""


class Lost:
    """Remembers since when slots are lost, and which were just brought back."""

    def __init__(self) -> None:
        self._due_s: dict[tuple[int, int], float] = {}
        self._beside: Mapping[int, frozenset[int]] = {}

    def follow(self, services: Iterable[ServiceView], at_s: float) -> None:
        """What was seen then; slots that are not lost any more are forgotten."""
        self._due_s = {
            (service.array_job_id, index): self._due_s.get(
                (service.array_job_id, index), at_s + _SETTLED_S
            )
            for service in services
            for index in lost_slots(service)
        }

    def due(self, array_job_id: int, at_s: float) -> frozenset[int]:
        """Slots of that array to be brought back now; asked for again a minute later. None while
        it is not known whether the last ones came back to an array that was cancelled.
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
        """Slots of it are brought back; those ``beside`` lived right before."""
        self._beside = {**self._beside, array_job_id: beside}

    def cancelled(self, services: Iterable[ServiceView]) -> frozenset[int]:
        """Arrays that their owner cancelled in the moment in which slots of them were brought back:
        what lived beside those was cancelled. While some of that still ends nothing is known. They
        are named until they have ended: to cancel them may fail.
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
