"""Locks of which one process has one, as long as its connection lives."""

from cluster.leader_lock import LeaderLock
from slurm_plugin.ledger.part import LedgerPart


class Locks(LedgerPart):
    """Each names a duty; ``host`` is what others are told of who has it. None waits."""

    def leader(self, host: str) -> LeaderLock:
        """Of the daemon that leads."""
        return LeaderLock(self._engine, "slicewise leader", self._cluster, host)

    def compiling(self) -> LeaderLock:
        """Of who changes Slurm's limits."""
        return LeaderLock(self._engine, "slicewise compile", self._cluster, "")

    def rebalancing(self, host: str) -> LeaderLock:
        """Of the run of ``slicewise rebalance``."""
        return LeaderLock(self._engine, "slicewise rebalance", self._cluster, host)

    def recutting(self, host: str) -> LeaderLock:
        """Of who cuts GPUs anew."""
        return LeaderLock(self._engine, "slicewise recut", self._cluster, host)
