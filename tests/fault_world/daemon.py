"""The daemon of a world: its own loops, without sockets, until it dies."""

import asyncio
from collections.abc import Coroutine
from contextvars import Context, copy_context
from typing import Any, TypeVar

from model_daemon import ModelDaemon

from fault_world.faults import CrashError
from fault_world.ledger import LedgerConnection
from fault_world.link import Link
from fault_world.slurm import SlurmLine
from slicewise.cluster.rpc.messages import ServiceView
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.rules.services.pace import Pace
from slicewise.slurm_plugin.state.cluster_state import ClusterState

T = TypeVar("T")


class _State(ClusterState):
    """The daemon's view, of which the world knows whether the last look succeeded."""

    has_looked = False

    async def _look(self) -> tuple[ServiceView, ...]:
        try:
            return await super()._look()
        except BaseException:
            self.has_looked = False
            raise

    def _follow(self, found: tuple[ServiceView, ...]) -> None:
        super()._follow(found)
        self.has_looked = True


class WorldDaemon(ModelDaemon):
    """One life of the daemon, which ends where its link says so."""

    state: _State
    state_class = _State

    def __init__(
        self,
        settings: Settings,
        slurm: SlurmLine,
        ledger: LedgerConnection,
        link: Link,
        pace: Pace,
    ) -> None:
        super().__init__(settings, slurm, ledger, pace)
        self.link = link
        self._ledger = ledger
        self._context: Context | None = None

    @property
    def has_looked(self) -> bool:
        """Whether its last look at Slurm succeeded, whatever it says itself."""
        return self.state.has_looked

    @property
    def answers(self) -> bool:
        """Whether it answers submissions and the launcher now."""
        return self.is_ready and self.link.is_alive

    def begin(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Work on a request, until the daemon dies."""
        return asyncio.get_running_loop().create_task(work, context=self._context)

    async def run(self) -> None:
        """Run until it dies: raises CrashError."""
        self._context = copy_context()
        try:
            await super().run()
        except BaseExceptionGroup as group:
            if group.subgroup(CrashError) is None:
                raise
            raise CrashError from None
        finally:
            self.link.is_alive = self.is_ready = False
            self._ledger.leave()
