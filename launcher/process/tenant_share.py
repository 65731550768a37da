"""How much of the launcher one tenant's statistics may take: looks in parallel, and CPU."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

_LOOKS = 2
"""Services of one tenant that are looked at in parallel: each of their replicas is asked for a
second at most. No other tenant's wait for them."""
_ASKED = 32
"""Replicas of one tenant that are asked in parallel: each takes an open file."""
_REST = 10.0
"""Seconds without a look at a tenant's services for each second of CPU that they took."""

_Result = TypeVar("_Result")


class CpuTimed(Generic[_Result]):
    """Awaits, and adds up the CPU that this takes the loop's thread."""

    def __init__(self, awaited: Awaitable[_Result]) -> None:
        self._awaited = awaited
        self.cpu_s = 0.0

    def __await__(self) -> Generator[Any, Any, _Result]:
        steps = self._awaited.__await__()
        step: Callable[[], Any] = partial(next, steps)
        while True:
            begin_s = time.thread_time()
            try:
                waits_for = step()
            except StopIteration as ended:
                result: _Result = ended.value
                return result
            finally:
                self.cpu_s += time.thread_time() - begin_s
            try:
                yield waits_for
            except BaseException as error:  # noqa: BLE001 -- whoever is awaited is cancelled, too
                step = partial(steps.throw, error)
            else:
                step = partial(next, steps)


@dataclass
class TenantShare:
    """What a tenant's services take of the launcher.

    Attributes:
        looking: lets so many looks go on in parallel.
        asking: lets so many replicas be asked in parallel.
        rests_until_s: when the next look may begin.
    """

    looking: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_LOOKS))
    asking: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_ASKED))
    rests_until_s: float = 0.0

    def has_taken(self, cpu_s: float) -> None:
        """Let others have the CPU for a multiple of what was taken."""
        self.rests_until_s = max(self.rests_until_s, time.monotonic()) + _REST * cpu_s

    async def apart(self, work: Callable[[], _Result]) -> _Result:
        """Work in a thread: the event loop goes on meanwhile."""

        def measured() -> tuple[_Result, float]:
            begin_s = time.thread_time()
            return work(), time.thread_time() - begin_s

        result, cpu_s = await asyncio.to_thread(measured)
        self.has_taken(cpu_s)
        return result
