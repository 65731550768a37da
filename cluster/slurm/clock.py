"""Asks slurmctld for its time."""

import re

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import OutsideError, SlicewiseError
from slicewise.cluster.runtime.wall_clock import wall_s
from slicewise.cluster.slurm.run_command import run

_AT = re.compile(r"^sdiag output at .*\((\d{1,12})\)\s*$", re.MULTILINE)


async def slurmctld_s() -> float:
    """Return slurmctld's time in Unix seconds: this host's, where both agree to a second.

    ``sdiag`` says whole seconds, of some moment between question and answer. Raises SlicewiseError;
    SW-SLURM-FAILED if slurmctld shows its counters to operators only.
    """
    asked_s = wall_s()
    shown = await run(("sdiag",))
    answered_s = wall_s()
    match = _AT.search(shown)
    if match is None:
        raise OutsideError(Code.SLURM_FAILED, "sdiag does not say what time slurmctld has.")
    said_s = int(match[1])
    if int(asked_s) <= said_s <= answered_s:
        return answered_s
    return answered_s + said_s - (asked_s if said_s < asked_s else answered_s)


async def slurmctld_ahead_s() -> float | None:
    """Return the seconds by which slurmctld's clock is ahead of this host's, to a second.

    None if slurmctld does not say.
    """
    try:
        return await slurmctld_s() - wall_s()
    except SlicewiseError:
        return None
