"""Follows tenants' recent use from look to look; at the start it comes from the ledger."""

import asyncio
from collections.abc import Iterator

from slicewise.cluster.language.errors import OutsideError, UnreachableError
from slicewise.cluster.language.jobs import ALLOTTED
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.common.log import report_failure
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rules.admission.decayed_use import (
    HALF_LIVES,
    DecayedUse,
    Holding,
    folded,
    recorded,
)
from slicewise.slurm_plugin.rules.common.costs import job_cost
from slicewise.slurm_plugin.rules.common.qos_names import holder_of
from slicewise.slurm_plugin.state.cluster_state import ClusterState

_GAP_S = 60.0
"""Seconds without a look after which the ledger is asked for the use meanwhile, and seconds until
it is asked again after PostgreSQL did not answer."""


class TenantUse:
    """Decayed use by tenant, as of the last look at Slurm."""

    def __init__(self, settings: Settings, ledger: Ledger, cluster_state: ClusterState) -> None:
        self._half_life_s = settings.priority.half_life_s
        self._partitions = frozenset(settings.cluster.partitions)
        self._costs = settings.costs
        self._ledger = ledger
        self._cluster_state = cluster_state
        self._ledger_due_s = 0.0
        self.now = DecayedUse(0.0)

    async def follow(self) -> None:
        """Bring the use up to the last look.

        Where the ledger is needed and does not answer, only running jobs count until it does.
        """
        now_s = self._cluster_state.slurm_s
        is_lost = now_s - self.now.at_s > _GAP_S
        holdings = await self._recorded(now_s) if is_lost or now_s >= self._ledger_due_s else None
        if holdings is None and is_lost:
            holdings = tuple(self._running())
        if holdings is not None:
            self.now = recorded(holdings, now_s, self._half_life_s)
            return
        tenants = self._cluster_state.view.tenants
        held = {tenant.name: tenant.own_in_use_millislices for tenant in tenants}
        self.now = folded(self.now, held, now_s, self._half_life_s)

    async def _recorded(self, now_s: float) -> tuple[Holding, ...] | None:
        """Holdings from the ledger; None if PostgreSQL does not answer, which is asked again later
        then.
        """
        since_s = int(now_s - HALF_LIVES * self._half_life_s)
        try:
            holdings = await asyncio.to_thread(self._ledger.charges.holdings, since_s)
        except (UnreachableError, OutsideError) as error:
            report_failure("recent_use_unknown", error, retry_s=_GAP_S)
            self._ledger_due_s = now_s + _GAP_S
            return None
        self._ledger_due_s = float("inf")
        return holdings

    def _running(self) -> Iterator[Holding]:
        for job in self._cluster_state.jobs:
            if job.state in ALLOTTED and job.partition in self._partitions and job.start_s:
                cost = job_cost(job, self._costs)
                yield Holding(holder_of(job), cost, job.start_s, None)
