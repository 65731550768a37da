"""Which replicas are told to leave: kept in memory, and only for a while."""

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from cluster.leadership import Leader
from cluster.wire import DoneAnswer, LeaveRequest, ServiceView, SlotView
from slurm_plugin.decide.leases import RunKey
from slurm_plugin.decide.policy import Recall
from slurm_plugin.decide.reclaim.waits import Lenders, still_waiting
from slurm_plugin.decide.services import to_be_replaced
from slurm_plugin.decide.slots import borrowed_waiting

TOLD_S = 30.0
"""Whoever wants them to go tells it every few seconds; what nobody repeats is over."""
REST_S = 30.0
"""So long slots wait on once there is nobody to wait for. Without it a lender's work that comes and
goes asks up to a quarter more replicas to go, for 0.1 % more slices in use (replays of traces).
"""


_RUNS = frozenset({"starting", "running"})


@dataclass(frozen=True)
class Told:
    """A run that shall end now, of a service ``tenant/name``, and why."""

    job_id: int
    service: str
    why: str


class Leaving:
    """Runs of slots that shall end, and why: once others serve in their place, or now."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._told: dict[RunKey, tuple[float, str]] = {}
        self._ends: dict[RunKey, Told] = {}
        self._waits: dict[str, float] = {}
        self._lenders: Lenders = {}

    def take(self, request: LeaveRequest, services: Iterable[ServiceView]) -> DoneAnswer:
        """Raises UnreachableError (SW-DAEMON-STANDBY): the daemon that leads tells the launcher."""
        self._leader.require()
        now_s = time.monotonic()
        known = {key: told for key, told in self._told.items() if told[0] > now_s}
        new = {
            (service.array_job_id, slot.index, slot.start_s): (now_s + TOLD_S, request.why)
            for service in services
            for slot in service.slots
            if slot.job_id in request.job_ids
        }
        self._told = known | new
        return DoneAnswer()

    def end(
        self,
        victims: Mapping[int, str],
        over: Mapping[str, int],
        services: Iterable[ServiceView],
        grace_s: float,
    ) -> tuple[Told, ...]:
        """Tell these runs, by job id, to end now; those that are told for the first time.

        Whoever is told stays so until it has ended, as long as its tenant holds too much beside
        the ``victims`` (``over``, millislices). From then on its tenant's slots wait (``waits``),
        for ``grace_s`` at most.
        """
        before, self._ends = self._ends, {}
        left = Counter(over)
        runs = sorted(_runs(services), key=lambda run: run[2] not in victims)
        for service, slot, job_id in runs:
            key = (service.array_job_id, slot.index, slot.start_s)
            is_told = key in before and left[service.tenant] > 0
            if job_id in victims or is_told:
                left[service.tenant] -= service.cost_millislices
                name = f"{service.tenant}/{service.name}"
                why = before[key].why if key in before else victims[job_id]
                self._ends[key] = Told(job_id, name, why)
                if key not in before:
                    self._waits[service.tenant] = time.monotonic() + grace_s
                    self._lenders = {service.tenant: frozenset(), **self._lenders}
        return tuple(told for key, told in self._ends.items() if key not in before)

    def wait_on(self, recalls: Iterable[Recall], starting: Collection[str]) -> None:
        """Whose slots wait do so as long as there is somebody to wait for (see
        ``decide.reclaim.waits``), and ``REST_S`` more.
        """
        going = {told.service.partition("/")[0] for told in self._ends.values()}
        before = {name: of for name, of in self._lenders.items() if self.waits(name)}
        self._lenders = still_waiting(before, going, recalls, starting)
        rest_s = time.monotonic() + REST_S
        for name in before.keys() - self._lenders.keys():
            self._waits[name] = min(self._waits[name], rest_s)

    @property
    def anybody_waits(self) -> bool:
        """Whether ``wait_on`` has anything to decide."""
        return bool(self._lenders)

    def waits(self, tenant: str) -> bool:
        """Whether none of its slots may start on borrowed quota now: where its ceiling has room,
        one would start on what a replica of its own has just left to a lender.
        """
        return self._waits.get(tenant, 0.0) > time.monotonic()

    def kept(self, service: ServiceView) -> frozenset[int]:
        """Those of its slots that wait on borrowed quota, and may not start on it now."""
        return borrowed_waiting(service) if self.waits(service.tenant) else frozenset()

    @property
    def ending(self) -> frozenset[int]:
        """Job ids of the runs that are told to end now."""
        return frozenset(told.job_id for told in self._ends.values())

    def shown(self, array_job_id: int, slot: SlotView) -> SlotView:
        """As the launcher sees it."""
        key = (array_job_id, slot.index, slot.start_s)
        if key in self._ends and slot.state in _RUNS:
            return slot.model_copy(update={"leaves_s": 0, "leaves_why": self._ends[key].why})
        until_s, why = self._told.get(key, (0.0, ""))
        return to_be_replaced(slot, why) if until_s > time.monotonic() else slot


def _runs(services: Iterable[ServiceView]) -> Iterator[tuple[ServiceView, SlotView, int]]:
    """What may still be told, with its job id."""
    for service in services:
        for slot in service.slots:
            if slot.job_id is not None and slot.state in _RUNS:
                yield service, slot, slot.job_id
