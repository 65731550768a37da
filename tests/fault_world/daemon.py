"""The daemon of a world: its own loops, without sockets, until it dies."""

import asyncio
from collections.abc import Coroutine
from contextvars import Context, copy_context
from typing import Any, TypeVar

from cluster.rpc.messages import ServiceView
from cluster.runtime.leadership import ALONE
from cluster.settings.file import Settings
from fault_world.faults import CrashError
from fault_world.ledger import LedgerConnection
from fault_world.link import Link
from fault_world.slurm import SlurmLine
from slurm_plugin.admission_server.admit import Admission
from slurm_plugin.daemon.deciding_loops import DecidingLoops
from slurm_plugin.daemon.periodic import PeriodicLoops, Step, until_done
from slurm_plugin.services.pace import Pace
from slurm_plugin.state.controller import ClusterState

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


class WorldDaemon:
    """One life of the daemon, as ``slurm_plugin.daemon.main`` puts it together.

    Attributes:
        is_ready: whether it has started.
    """

    def __init__(
        self,
        settings: Settings,
        slurm: SlurmLine,
        ledger: LedgerConnection,
        link: Link,
        pace: Pace,
    ) -> None:
        self.link = link
        self._ledger = ledger
        self._interval_s = pace.moving_s
        self.is_ready = False
        self._context: Context | None = None
        self.admission = Admission(settings.daemon.mode)
        self.state = _State(settings, slurm, self.admission, ALONE, pace)
        self._loops = DecidingLoops(settings, slurm, ledger, self.state, ALONE)
        self._turns = PeriodicLoops(lambda *_: None)

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
            await self._run()
        except BaseExceptionGroup as group:
            if group.subgroup(CrashError) is None:
                raise
            raise CrashError from None
        finally:
            self.link.is_alive = self.is_ready = False
            self._ledger.leave()

    async def _run(self) -> None:
        each_s = self._interval_s
        await until_done("start_ledger", self._loops.charging.start, each_s)
        await self._loops.start(each_s)
        self.is_ready = True
        async with asyncio.TaskGroup() as loops:

            def repeat(name: str, turn: Step) -> None:
                pacing = self.state.pacing if name == "sync" else None
                loops.create_task(self._turns.repeat(name, turn, each_s, pacing))

            repeat("sync", self.state.turn)
            repeat("limits", self._loops.limits.turn)
            for name, turn in self._loops.led_turns.items():
                repeat(name, turn)
