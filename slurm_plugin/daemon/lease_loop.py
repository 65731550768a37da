"""The loop that extends leases, and determines which replicas must end.

A lease is the time limit of a replica's job.
"""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf

from slicewise.cluster.language.jobs import JobState, ReservationView
from slicewise.cluster.language.service import limit_min
from slicewise.cluster.language.slurm.interface import JobChange, Slurm, Target, Tasks
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.common.log import report, warn
from slicewise.slurm_plugin.rules.services.leases import (
    Leased,
    LeasePlan,
    SlotRunKey,
    lease_of,
    leased,
    plan_leases,
    spare_minutes,
    walls_of,
)
from slicewise.slurm_plugin.rules.services.pace import waits
from slicewise.slurm_plugin.state.cluster_state import ClusterState

_LOOK_S = 5.0
"""Seconds between questions about Slurm's plans: a lease lasts a minute at least."""
_RESERVATIONS_S = 60.0
"""Seconds for which known reservations are used where they concern no replica and no lease is
extended beside them."""


class LeaseLoop:
    """Keeps desired replicas running beyond their time limit, where other jobs leave them room."""

    def __init__(self, settings: Settings, slurm: Slurm, cluster_state: ClusterState) -> None:
        self._extends = settings.daemon.extend_leases
        self._costs = settings.costs
        self._slurm = slurm
        self._cluster_state = cluster_state
        self._planned_at_s = -inf
        self._reservations: tuple[ReservationView, ...] = ()
        self._reserved_at_s = -inf
        self._refused: dict[Target, str] = {}

    async def turn(self) -> None:
        """Plan once on the last look at Slurm. Raises SlicewiseError if Slurm fails."""
        cluster_state = self._cluster_state
        looked_s = cluster_state.looked_monotonic_s
        if not cluster_state.runs_services or looked_s < self._planned_at_s + _LOOK_S:
            return
        plan = await self._plan()
        cluster_state.set_ends(plan.ends)
        if plan.limits_min:
            await self._extend(plan)
        self._planned_at_s = looked_s

    async def _plan(self) -> LeasePlan:
        """Plan leases; Slurm is asked for its plans only while they may concern a replica.

        No lease is extended into a reservation that was made since the last question.
        """
        cluster_state = self._cluster_state
        unheard_s = time.monotonic() - cluster_state.heard_s
        slots = tuple(
            leased(
                cluster_state.view.services,
                cluster_state.jobs,
                cluster_state.desired_slots,
                unheard_s,
            )
        )
        if not slots:
            return LeasePlan()
        nodes = frozenset(node for slot in slots for node in slot.run.nodes)
        near = _near(await self._reservations_of(_RESERVATIONS_S), nodes)
        if near:
            near = _near(await self._reservations_of(_LOOK_S), nodes)
        plan = await self._plan_beside(near, slots)
        if plan.limits_min:
            now = _near(await self._reservations_of(_LOOK_S), nodes)
            return plan if now == near else await self._plan_beside(now, slots)
        return plan

    async def _reservations_of(self, known_for_s: float) -> tuple[ReservationView, ...]:
        """Slurm's reservations, no older than so many seconds."""
        now_s = time.monotonic()
        if now_s >= self._reserved_at_s + known_for_s:
            self._reservations, self._reserved_at_s = await self._slurm.reservations(), now_s
        return self._reservations

    async def _plan_beside(
        self, near: Sequence[ReservationView], slots: tuple[Leased, ...]
    ) -> LeasePlan:
        cluster_state = self._cluster_state
        if near:
            slots = await self._beside(near, slots)
        # Slurm plans starts of waiting jobs only.
        plans = await self._slurm.plans() if waits(cluster_state.jobs) else ()
        walls = walls_of(near, plans, cluster_state.jobs)
        # Leases end by slurmctld's clock. By a host's that was set ahead, a replica would get all
        # that its budget pays for; by one that was set back, no lease.
        now_s, costs = await self._slurm.clock_s(), self._costs
        spare = spare_minutes(
            cluster_state.quotas.policy,
            cluster_state.quotas.run_minutes,
            cluster_state.jobs,
            now_s,
            costs,
        )
        return plan_leases(slots, walls, spare, now_s, costs, extends=self._extends)

    async def _beside(
        self, reservations: Sequence[ReservationView], slots: Sequence[Leased]
    ) -> tuple[Leased, ...]:
        """Add to the slots the reservations in which they run, and the cores that they have on
        nodes of divided reservations.
        """
        inside = await self._slurm.reserved()
        divided = {node for reservation in reservations for node in reservation.cores}
        asked = [slot.run for slot in slots if divided.intersection(slot.run.nodes)]
        cores = await self._slurm.cores(asked) if asked else {}
        return tuple(
            replace(
                slot,
                reservations=inside.get(slot.run.job_id, frozenset()),
                cores=cores.get(slot.run.job_id, {}),
            )
            for slot in slots
        )

    async def _extend(self, plan: LeasePlan) -> None:
        """Set the new time limits.

        A limit belongs to a task, not to its run, so the run is checked right before and right
        after. Where Slurm refuses a change, the run has mostly ended meanwhile; that is logged
        once.
        """
        running = await self._running(plan.limits_min)
        limits_min = {run: limit for run, limit in plan.limits_min.items() if run in running}
        refused = dict(await self._slurm.update(_changes(limits_min)))
        changed = [run for run in limits_min if _task(run) not in refused]
        if changed:
            await self._undo(changed)
            report("leases_extended", slots=len(changed))
            self._cluster_state.acted.set()
        if refused and refused != self._refused:
            warn("leases_refused", slots=len(refused), why=next(iter(refused.values())))
        self._refused = refused

    async def _undo(self, changed: Sequence[SlotRunKey]) -> None:
        """Give tasks their first lease back for their next run, if their run ended meanwhile."""
        running = await self._running(changed)
        leases_s = {
            service.array_job_id: lease_of(service) for service in self._cluster_state.view.services
        }
        ended = {
            run: limit_min(leases_s[run[0]])
            for run in changed
            if run not in running and run[0] in leases_s
        }
        if ended:
            report("leases_undone", slots=len(ended))
            await self._slurm.update(_changes(ended))

    async def _running(self, runs: Collection[SlotRunKey]) -> frozenset[SlotRunKey]:
        """The runs among these that are still running."""
        tasks = await self._slurm.tasks({array for array, _, _ in runs})
        now = {
            (job.array_job_id, job.task_index, job.start_s)
            for job in tasks
            if job.state is JobState.RUNNING
        }
        return frozenset(run for run in runs if run in now)


def _near(
    reservations: Iterable[ReservationView], nodes: frozenset[str]
) -> tuple[ReservationView, ...]:
    return tuple(
        reservation for reservation in reservations if nodes.intersection(reservation.nodes)
    )


def _changes(limits_min: Mapping[SlotRunKey, int]) -> Mapping[Target, JobChange]:
    return {_task(run): JobChange(time_limit_min=limit) for run, limit in limits_min.items()}


def _task(run: SlotRunKey) -> Tasks:
    array, index, _ = run
    return Tasks(array, frozenset({index}))
