"""What the desks share through which operators read and change the ledger."""

from collections.abc import Callable
from typing import TypeVar

from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.api.access import Principal
from slicewise.slurm_plugin.api.reads import Reads
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.state.cluster_state import ClusterState

T = TypeVar("T")


class LedgerDesk:
    """Reads and changes the ledger in threads, for one user at a time.

    Raises UnreachableError: SW-DAEMON-STANDBY for changes, SW-BUSY and the ledger's own.
    """

    def __init__(
        self, settings: Settings, ledger: Ledger, cluster_state: ClusterState, reads: Reads
    ) -> None:
        self._settings = settings
        self._ledger = ledger
        self._cluster_state = cluster_state
        self._reads = reads

    async def _read(self, principal: Principal, read: Callable[[], T]) -> T:
        return await self._reads.from_ledger(principal.uid, read)

    async def _change(self, principal: Principal, change: Callable[[], T]) -> T:
        """Change the ledger, and have a round made at once."""
        self._cluster_state.require_leader()
        done = await self._read(principal, change)
        self._cluster_state.hurry()
        return done
