"""Decides which of a cluster's daemons acts."""

import asyncio
import logging
from collections.abc import Callable

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import UnreachableError
from slicewise.cluster.language.leader import Leader
from slicewise.cluster.language.slurm.interface import Slurm, SlurmActor
from slicewise.cluster.runtime.leadership import Lead, Lock, led_only

_LOG = logging.getLogger("slicewise.daemon")
_ACTIONS = frozenset(name for name in vars(SlurmActor) if not name.startswith("_"))
_CHANGES = _ACTIONS | {"sacctmgr", "set_limits"}
"""Methods of ``Slurm`` that change something there."""


class Leadership(Lead):
    """Leadership among daemons; ``pair`` is ``daemon.pair``."""

    def __init__(self, lock: Lock, *, pair: bool, now_s: Callable[[], float] | None = None) -> None:
        super().__init__(lock, _LOG, pair=pair, now_s=now_s)

    def require(self) -> None:
        """Raise UnreachableError (SW-DAEMON-STANDBY) unless this daemon leads."""
        if not self.leads():
            who = f"the one on {self.holder} does" if self.holder else "none does now"
            raise UnreachableError(
                Code.DAEMON_STANDBY,
                f"This daemon changes nothing in Slurm: {who}.",
                "Ask that one, or try again in a few seconds.",
            )

    async def start(self) -> None:
        """Take one turn. A daemon without a pair raises UnreachableError (SW-DAEMON-STANDBY) until
        it has the lock.
        """
        await asyncio.to_thread(self.turn)
        if not self._pair:
            self.require()


def led_slurm(slurm: Slurm, leader: Leader) -> Slurm:
    """A ``Slurm`` that changes nothing unless ``leader`` leads."""
    return led_only(slurm, leader, _CHANGES)
