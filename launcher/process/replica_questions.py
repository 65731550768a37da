"""Asks replicas within what all of them, and those of one tenant, may take of the launcher."""

import asyncio
from collections.abc import Awaitable, Callable, Container
from typing import Generic, TypeVar

from slicewise.cluster.language.service import tenant_of
from slicewise.launcher.probing.prober import Replica
from slicewise.launcher.process.saved_statistics import Run
from slicewise.launcher.process.tenant_share import CpuTimed, TenantShare

_ASKED_IN_ALL = 256
"""Replicas that are asked in parallel: each takes an open file. A tenant has a share of that."""

_Answer = TypeVar("_Answer")


class ReplicaQuestions(Generic[_Answer]):
    """Asks each replica a question once at a time.

    None waits for those of other tenants, nor for the slow ones of its own service.
    """

    def __init__(
        self,
        ask: Callable[[Replica], Awaitable[_Answer]],
        hear: Callable[[str, Run, Replica, _Answer], None],
    ) -> None:
        """``hear`` gets ``tenant/service``, the run and what was asked, with each answer."""
        self._ask = ask
        self._hear = hear
        self._places = asyncio.Semaphore(_ASKED_IN_ALL)
        self._tenants: dict[str, TenantShare] = {}
        self._open: dict[tuple[str, Run], dict[Replica, asyncio.Task[None]]] = {}

    def forget_others(self, tenants: Container[str]) -> None:
        """Forget what tenants have taken that are not among these."""
        self._tenants = {name: tenant for name, tenant in self._tenants.items() if name in tenants}

    def end_others(self, is_there: Callable[[str, Run], bool]) -> None:
        """End questions to replicas that have gone: some answers take minutes."""
        for (key, run), questions in self._open.items():
            if not is_there(key, run):
                for question in questions.values():
                    question.cancel()

    def rests_until_s(self, key: str) -> float:
        """Return when the replicas of ``tenant/service`` may be asked, by the monotonic clock."""
        return self._share(key).rests_until_s

    def open(self, key: str, run: Run) -> tuple[Replica, ...]:
        """Return what a replica is being asked."""
        return tuple(self._open.get((key, run), ()))

    def begin(self, key: str, run: Run, replica: Replica) -> None:
        """Begin to ask it, unless it is being asked just that."""
        questions = self._open.setdefault((key, run), {})
        if replica not in questions:
            questions[replica] = asyncio.create_task(self._asked(key, run, replica))

    def _share(self, key: str) -> TenantShare:
        return self._tenants.setdefault(tenant_of(key), TenantShare())

    async def _asked(self, key: str, run: Run, replica: Replica) -> None:
        tenant = self._share(key)
        try:
            async with tenant.asking, self._places:
                asking = CpuTimed(self._ask(replica))
                answer = await asking
            tenant.has_taken(asking.cpu_s)
        finally:
            del self._open[key, run][replica]
            if not self._open[key, run]:
                del self._open[key, run]
        self._hear(key, run, replica, answer)
