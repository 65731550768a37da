"""Asks the daemon what a page shows, each question for the user who looks at the page.

The daemon decides what a user may see: the web server has no rights of its own, and keeps what one
user was told apart from what others are.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pydantic import Field

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError, SlicewiseError, UnreachableError
from slicewise.cluster.rpc.client import DaemonClient
from slicewise.cluster.rpc.history_messages import HistoryRequest
from slicewise.cluster.rpc.message import Answer, Request
from slicewise.cluster.rpc.web_messages import (
    WebGuestRequest,
    WebTokenRequest,
    WebUserAnswer,
    WebUserRequest,
    WhoamiRequest,
)
from slicewise.cluster.settings.file import DaemonSettings
from slicewise.slurm_plugin.common.energy_requests import EnergyRequest
from slicewise.slurm_plugin.common.ledger_requests import (
    SharesAnswer,
    SharesRequest,
    StatementAnswer,
    StatementRequest,
    TenantsAnswer,
    TenantsRequest,
)
from slicewise.slurm_plugin.common.tariff_requests import ChargesAnswer, ChargesRequest
from slicewise.slurm_plugin.common.usage_requests import TokenUsageAnswer, TokenUsageRequest
from slicewise.slurm_plugin.rules.accounting.charge_lines import merged
from slicewise.slurm_plugin.rules.accounting.invoice import Invoice, invoice_of

_FRESH_S = 0.4
_FRESH_FOR_S: Mapping[type[Request], float] = {
    ChargesRequest: 60.0,
    EnergyRequest: 60.0,
    HistoryRequest: 10.0,
    TenantsRequest: 1.0,
    WhoamiRequest: 10.0,
}
"""Seconds for which a user who asks the same again gets the same answer: those in the table are
not made from the daemon's memory, or hardly change.
"""
_NEVER_KEPT = frozenset({StatementRequest, SharesRequest, TokenUsageRequest, ChargesRequest})
"""Long answers that are read once, or whose pages are put together first."""
_KEPT_WHOLE = frozenset({ChargesRequest})
_MOST_PAGES: Mapping[type[Request], int] = {
    TenantsRequest: 8,
    StatementRequest: 10,
    SharesRequest: 4,
    TokenUsageRequest: 2,
    ChargesRequest: 15,
}
"""Pages of a long answer that are put together; more can't be shown at once."""
_AT_ONCE = 16
"""Questions to the daemon at a time: half of what one user of its socket may have open."""
_WAITING, _WAITING_PER_USER = 512, 64
_AGAIN_S, _LATEST_AGAIN_S, _PATIENCE_S = 0.01, 0.1, 5.0
"""The daemon reads the ledger for a user twice at a time, and all operators are one user to it: a
question beyond that is asked again after a while, which doubles, for some seconds. A page asks more
than two, and most are answered within milliseconds.
"""
_LONGEST_TOKEN = 4096
_KEPT = 1024
_KEPT_LINES = 60_000
"""Of long answers in all: a kilobyte each. The longest has half of it."""

_Make = Callable[[str, Request], Coroutine[Any, Any, Answer]]


class SummedCharges(ChargesAnswer):
    """Charges and what they add up to; without lines and sums where there are more than a page
    adds up.
    """

    invoice: Invoice = Field(exclude=True)


