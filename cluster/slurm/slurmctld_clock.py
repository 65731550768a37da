"""Keeps slurmctld's time between the moments at which it is asked for it."""

import time
from collections.abc import Awaitable, Callable
from math import inf


class SlurmctldClock:
    """slurmctld's clock, by which jobs start, wait and end; this host's may show another time."""

    def __init__(self, ask: Callable[[], Awaitable[float]]) -> None:
        """``ask`` asks slurmctld for its time, in Unix seconds."""
        self._ask = ask
        self._asked_s, self._offset_s = -inf, 0.0

    async def now_s(self, known_for_s: float = 0.0) -> float:
        """Return its time, reckoned from an answer no older than so many seconds.

        Raises what ``ask`` raises. In between the time goes on by the monotonic clock, so that
        setting this host's clock changes nothing.
        """
        if time.monotonic() - self._asked_s >= known_for_s:
            said_s = await self._ask()
            self._asked_s = time.monotonic()
            self._offset_s = said_s - self._asked_s
        return time.monotonic() + self._offset_s
