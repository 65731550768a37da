"""The loop that extends leases, and says which replicas must end."""

import time

from cluster.settings import Settings
from cluster.slurm.interface import JobChange, Slurm, Target, Tasks
from slurm_plugin.decide.leases import (
    LeasePlan,
    leased,
    plan_leases,
    spare_minutes,
    walls_of,
)
from slurm_plugin.observe import report, warn
from slurm_plugin.sync import Sync

_LOOK_S = 5.0
"""How often Slurm is asked for its plans: a lease is a minute at least."""


class Leases:
    """Keeps wished replicas running beyond their time limit, as far as others leave them room."""

    def __init__(self, settings: Settings, slurm: Slurm, sync: Sync) -> None:
        self._extends = settings.daemon.extend_leases
        self._costs = settings.costs
        self._slurm = slurm
        self._sync = sync
        self._planned_at_s = 0.0
        self._refused: dict[Target, str] = {}

    async def turn(self) -> None:
        """Plan on the last look at Slurm, once. Raises SlicewiseError if Slurm fails."""
        sync = self._sync
        looked_s = sync.view.observed_s
        if not sync.acts or looked_s < self._planned_at_s + _LOOK_S:
            return
        plan = await self._plan()
        sync.set_ends(plan.ends)
        if plan.limits_min:
            await self._extend(plan)
        self._planned_at_s = looked_s

    async def _plan(self) -> LeasePlan:
        """Slurm is asked for its plans only while there is a replica that they may concern."""
        sync = self._sync
        unheard_s = time.monotonic() - sync.heard_s
        slots = tuple(leased(sync.view.services, sync.jobs, sync.wished, unheard_s))
        if not slots:
            return LeasePlan()
        walls = walls_of(await self._slurm.reservations(), await self._slurm.plans(), sync.jobs)
        now_s, costs = time.time(), self._costs
        spare = spare_minutes(sync.policy, sync.run_minutes, sync.jobs, now_s, costs)
        return plan_leases(slots, walls, spare, now_s, costs, extends=self._extends)

    async def _extend(self, plan: LeasePlan) -> None:
        """What Slurm refuses has mostly ended meanwhile; it is told once."""
        changes: dict[Target, JobChange] = {
            Tasks(array, frozenset({index})): JobChange(time_limit_min=minutes)
            for (array, index), minutes in plan.limits_min.items()
        }
        refused = dict(await self._slurm.update(changes))
        if len(refused) < len(changes):
            report("leases_extended", slots=len(changes) - len(refused))
            self._sync.acted.set()
        if refused and refused != self._refused:
            warn("leases_refused", slots=len(refused), why=next(iter(refused.values())))
        self._refused = refused