@dataclass
class _Kept:
    """``lines``: of a long answer."""

    answer: "asyncio.Task[Answer]"
    fresh_s: float
    done_s: float = float("inf")
    lines: int = 0

    @property
    def is_old(self) -> bool:
        """Whether nobody gets it any more."""
        return time.monotonic() - self.done_s >= self.fresh_s

    @property
    def has_failed(self) -> bool:
        """Whether the question has ended without an answer."""
        one = self.answer
        return one.done() and (one.cancelled() or one.exception() is not None)


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
        if type(request) in _NEVER_KEPT:
            return await self._asked(user, request)
        return await self._kept_answer(user, request, self._asked)

    async def _kept_answer(self, user: str, request: Request, make: _Make) -> Answer:
        key = (user, *request.sent())
        kept = self._kept.get(key)
        if kept is None or kept.has_failed or kept.is_old:
            self._kept.pop(key, None)
            fresh_s = _FRESH_FOR_S.get(type(request), _FRESH_S)
            made = kept = self._kept[key] = _Kept(asyncio.create_task(make(user, request)), fresh_s)

            def done(task: "asyncio.Task[Answer]") -> None:
                made.done_s = time.monotonic()
                # Take the error: all who asked may have gone.
                if task.cancelled() or task.exception() is not None:
                    return
                made.lines = len(getattr(task.result(), "lines", ()))
                if made.lines:
                    self._forget()
                    task.get_loop().call_later(fresh_s, self._forget)

            kept.answer.add_done_callback(done)
            self._forget()
        return await asyncio.shield(kept.answer)

    async def change(self, user: str, request: Request) -> Answer:
        """Have the daemon change something for this user, who then sees how it is afterwards.

        Raises what ``ask`` raises.
        """
        try:
            return await self._asked(user, request)
        finally:
            self._kept = {key: kept for key, kept in self._kept.items() if key[0] != user}

    def _forget(self) -> None:
        """Drop answers that nobody gets any more, and of too many the oldest."""
        fresh = [(key, kept) for key, kept in self._kept.items() if not kept.is_old][-_KEPT:]
        lines = sum(kept.lines for _, kept in fresh)
        self._kept = {}
        for key, kept in fresh:
            if kept.lines and lines > _KEPT_LINES:
                lines -= kept.lines
            else:
                self._kept[key] = kept

    async def whole(self, user: str, request: Request) -> Answer:
        """Return the answer with the pages that follow it, as many as can be shown at once.

        Raises what ``ask`` raises.
        """
        if type(request) in _KEPT_WHOLE:
            return await self._kept_answer(user, request, self._whole)
        return await self._whole(user, request)

    async def _whole(self, user: str, request: Request) -> Answer:
        most = _MOST_PAGES.get(type(request), 1)
        answer = reduce(joined, [page async for page in self.pages(user, request, most)])
        if isinstance(answer, ChargesAnswer):
            # In a thread: of many runs it takes a while.
            return await asyncio.to_thread(_summed, answer)
        return answer

    async def pages(self, user: str, request: Request, most: int) -> AsyncGenerator[Answer, None]:
        """Yield the answer and then the pages that follow it. Raises what ``ask`` raises."""
        for _ in range(most):
            answer = await self.ask(user, request)
            yield answer
            after = getattr(answer, "more", None)
            if after is None or type(request) not in _MOST_PAGES:
                return
            request = request.model_copy(update={"after": after})

    async def user_of(self, token: str) -> str:
        """Return whose one-time token this is. Raises InvalidInputError (SW-WEB-LOGIN)."""
        if not _may_be_token(token):
            raise InvalidInputError(
                Code.WEB_LOGIN, "This is no login address.", "Make one: slicewise web login"
            )
        return await self._vouched(WebUserRequest(token=token))

    async def user_by_slurm(self, token: str) -> str:
        """Return whose token of Slurm's this is. Raises InvalidInputError (SW-TOKEN)."""
        if not _may_be_token(token):
            raise InvalidInputError(Code.TOKEN, "This is no token of Slurm's.")
        return await self._vouched(WebTokenRequest(token=token))

    async def guest(self, request: WebGuestRequest) -> str:
        """Return as whom to ask for a guest. Raises InvalidInputError (SW-FORBIDDEN)."""
        return await self._vouched(request)

    async def _vouched(self, request: WebUserRequest | WebTokenRequest | WebGuestRequest) -> str:
        answer = await self._in_turn("", DaemonClient(self._settings), request)
        assert isinstance(answer, WebUserAnswer)  # noqa: S101 -- both ask for one
        return answer.user

    async def _asked(self, user: str, request: Request) -> Answer:
        return await self._in_turn(user, DaemonClient(self._settings, user), request)

    async def _in_turn(self, user: str, client: DaemonClient, request: Request) -> Answer:
        if self._waiting.total() >= _WAITING or self._waiting[user] >= _WAITING_PER_USER:
            raise UnreachableError(Code.BUSY, "Too many questions wait for the daemon.", "Reload.")
        self._waiting[user] += 1
        until_s, again_s = time.monotonic() + _PATIENCE_S, _AGAIN_S
        try:
            while True:
                try:
                    async with self._turn:
                        answer: Answer = await client.ask(request)  # type: ignore[arg-type]  # each request asks for an answer
                        return answer
                except SlicewiseError as error:
                    is_busy = error.refusal.code == Code.BUSY
                    # Each try of a change counts against what visitors may change.
                    if not is_busy or request.changes or time.monotonic() > until_s:
                        raise
                await asyncio.sleep(again_s)
                again_s = min(2 * again_s, _LATEST_AGAIN_S)
        finally:
            self._waiting -= Counter([user])


def _may_be_token(text: str) -> bool:
    return 0 < len(text) <= _LONGEST_TOKEN and text.isascii()


def _summed(answer: ChargesAnswer) -> SummedCharges:
    # Sums of a part would be taken for what is to pay.
    lines = merged(answer.lines) if answer.more is None else ()
    return SummedCharges.model_construct(
        **{**vars(answer), "lines": lines}, invoice=invoice_of(lines, answer.currency)
    )


def joined(answer: Answer, after: Answer) -> Answer:
    """Two pages as one that follow each other."""
    match answer, after:
        case StatementAnswer(), StatementAnswer():
            return after.model_copy(update={"rows": answer.rows + after.rows})
        case SharesAnswer(), SharesAnswer():
            return after.model_copy(update={"lines": answer.lines + after.lines})
        case ChargesAnswer(), ChargesAnswer():
            lines = answer.lines + after.lines
            return answer.model_copy(update={"lines": lines, "more": after.more})
        case TokenUsageAnswer(), TokenUsageAnswer():
            return answer.model_copy(
                update={"lines": answer.lines + after.lines, "more": after.more}
            )
        case TenantsAnswer(), TenantsAnswer():
            # The tenants of both pages may share a budget.
            budgets = {
                (status.budget.meter, status.tenant): status
                for status in answer.budgets + after.budgets
            }
            return after.model_copy(
                update={
                    "tenants": answer.tenants + after.tenants,
                    "loans": answer.loans + after.loans,
                    "budgets": tuple(budgets[key] for key in sorted(budgets)),
                }
            )
    raise TypeError(type(after))
