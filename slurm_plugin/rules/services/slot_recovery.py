"""Decides when slots with an ended task are brought back, and whether the owner cancelled all."""

from collections.abc import Collection, Iterable, Mapping

from slicewise.cluster.language.jobs import JobView
from slicewise.cluster.rpc.messages import ServiceView
from slicewise.slurm_plugin.rules.services.slot_actions import lost_slots, were_cancelled

_SETTLED_S = 5.0
"""Seconds after which an owner who cancels a service task by task is done."""
_AGAIN_S = 60.0
"""Seconds until a slot that Slurm refused to bring back is tried again."""
_LATE_S = 60.0
"""Seconds for which Slurm may still make a requeue that got no answer."""


class SlotRecovery:
    """Remembers since when slots have been lost, and which were just brought back."""

    def __init__(self) -> None:
        self._due_s: dict[tuple[int, int], float] = {}
        self._beside: Mapping[int, frozenset[int]] = {}
        self._late_until_s: Mapping[int, float] = {}
        self._gone: frozenset[int] = frozenset()

    def follow(self, services: Iterable[ServiceView], at_s: float) -> None:
        """Note the services seen at ``at_s``; slots no longer lost are forgotten.

        Wherever it is asked for, ``at_s`` is by a clock that is never set back.
        """
        self._due_s = {
            (service.array_job_id, index): self._due_s.get(
                (service.array_job_id, index), at_s + _SETTLED_S
            )
            for service in services
            for index in lost_slots(service)
        }

    def follow_unanswered(
        self, services: Iterable[ServiceView], jobs: Iterable[JobView], at_s: float
    ) -> None:
        """Note which arrays, of those with a requeue that got no answer, have been cancelled, as of
        the services and jobs seen at ``at_s``.
        """
        living = frozenset(service.array_job_id for service in services)
        back = self._gone & living
        self._late_until_s = {
            array: until_s
            for array, until_s in self._late_until_s.items()
            if at_s < until_s or array in back
        }
        ends: dict[int, set[str]] = {array: set() for array in self._late_until_s.keys() - living}
        for job in jobs if ends else ():
            if job.array_job_id in ends:
                ends[job.array_job_id].add(job.ended)
        # Slurm has no record of a task that was cancelled before it ever started.
        gone = (array for array, words in ends.items() if not words or "CANCELLED" in words)
        # A service whose script can't be read is not among the services, and lives on.
        self._gone = back.union(array for array in gone if "" not in ends[array])

    def unanswered(self, array_job_id: int, at_s: float) -> None:
        """Note that Slurm did not answer whether it requeues slots of the array.

        It may do so later, and brings them back if their owner has cancelled the array meanwhile.
        """
        self._late_until_s = {**self._late_until_s, array_job_id: at_s + _LATE_S}

    def due(self, array_job_id: int, at_s: float) -> frozenset[int]:
        """Slots of the array to bring back now. Each is due again a minute later.

        Empty while it is not known whether the last ones came back to an array that was cancelled.
        """
        if array_job_id in self._beside:
            return frozenset()
        slots = frozenset(
            index
            for (array, index), due_s in self._due_s.items()
            if array == array_job_id and due_s <= at_s
        )
        self._due_s |= {(array_job_id, index): at_s + _AGAIN_S for index in slots}
        return slots

    def revive(self, array_job_id: int, beside: frozenset[int]) -> None:
        """Note that slots of the array are requeued, held; those ``beside`` lived right before.

        Slurm brings a task back that was cancelled a moment ago, whether it ran until then or not.
        """
        self._beside = {**self._beside, array_job_id: beside}

    def cancelled(self, services: Collection[ServiceView]) -> frozenset[int]:
        """Arrays that their owner cancelled before slots of them were brought back.

        That is so if all the slots that lived beside those were cancelled; nothing is known while
        some of them still end. It is so, too, if the whole array was seen cancelled after a requeue
        that got no answer. Such an array is returned until it has ended, since cancelling it may
        fail.
        """
        judged = {
            service.array_job_id: were_cancelled(service, self._beside[service.array_job_id])
            for service in services
            if service.array_job_id in self._beside
        }
        self._beside = {
            array: those
            for array, those in self._beside.items()
            if judged.get(array, False) is not False
        }
        arrays = frozenset(array for array, is_so in judged.items() if is_so)
        return arrays.union(
            service.array_job_id for service in services if service.array_job_id in self._gone
        )
