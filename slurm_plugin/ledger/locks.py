"""Locks that one process has at a time, while its connection lives."""

from slicewise.cluster.runtime.leader_lock import LeaderLock
from slicewise.slurm_plugin.ledger.base import LedgerPart
from slicewise.slurm_plugin.ledger.tables import locks


class Locks(LedgerPart):
    """One lock for each duty; ``host`` tells others which process has it. Acquiring never waits."""

    def leader(self, host: str) -> LeaderLock:
        """The lock of the daemon that leads."""
        return LeaderLock(self._engine, locks, "slicewise leader", self._cluster, host)

    def compiling(self) -> LeaderLock:
        """The lock of the process that changes Slurm's limits."""
        return LeaderLock(self._engine, locks, "slicewise compile", self._cluster, "")

    def rebalancing(self, host: str) -> LeaderLock:
        """The lock of the run of ``slicewise rebalance``."""
        return LeaderLock(self._engine, locks, "slicewise rebalance", self._cluster, host)

    def repartitioning(self, host: str) -> LeaderLock:
        """The lock of the process that repartitions GPUs."""
        return LeaderLock(self._engine, locks, "slicewise repartition", self._cluster, host)
