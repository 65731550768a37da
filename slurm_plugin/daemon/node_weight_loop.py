"""The loop that sets nodes' weights in Slurm as ``mig.node_weights`` has them."""

from math import inf

from slicewise.cluster.language.slurm.interface import SlurmActor
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.common.log import report
from slicewise.slurm_plugin.rules.mig.node_weights import changes, own_weights
from slicewise.slurm_plugin.state.cluster_state import ClusterState

_TELL_S = 10.0
"""Least seconds between changes in Slurm. In replays 300 s were as good."""


class NodeWeightLoop:
    """Weighs nodes where the site wants it; else puts back the weights that it set before."""

    def __init__(self, settings: Settings, slurm: SlurmActor, cluster_state: ClusterState) -> None:
        self._is_wanted = settings.placement.node_weights
        self._partitions = frozenset(settings.cluster.partitions)
        self._costs = settings.costs
        self._slurm = slurm
        self._cluster_state = cluster_state
        self._told_s = -inf

    async def turn(self) -> None:
        """Change the weights that differ. Raises SlicewiseError if Slurm fails."""
        cluster_state = self._cluster_state
        looked_s = cluster_state.looked_monotonic_s
        if not cluster_state.acts or looked_s < self._told_s + _TELL_S:
            return
        if self._is_wanted:
            due = changes(cluster_state.nodes, self._partitions, self._costs)
        else:
            due = own_weights(cluster_state.nodes)
        if due:
            self._told_s = looked_s
            await self._slurm.weigh_nodes(due)
            report("nodes_weighed", nodes=len(due))
            cluster_state.acted.set()
