"""Asks Slurm for all that the doctor and setup look at."""

from collections.abc import Mapping

from slicewise.cluster.language.errors import SlicewiseError
from slicewise.cluster.language.slurm.interface import Qos, Slurm
from slicewise.cluster.runtime.together import together
from slicewise.cluster.slurm.billing_limits import billing_limits
from slicewise.cluster.slurm.clock import slurmctld_ahead_s
from slicewise.slurm_plugin.rules.site.facts import SlurmFacts
from slicewise.slurm_plugin.rules.slurm_config.slurm_conf import PREEMPT_QOS


async def slurm_facts(slurm: Slurm) -> SlurmFacts:
    """Return what slurmctld says of itself, and of slurmdbd's QOS where that matters."""
    config, partitions, nodes, ahead_s, limits = await together(
        slurm.config(), slurm.partitions(), slurm.nodes(), slurmctld_ahead_s(), billing_limits()
    )
    return SlurmFacts(config, partitions, nodes, ahead_s, limits, await _qos(slurm, config))


async def _qos(slurm: Slurm, config: Mapping[str, str]) -> tuple[Qos, ...] | None:
    """Return QOS where they are to preempt and do not; slurmdbd may be out of a node's reach."""
    if config.get("PreemptType") == PREEMPT_QOS:
        return None
    try:
        return await slurm.qos()
    except SlicewiseError:
        return None
