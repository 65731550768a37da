"""What tenants have used lately, by the ledger: a run has nobody who followed it."""

import asyncio

from slurm_plugin.decide.decayed_use import HALF_LIVES, DecayedUse, recorded
from slurm_plugin.rebalance.look import Look, Site


def half_life_s(site: Site) -> float:
    """As [priority] has it."""
    return site.settings.priority.half_life_h * 3600


async def recent_use(site: Site, look: Look) -> DecayedUse:
    """As of the look."""
    since_s = int(look.at_s - HALF_LIVES * half_life_s(site))
    holdings = await asyncio.to_thread(site.ledger.holdings, since_s)
    return recorded(holdings, look.at_s, half_life_s(site))
