"""The loop that sets nodes' weights in Slurm as ``mig.node_weights`` has them."""

from cluster.settings.file import Settings
from cluster.slurm.interface import SlurmActor
from slurm_plugin.common.log import report
from slurm_plugin.mig.node_weights import changes, own_weights
from slurm_plugin.state.controller import Sync

_TELL_S = 10.0
"""Least seconds between changes in Slurm. In replays 300 s were as good."""


class NodeWeights:
    """Weighs nodes where the site wants it; else puts back the weights that it set before."""

    def __init__(self, settings: Settings, slurm: SlurmActor, sync: Sync) -> None:
        self._is_wanted = settings.placement.node_weights
        self._partitions = frozenset(settings.cluster.partitions)
        self._costs = settings.costs
        self._slurm = slurm
        self._sync = sync
        self._told_s = 0.0

    async def turn(self) -> None:
        """Change the weights that differ. Raises SlicewiseError if Slurm fails."""
        sync = self._sync
        looked_s = sync.view.observed_s
        if not sync.acts or looked_s < self._told_s + _TELL_S:
            return
        if self._is_wanted:
            due = changes(sync.nodes, self._partitions, self._costs)
        else:
            due = own_weights(sync.nodes)
        if due:
            self._told_s = looked_s
            await self._slurm.weigh_nodes(due)
            report("nodes_weighed", nodes=len(due))
