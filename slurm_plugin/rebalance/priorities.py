"""The step that updates waiting jobs' site_factor where no daemon does."""

import asyncio

from slicewise.cluster.language.slurm.interface import JobChange, target_of
from slicewise.slurm_plugin.daemon.priority_loop import SAVED_S
from slicewise.slurm_plugin.ledger.summaries import recent_use
from slicewise.slurm_plugin.rebalance.site_look import RebalanceLook, Report, RunContext
from slicewise.slurm_plugin.rules.admission.decayed_use import shares
from slicewise.slurm_plugin.rules.admission.formula import formula_of
from slicewise.slurm_plugin.rules.admission.priority_changes import (
    UPDATES_PER_S,
    PriorityInput,
    changes,
    ranked,
)
from slicewise.slurm_plugin.rules.quota.tenants import guaranteed_quota


async def prioritise(site: RunContext, look: RebalanceLook, *, apply: bool) -> Report:
    """Set at most the site_factors that the daemon may set after a pause; backlogs do not count."""
    standing = await _standing(site, look)
    waiting = ranked(look.jobs, look.at_s, standing)
    rows = await site.slurm.priorities({ranked.job.job_id for ranked in waiting}) if waiting else ()
    site_factors = {row.job_id: row.site for row in rows}
    most = int(UPDATES_PER_S * SAVED_S)
    due = changes(waiting, site_factors, standing.formula, most)
    count = len(due)
    if apply and due:
        told = {target_of(ranked.job): JobChange(site_factor=ranked.site_factor) for ranked in due}
        count -= len(await site.slurm.update(told))
    return Report(
        saw={"waiting": len(waiting), "due": len(due)},
        lines=(f"jobs with a new site_factor: {count}",) if count else (),
    )


async def _standing(site: RunContext, look: RebalanceLook) -> PriorityInput:
    use = await asyncio.to_thread(recent_use, site.ledger, site.settings, look.at_s)
    by_tenant = shares(use, guaranteed_quota(look.policy), site.settings.priority.half_life_s)
    return PriorityInput(by_tenant, {}, site.settings.costs, formula_of(site.settings.priority))
