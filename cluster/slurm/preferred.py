"""Asks a reader that is preferred to the commands, and the commands where it can't answer."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from slicewise.cluster.language.slurm.unread import LogsEvent
from slicewise.cluster.slurm.reader_error import ReaderError

T = TypeVar("T")


class Preferred:
    """Asks one reader, one question at a time; after a failure only the commands, for a while.

    ``warn`` logs each failure by the name ``failed``. ``give_up`` drops what the reader had begun,
    and returns what else is to be logged of its end.
    """

    def __init__(
        self,
        failed: str,
        warn: LogsEvent,
        give_up: Callable[[], Awaitable[Mapping[str, object]]],
    ) -> None:
        self._failed = failed
        self._warn = warn
        self._give_up = give_up
        self._turn = asyncio.Lock()
        self._rest_until_s = 0.0

    async def ask(
        self,
        read: Callable[[], Awaitable[T]],
        by_commands: Callable[[], Awaitable[T]],
        **question: object,
    ) -> T:
        """Return the reader's answer, or that of the commands where ``read`` raises ReaderError.

        ``question`` is logged with a failure.
        """
        async with self._turn:
            if self._rest_until_s <= time.monotonic():
                try:
                    return await read()
                except BaseException as error:
                    # Also after a cancellation: the next question must not get this one's answer.
                    ended = await self._give_up()
                    if not isinstance(error, ReaderError):
                        raise
                    self._rest_until_s = time.monotonic() + error.rest_s
                    logged = {**question, "why": error, **ended, "retry_s": error.rest_s}
                    self._warn(self._failed, **logged)
        return await by_commands()
