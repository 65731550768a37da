"""The loop that moves waiting jobs between their tenant's own QOS and the borrowed one."""

from cluster.settings import Settings
from cluster.slurm.interface import JobChange, Slurm
from slurm_plugin.decide.moves import moves
from slurm_plugin.observe import report
from slurm_plugin.sync import Sync


class QosMoves:
    """Keeps each waiting flexible job where there is room for it."""

    def __init__(self, settings: Settings, slurm: Slurm, sync: Sync) -> None:
        self._partitions = frozenset(settings.cluster.partitions)
        self._costs = settings.costs
        self._slurm = slurm
        self._sync = sync
        self._moved_at_s = 0.0

    async def turn(self) -> None:
        """Move what the last look at Slurm asks for, once. Raises SlicewiseError if Slurm fails.

        What Slurm refuses has started or ended meanwhile.
        """
        looked_s = self._sync.view.observed_s
        if not self._sync.acts or looked_s == self._moved_at_s:
            return
        wanted = moves(self._sync.policy, self._sync.jobs, self._partitions, self._costs)
        if wanted:
            changes = {target: JobChange(qos=qos) for target, qos in wanted.items()}
            refused = await self._slurm.update(changes)
            report("qos_moved", jobs=len(changes) - len(refused), refused=len(refused))
            self._sync.acted.set()
        self._moved_at_s = looked_s
