"""Long work that operators have ordered: it goes on whoever still waits for it."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Generic, TypeVar

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import UnreachableError

T = TypeVar("T")

PATIENCE_S = 8.0
"""Most seconds for which one answer is held back; less than a client waits for it."""
_KEPT = 16
"""Ended errands whose outcome can still be asked for."""


@dataclass
class Errands(Generic[T]):
    """Errands of one kind. The same order given again while one is under way is that one."""

    _tasks: dict[str, asyncio.Task[T]] = field(default_factory=dict)
    _orders: dict[Hashable, str] = field(default_factory=dict)

    def begin(self, order: Hashable, work: Callable[[], Awaitable[T]]) -> str:
        """Begin the work, or find it under way; return the errand's name."""
        newest = self._orders.get(order)
        if newest is not None and not self._tasks[newest].done():
            return newest
        self._forget()
        name = token_hex(8)
        self._orders[order] = name
        self._tasks[name] = asyncio.create_task(_as_task(work))
        return name

    async def outcome(self, name: str) -> T | None:
        """What the errand came to; None if it is under way after ``PATIENCE_S``.

        Raises what the work raises, and UnreachableError (SW-DAEMON-UNSURE) for a name that this
        daemon has not given: another one has, or it was before it was started again.
        """
        if name not in self._tasks:
            raise UnreachableError(
                Code.DAEMON_UNSURE,
                "The daemon that did this was stopped meanwhile.",
                "What it had done is done. Give the same command again: it does the rest.",
            )
        task = self._tasks[name]
        await asyncio.wait({task}, timeout=PATIENCE_S)
        return task.result() if task.done() else None

    def _forget(self) -> None:
        ended = [name for name, task in self._tasks.items() if task.done()]
        for name in ended[: max(0, len(ended) - _KEPT)]:
            if not self._tasks[name].cancelled():
                # Take the error: asyncio would warn that nobody asked for it.
                self._tasks[name].exception()
            del self._tasks[name]
        self._orders = {order: name for order, name in self._orders.items() if name in self._tasks}


async def _as_task(work: Callable[[], Awaitable[T]]) -> T:
    return await work()
