"""Which replicas are told to leave: kept in memory, and only for a while."""

import time
from collections.abc import Iterable

from cluster.leadership import Leader
from cluster.wire import DoneAnswer, LeaveRequest, ServiceView, SlotView
from slurm_plugin.decide.leases import RunKey
from slurm_plugin.decide.services import to_be_replaced

TOLD_S = 30.0
"""Whoever wants them to go tells it every few seconds; what nobody repeats is over."""


class Leaving:
    """Runs of slots that shall end once others serve in their place, until when, and why."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._told: dict[RunKey, tuple[float, str]] = {}

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

    def shown(self, array_job_id: int, slot: SlotView) -> SlotView:
        """As the launcher sees it."""
        until_s, why = self._told.get((array_job_id, slot.index, slot.start_s), (0.0, ""))
        return to_be_replaced(slot, why) if until_s > time.monotonic() else slot
