"""A clock that only the world moves, and an event loop that waits by it: no second passes."""

import asyncio
import contextvars
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

START_S = 1_700_000_000.0
"""Unix seconds at which every world begins."""
_BOOTED_S = 1000.0
"""What the monotonic clock shows then."""
_TICK_S = 1e-6
"""Seconds that each turn of the loop takes: a program that finds that it has to wait for some
picoseconds more would do so for ever if no time passed."""


class WorldClock:
    """The time of a world.

    Attributes:
        passed_s: seconds since the beginning.
        ahead_s: seconds by which the wall clock of the daemon's host is ahead of Slurm's.
    """

    def __init__(self) -> None:
        self.passed_s = 0.0
        self.ahead_s = 0.0

    @property
    def now_s(self) -> float:
        """Unix seconds by Slurm's clock, and PostgreSQL's."""
        return START_S + self.passed_s

    def wall_s(self) -> float:
        """Unix seconds by the clock of the daemon's host."""
        return self.now_s + self.ahead_s

    def monotonic_s(self) -> float:
        """Seconds of a clock that nobody sets."""
        return _BOOTED_S + self.passed_s


class _Selector:
    """In place of the system's: it finds nothing, and where it would wait, the clock moves on."""

    def __init__(self, clock: WorldClock) -> None:
        self._clock = clock

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise AssertionError("Everything waits for something that never comes.")
        self._clock.passed_s += timeout + _TICK_S
        return []


_OWNER: contextvars.ContextVar[list[asyncio.Task[Any]] | None] = contextvars.ContextVar(
    "owner", default=None
)


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop that never waits: what is due next is the next thing that happens."""

    def __init__(self, clock: WorldClock) -> None:
        super().__init__()
        self._clock = clock
        self._selector = _Selector(clock)
        self._clock_resolution = _TICK_S / 2
        self.set_task_factory(_made)

    def time(self) -> float:
        return self._clock.monotonic_s()

    def run_in_executor(
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Call it at once: no thread wakes this loop, and how long one takes is chance."""
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001
            done.set_exception(error)
        return done

    def _process_events(self, event_list: list[Any]) -> None: ...

    def _write_to_self(self) -> None: ...


def _made(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
    own = _OWNER.get()
    if own is not None:
        own.append(task)
    return task


@contextmanager
def owning() -> Iterator[list[asyncio.Task[Any]]]:
    """Collect the tasks that are made inside, and those that these make: a process's own."""
    tasks: list[asyncio.Task[Any]] = []
    token = _OWNER.set(tasks)
    try:
        yield tasks
    finally:
        _OWNER.reset(token)


@contextmanager
def clocks_of(clock: WorldClock, threaded: Callable[..., Any]) -> Iterator[None]:
    """Meanwhile the product reads this clock, and has ``threaded`` instead of threads."""
    with (
        patch.object(time, "time", clock.wall_s),
        patch.object(time, "monotonic", clock.monotonic_s),
        patch.object(asyncio, "to_thread", threaded),
    ):
        yield
