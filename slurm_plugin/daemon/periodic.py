"""Runs steps of the start until they succeed, and turns of loops for ever."""

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path

from slicewise.cluster.language.errors import OutsideError, SlicewiseError, UnreachableError
from slicewise.cluster.runtime.log import bound
from slicewise.slurm_plugin.common.log import report_failure
from slicewise.slurm_plugin.state.pacing import Pacing

BACKOFF_MAX_S = 15.0

Step = Callable[[], Awaitable[object]]
OnTurn = Callable[[str, float, bool], None]
"""Called after each turn with the loop's name, the turn's seconds and whether it failed."""


async def until_done(name: str, step: Step, interval_s: float) -> None:
    """Repeat a step of the start until it no longer raises UnreachableError or OutsideError."""
    pause_s = interval_s
    while True:
        try:
            await step()
        except (UnreachableError, OutsideError) as error:
            report_failure(f"{name}_waits", error, retry_s=pause_s)
        else:
            return
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, BACKOFF_MAX_S)


class PeriodicLoops:
    """Runs loops, and reports each turn."""

    def __init__(self, on_turn: OnTurn) -> None:
        self._on_turn = on_turn

    async def repeat(
        self,
        name: str,
        turn: Step,
        interval_s: float,
        pacing: Pacing | None = None,
        news: asyncio.Event | None = None,
    ) -> None:
        """Take turns for ever, as ``pacing`` has it if given, and more slowly while they fail.

        ``news`` makes the next turn due immediately, unless the last one failed. Events of a turn
        carry the loop's name and the number of the turn.
        """
        news = news or asyncio.Event()
        pause_s = interval_s
        for cycle in count(1):
            news.clear()
            with bound(loop=name, cycle=cycle):
                error = await self._take(name, turn)
                if error is not None:
                    pause_s = min(2 * pause_s, BACKOFF_MAX_S)
                    report_failure(f"{name}_failed", error, retry_s=pause_s, **_where(error))
            if error is None:
                pause_s = interval_s
                if pacing is not None:
                    await pacing.wait()
                    continue
            due = news if error is None else asyncio.Event() if pacing is None else pacing.acted
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await due.wait()

    async def _take(self, name: str, turn: Step) -> Exception | None:
        began_s = time.monotonic()
        failure = None
        try:
            await turn()
        except Exception as error:  # noqa: BLE001 -- one strange job must not end the daemon
            failure = error
        self._on_turn(name, time.monotonic() - began_s, failure is not None)
        return failure


def _where(error: Exception) -> Mapping[str, str]:
    """Type of an unexpected error and the line that raised it; {} for a SlicewiseError."""
    if isinstance(error, SlicewiseError):
        return {}
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return {"kind": type(error).__name__, "at": f"{Path(frame.filename).name}:{frame.lineno}"}
