"""Compares slurmctld's clock with this host's."""

import re
import time

from cluster.language.errors import SlicewiseError
from cluster.slurm_client.run import run

_AT = re.compile(r"^sdiag output at .*\((\d{1,12})\)\s*$", re.MULTILINE)


async def slurmctld_ahead_s() -> float | None:
    """Return the seconds by which slurmctld's clock is ahead of this host's, to a second.

    None if slurmctld does not say: it may show its counters to operators only.
    """
    asked_s = time.time()
    try:
        shown = await run(("sdiag",))
    except SlicewiseError:
        return None
    answered_s = time.time()
    found = _AT.search(shown)
    if found is None:
        return None
    said_s = int(found[1])
    # It says whole seconds, of some moment between question and answer.
    if int(asked_s) <= said_s <= answered_s:
        return 0.0
    return said_s - asked_s if said_s < asked_s else said_s - answered_s
