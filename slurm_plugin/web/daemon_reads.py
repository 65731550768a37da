"""Asks the daemon what a page shows, each question for the user who looks at the page.

The daemon decides what a user may see: the web server has no rights of its own, and keeps what one
user was told apart from what others are.
"""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass

from cluster.language.errors import InvalidInputError, SlicewiseError, UnreachableError
from cluster.rpc.client import DaemonClient
from cluster.rpc.message import Answer, Request
from cluster.rpc.web_messages import WebTokenRequest, WebUserAnswer, WebUserRequest
from cluster.settings.file import DaemonSettings

_FRESH_S = 0.4
"""Seconds for which a user who asks the same again gets the same answer."""
_AT_ONCE = 16
"""Questions to the daemon at a time: half of what one user of its socket may have open."""
_WAITING, _WAITING_PER_USER = 512, 64
_AGAIN_S, _PATIENCE_S = 0.1, 5.0
"""The daemon reads the ledger for a user twice at a time, and all operators are one user to it: a
question beyond that is asked again after a while, for some seconds.
"""
_LONGEST_TOKEN = 4096


@dataclass
class _Kept:
    answer: "asyncio.Task[Answer]"
    done_s: float = float("inf")


class DaemonReads:
    """The daemon's answers by user and question, each asked once at a time."""

    def __init__(self, settings: DaemonSettings) -> None:
        self._settings = settings
        self._kept: dict[tuple[str, str, bytes], _Kept] = {}
        self._turn = asyncio.Semaphore(_AT_ONCE)
        self._waiting: Counter[str] = Counter()

    async def ask(self, user: str, request: Request) -> Answer:
        """Return the daemon's answer to this user.

        Raises what ``DaemonClient.call`` raises, and UnreachableError (SW-BUSY) if too many
        questions wait.
        """
        key = (user, *request.sent())
        kept = self._kept.get(key)
        if kept is None or time.monotonic() - kept.done_s > _FRESH_S:
            self._forget()
            kept = self._kept[key] = _Kept(asyncio.create_task(self._asked(user, request)))
            made = kept

            def done(task: "asyncio.Task[Answer]") -> None:
                made.done_s = time.monotonic()
                # Take the error: all who asked may have gone.
                task.cancelled() or task.exception()

            kept.answer.add_done_callback(done)
        return await asyncio.shield(kept.answer)

    async def user_of(self, token: str) -> str:
        """Return whose one-time token this is. Raises InvalidInputError (SW-WEB-LOGIN)."""
        if not _may_be_token(token):
            raise InvalidInputError(
                "SW-WEB-LOGIN", "This is no login address.", "Make one: slicewise web login"
            )
        return await self._vouched(WebUserRequest(token=token))

    async def user_by_slurm(self, token: str) -> str:
        """Return whose token of Slurm's this is. Raises InvalidInputError (SW-WEB-TOKEN)."""
        if not _may_be_token(token):
            raise InvalidInputError("SW-WEB-TOKEN", "This is no token of Slurm's.")
        return await self._vouched(WebTokenRequest(token=token))

    async def _vouched(self, request: WebUserRequest | WebTokenRequest) -> str:
        answer = await self._in_turn("", DaemonClient(self._settings), request)
        assert isinstance(answer, WebUserAnswer)  # noqa: S101 -- both ask for one
        return answer.user

    async def _asked(self, user: str, request: Request) -> Answer:
        return await self._in_turn(user, DaemonClient(self._settings, user), request)

    async def _in_turn(self, user: str, client: DaemonClient, request: Request) -> Answer:
        if self._waiting.total() >= _WAITING or self._waiting[user] >= _WAITING_PER_USER:
            raise UnreachableError("SW-BUSY", "Too many questions wait for the daemon.", "Reload.")
        self._waiting[user] += 1
        until_s = time.monotonic() + _PATIENCE_S
        try:
            while True:
                try:
                    async with self._turn:
                        answer: Answer = await client.ask(request)  # type: ignore[arg-type]  # each request asks for an answer
                        return answer
                except SlicewiseError as error:
                    if error.refusal.code != "SW-BUSY" or time.monotonic() > until_s:
                        raise
                await asyncio.sleep(_AGAIN_S)
        finally:
            self._waiting -= Counter([user])

    def _forget(self) -> None:
        """Keep no answer that nobody gets any more: some are large."""
        old_s = time.monotonic() - _FRESH_S
        self._kept = {key: one for key, one in self._kept.items() if one.done_s > old_s}


def _may_be_token(text: str) -> bool:
    return 0 < len(text) <= _LONGEST_TOKEN and text.isascii()
