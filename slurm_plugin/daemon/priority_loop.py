"""The loop that sets pending jobs' site_factor in Slurm as ``admission.priority`` has it."""

from collections.abc import Mapping, Sequence

from slicewise.cluster.language.slurm.interface import JobChange, Slurm, target_of
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.common.log import report
from slicewise.slurm_plugin.daemon.recent_use import TenantUse
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rules.admission.decayed_use import averages, shares
from slicewise.slurm_plugin.rules.admission.formula import formula_of
from slicewise.slurm_plugin.rules.admission.priority_changes import (
    UPDATES_PER_S,
    PriorityInput,
    Ranked,
    changes,
    ranked,
)
from slicewise.slurm_plugin.state.cluster_state import ClusterState

_ASK_S = 5.0
"""Seconds between questions about the site_factors of jobs not known yet."""
_ASK_ALL_S = 300.0
"""Seconds between questions about all jobs: an administrator may have set a site_factor
manually."""
SAVED_S = 10.0
"""Seconds for which unused allowance for changes accumulates."""


class PriorityLoop:
    """Sets each waiting job's site_factor, no faster than [priority] allows."""

    def __init__(
        self, settings: Settings, slurm: Slurm, ledger: Ledger, cluster_state: ClusterState
    ) -> None:
        self._settings = settings.priority
        self._formula, self._costs = formula_of(settings.priority), settings.costs
        self._slurm = slurm
        self._cluster_state = cluster_state
        self._use = TenantUse(settings, ledger, cluster_state)
        self._known: dict[int, int] = {}
        self._ask_due_s = self._ask_all_due_s = 0.0
        self._allowance = 0.0
        self._looked_s = 0.0

    async def _follow(self) -> PriorityInput:
        """Follow recent use, and return what counts for all jobs beside their own fields.

        Admission gets the shares, too.
        """
        await self._use.follow()
        guaranteed_quotas = {
            tenant.name: tenant.nominal_millislices for tenant in self._cluster_state.view.tenants
        }
        by_tenant = shares(self._use.now, guaranteed_quotas, self._settings.half_life_s)
        self._cluster_state.set_shares(by_tenant)
        state, formula = self._cluster_state, self._formula
        return PriorityInput(by_tenant, state.urgencies, self._costs, formula, state.passed_over)

    def held_lately(self) -> Mapping[str, float]:
        """Millislices that each tenant has held on average; {} until that is known."""
        return averages(self._use.now, self._settings.half_life_s)

    async def start(self) -> None:
        """Learn what tenants have used, so that it already counts for the first submission."""
        await self._follow()

    async def turn(self) -> None:
        """Follow recent use, and set the site_factors that have changed.

        Does nothing until Slurm was seen whole. Raises SlicewiseError if it does not answer.
        """
        if not self._cluster_state.view.complete:
            return
        standing = await self._follow()
        if self._cluster_state.acts:
            wanted = ranked(self._cluster_state.jobs, self._cluster_state.slurm_s, standing)
            await self._learn(wanted)
            await self._tell(wanted)

    async def _learn(self, wanted: Sequence[Ranked]) -> None:
        """Ask Slurm for the site_factors of jobs that are not known yet."""
        now_s = self._cluster_state.looked_monotonic_s
        ids = {each.job.job_id for each in wanted}
        if now_s >= self._ask_all_due_s:
            self._known, self._ask_all_due_s = {}, now_s + _ASK_ALL_S
        self._known = {job_id: factor for job_id, factor in self._known.items() if job_id in ids}
        unknown = ids - self._known.keys()
        if unknown and now_s >= self._ask_due_s:
            self._ask_due_s = now_s + _ASK_S
            rows = await self._slurm.priorities(unknown)
            self._known |= {row.job_id: row.site for row in rows}

    async def _tell(self, wanted: Sequence[Ranked]) -> None:
        """Set the due site_factors.

        A change that Slurm refuses is tried again only after Slurm was asked about all jobs.
        """
        due = changes(wanted, self._known, self._formula, self._allowed())
        if not due:
            return
        self._allowance -= len(due)
        refused = await self._slurm.update(
            {target_of(each.job): JobChange(site_factor=each.site_factor) for each in due}
        )
        self._known |= {each.job.job_id: each.site_factor for each in due}
        report("priorities_set", jobs=len(due) - len(refused), refused=len(refused))

    def _allowed(self) -> int:
        """Number of changes that the rate allows now; after a pause not many more than usual."""
        now_s = self._cluster_state.looked_monotonic_s
        passed_s, self._looked_s = max(0.0, now_s - self._looked_s), now_s
        self._allowance = min(UPDATES_PER_S * SAVED_S, self._allowance + UPDATES_PER_S * passed_s)
        return int(self._allowance)
