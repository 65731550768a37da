"""Hears what HAProxy writes into its ring: a line for each request that it holds, or has ended."""

import asyncio
from asyncio import StreamReader
from collections.abc import Awaitable, Callable
from pathlib import Path

from slicewise.launcher.gateway.runtime_api import RING

_LOOK_S = 1.0
"""Seconds between two looks for a process that has replaced the one that is heard."""
_SILENCE_S = 2.0
"""Seconds of silence after which a replaced process without requests is left."""


class RingReader:
    """Hears each process of HAProxy to its end."""

    def __init__(
        self,
        socket: Path,
        newest_process: Callable[[], Awaitable[str]],
        has_requests: Callable[[str], bool],
    ) -> None:
        """Processes are named as by ``process_of``.

        ``has_requests`` says whether a replaced process still works on one.
        """
        self._socket = socket
        self._newest_process, self._has_requests = newest_process, has_requests
        self._hearing: dict[str, asyncio.Task[None]] = {}
        self._newest = ""

    async def hear(self, told: Callable[[str], object]) -> None:
        """Call ``told`` with each line, those first that the ring still has.

        After a reload the connection still leads to the replaced process, which would not end while
        it is heard: it is left once it is silent and has no request. Never returns; raises OSError
        if HAProxy ends the connection, and what ``newest_process`` raises.
        """
        try:
            while True:
                self._newest = await self._newest_process()
                if self._newest not in self._hearing:
                    hearing = self._hear(self._newest, told)
                    self._hearing[self._newest] = asyncio.create_task(hearing)
                await asyncio.wait(
                    self._hearing.values(), timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED
                )
                self._forget_ended()
        finally:
            for task in self._hearing.values():
                task.cancel()
            self._hearing.clear()

    def _forget_ended(self) -> None:
        for process, task in list(self._hearing.items()):
            if task.done():
                del self._hearing[process]
                error = task.exception()
                if error is not None and process == self._newest:
                    raise error

    async def _hear(self, process: str, told: Callable[[str], object]) -> None:
        reader, writer = await asyncio.open_unix_connection(str(self._socket))
        try:
            writer.write(f"show events {RING} -w\n".encode())
            while process == self._newest or self._has_requests(process):
                await _take(reader, told)
        finally:
            writer.close()


async def _take(reader: StreamReader, told: Callable[[str], object]) -> None:
    """Call ``told`` for what comes; return when nothing comes for a while."""
    while True:
        try:
            async with asyncio.timeout(_SILENCE_S):
                line = await reader.readline()
        except TimeoutError:
            return
        # HAProxy with an older configuration has no such ring: it says so and closes.
        if not line:
            raise ConnectionResetError
        told(line.decode("utf-8", "replace").rstrip("\n"))
