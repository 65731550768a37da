"""Asks slurmdbd for what administrators alone set in it."""

from collections.abc import Mapping

from slicewise.cluster.language.slurm.account_bounds import BOUNDS, parse_admins, parse_qos_bounds
from slicewise.cluster.slurm.run_command import run

_SHOW = ("sacctmgr", "--noheader", "--parsable2", "show")


async def qos_bounds() -> Mapping[str, Mapping[str, str]]:
    """Return the limits of each QOS that Slicewise never sets. Raises what ``run`` raises."""
    return parse_qos_bounds(await run((*_SHOW, "qos", f"format={','.join(('Name', *BOUNDS))}")))


async def admins() -> Mapping[str, str]:
    """Return the AdminLevel of who may change QOS and limits. Raises what ``run`` raises."""
    return parse_admins(await run((*_SHOW, "user", "format=User,AdminLevel")))
