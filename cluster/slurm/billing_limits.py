"""Asks slurmctld for limits on billing, and what is used of them."""

from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.language.slurm.billing_limits import BillingLimit, parse_billing_limits
from slicewise.cluster.slurm.run_command import run


async def billing_limits() -> tuple[BillingLimit, ...] | None:
    """Return every limit on billing of associations and QOS; None if slurmctld does not say."""
    try:
        shown = await run(("scontrol", "show", "assoc_mgr", "flags=assoc,qos"))
    except SlicewiseError:
        return None
    return parse_billing_limits(shown)
