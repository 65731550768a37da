"""Awaits several calls at once, and leaves none of them running behind a failure."""

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING


async def _together(*calls: Awaitable[object]) -> list[object]:
    """Return what the calls return, in their order; the first failure ends the others.

    Behind a failure, ``asyncio.gather`` alone lets the others run on, and the end of the event loop
    then cancels every task: also asyncio's own, which connects the pipes of a process that just
    starts. The loop would wait for that process for ever.
    """
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


if TYPE_CHECKING:
    together = asyncio.gather
    """It takes and returns the same, and only gather's stub says what of each call."""
else:
    together = _together
