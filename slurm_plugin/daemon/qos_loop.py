"""The loop that moves waiting jobs between their tenant's own QOS and the borrowed one."""

from slicewise.cluster.language.slurm.interface import JobChange, SlurmActor, Target
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.common.log import report
from slicewise.slurm_plugin.rules.admission.qos_switch import MOVES, moves
from slicewise.slurm_plugin.rules.quota.jobs import jobs_by_holder
from slicewise.slurm_plugin.state.cluster_state import ClusterState

_AGAIN_S = 10.0
"""Seconds until a move that Slurm refused is tried again: a user may have a QOS list of their own,
without our QOS, or a tenant's list may not have reached slurmctld yet."""


class QosLoop:
    """Keeps each waiting job whose user named no QOS in the QOS that has room for it."""

    def __init__(self, settings: Settings, slurm: SlurmActor, cluster_state: ClusterState) -> None:
        self._partitions = frozenset(settings.cluster.partitions)
        self._costs, self._models = settings.costs, settings.models
        self._slurm = slurm
        self._cluster_state = cluster_state
        self._moved_at_s = self._again_s = 0.0
        self._refused: set[Target] = set()

    async def turn(self) -> None:
        """Move once what the last look at Slurm asks for. Raises SlicewiseError if Slurm fails.

        A job that Slurm refuses to move has mostly started or ended; it is left alone for a while.
        """
        looked_s = self._cluster_state.looked_monotonic_s
        if not self._cluster_state.acts or looked_s == self._moved_at_s:
            return
        if looked_s >= self._again_s:
            self._refused, self._again_s = set(), looked_s + _AGAIN_S
        cluster_state = self._cluster_state
        quotas, jobs = cluster_state.quotas, cluster_state.quota_jobs
        by_holder = jobs_by_holder(jobs, self._partitions, self._costs, self._models)
        wanted = moves(quotas.policy, by_holder, quotas.standings, self._refused)
        if wanted:
            changes = {target: JobChange(qos=qos) for target, qos in wanted.items()}
            refused = await self._slurm.update(changes)
            report("qos_moved", jobs=len(changes) - len(refused), refused=len(refused))
            self._refused |= refused.keys()
            if len(refused) == len(changes):
                pass  # The next look shows nothing new.
            elif len(wanted) == MOVES:
                # More to come: a second apart, as slurmctld starts nothing meanwhile.
                cluster_state.pacing.stir()
            else:
                cluster_state.acted.set()
        self._moved_at_s = looked_s
