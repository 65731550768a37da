"""When slots whose task has ended are brought back."""

from collections.abc import Iterable

from cluster.wire import ServiceView
from slurm_plugin.decide.slots import lost_slots

_SETTLED_S = 5.0
"""Who cancels a service task by task is done by then."""
_AGAIN_S = 60.0
"""Before what Slurm refused is tried again."""


class Lost:
    """Remembers since when slots are lost."""

    def __init__(self) -> None:
        self._due_s: dict[tuple[int, int], float] = {}

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
        """Slots of that array to be brought back now; asked for again a minute later."""
        found = frozenset(
            index
            for (array, index), due_s in self._due_s.items()
            if array == array_job_id and due_s <= at_s
        )
        self._due_s |= {(array_job_id, index): at_s + _AGAIN_S for index in found}
        return found
