"""Bring Slurm's limits to what the ledger's quotas say: gather, decide, apply."""

import asyncio
from collections.abc import Mapping

from cluster.errors import OutsideError
from cluster.slurm.interface import Slurm
from slurm_plugin.decide.limits import Change, limit_changes
from slurm_plugin.decide.model import Quota

_ROUNDS = 4
"""Accounts first, then users that do not inherit; the last must find nothing left to do."""


async def compile_limits(
    slurm: Slurm, quotas: Mapping[str, Quota], cluster_name: str
) -> tuple[Change, ...]:
    """Apply the difference and return the changes that it took; none if Slurm has it all.

    Safe to repeat at any time. Raises what ``Slurm`` raises, and OutsideError
    (SW-LIMITS-UNSETTLED) if Slurm goes on showing other limits than those that were just set.
    """
    applied: tuple[Change, ...] = ()
    for _ in range(_ROUNDS):
        associations, qos = await asyncio.gather(slurm.associations(), slurm.qos())
        changes = limit_changes(cluster_name, quotas, associations, qos)
        if not changes:
            return applied
        await slurm.sacctmgr(changes)
        applied += changes
    raise OutsideError(
        "SW-LIMITS-UNSETTLED",
        f"Slurm still shows other limits after {len(applied)} changes, the last of them: "
        f"sacctmgr {' '.join(applied[-1])}.",
        "Something else may be changing them at the same time; look at sacctmgr show assoc, qos.",
    )
