"""Follows pages for the browsers that show them: each page of a user is made once for all of them.

What is new is sent as it is made; a browser that reads slowly misses what was replaced meanwhile.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import UnreachableError

_LOOK_S = 0.5
"""Seconds between two looks at a page that somebody has open."""
_SHARE = 4.0
"""A look is followed by a pause this many times as long, however long it took."""
_PER_USER, _MOST = 32, 2048
"""Open streams."""

Make = Callable[[], Awaitable[str]]
"""Makes the page's main part as it is now."""


@dataclass(frozen=True)
class FeedKey:
    """What streams share: a user's page as it is shown in a time zone."""

    user: str
    target: str
    zone: str


@dataclass
class _Feed:
    """``version`` counts what was new; ``viewers`` are its open streams."""

    make: Make
    html: str = ""
    version: int = 0
    viewers: int = 0
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    task: "asyncio.Task[None] | None" = None


class Feeds:
    """The pages that are followed now."""

    def __init__(self) -> None:
        self._feeds: dict[FeedKey, _Feed] = {}

    @property
    def viewers(self) -> int:
        """The number of open streams."""
        return sum(feed.viewers for feed in self._feeds.values())

    def require_room(self, user: str) -> None:
        """Raise UnreachableError (SW-BUSY) if too many streams are open for one more."""
        own = sum(feed.viewers for known, feed in self._feeds.items() if known.user == user)
        if own >= _PER_USER or self.viewers >= _MOST:
            raise UnreachableError(Code.BUSY, "Too many live pages are open.", "Close some.")

    async def follow(self, key: FeedKey, make: Make) -> AsyncGenerator[str, None]:
        """Yield the page's main part now and whenever it is another one.

        ``make`` must not raise. Raises as ``require_room`` does.
        """
        self.require_room(key.user)
        feed = self._feeds.setdefault(key, _Feed(make))
        feed.viewers += 1
        if feed.task is None:
            feed.task = asyncio.create_task(self._look(feed))
        seen = 0
        try:
            while True:
                async with feed.changed:
                    await feed.changed.wait_for(lambda: feed.version > seen)  # noqa: B023
                    seen, html = feed.version, feed.html
                yield html
        finally:
            feed.viewers -= 1
            if not feed.viewers:
                feed.task.cancel()
                self._feeds.pop(key, None)

    async def stop(self) -> None:
        """End all feeds."""
        tasks = [feed.task for feed in self._feeds.values() if feed.task is not None]
        for task in tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _look(self, feed: _Feed) -> None:
        while True:
            began_s = time.monotonic()
            html = await feed.make()
            if html != feed.html or not feed.version:
                async with feed.changed:
                    feed.html = html
                    feed.version += 1
                    feed.changed.notify_all()
            await asyncio.sleep(max(_LOOK_S, _SHARE * (time.monotonic() - began_s)))
