"""Waiting for something to come about; a wait that fails says what it saw last."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 120.0
"""Slurm's cycles and the daemon's loops, on a machine that has much else to do."""
_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 1.0
"""Twice as long as the look itself: what is asked again and again leaves others the processors."""


async def until_true(look: Callable[[], T], timeout_s: float = PATIENCE_S) -> T:
    """What was seen, once that is true; the loop goes on meanwhile."""

    async def looked() -> T:
        return look()

    return await until_done(looked, bool, timeout_s)


def until(look: Callable[[], T], timeout_s: float = PATIENCE_S) -> T:
    """What was seen, once that is true."""
    return next(seen for seen in _looks(look, timeout_s, "it did not come about") if seen)


def until_is(look: Callable[[], T], wanted: T, timeout_s: float = PATIENCE_S) -> None:
    """Until that is seen which is wanted."""
    next(seen for seen in _looks(look, timeout_s, f"not {wanted!r}") if seen == wanted)


async def until_done(
    look: Callable[[], Awaitable[T]], done: Callable[[T], bool], timeout_s: float = PATIENCE_S
) -> T:
    """What was seen, once it is as ``done`` wants it."""
    deadline_s = time.monotonic() + timeout_s
    while not done(seen := await look()):
        assert time.monotonic() <= deadline_s, f"not within {timeout_s:g} s; seen last: {seen!r}"
        await asyncio.sleep(_PAUSE_S)
    return seen


def _looks(look: Callable[[], T], timeout_s: float, trouble: str) -> Iterator[T]:
    """One after another, until the time is over."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        began_s = time.monotonic()
        yield (seen := look())
        now_s = time.monotonic()
        assert now_s <= deadline_s, f"{trouble} within {timeout_s:g} s; seen last: {seen!r}"
        time.sleep(min(max(2 * (now_s - began_s), _PAUSE_S), _LONGEST_PAUSE_S))
