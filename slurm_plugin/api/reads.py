"""Answers users' questions about the ledger and their tenants, for the user socket.

The ledger is read in a few threads of its own and within a deadline, so that a slow PostgreSQL
holds up only the users who ask about the ledger.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from pydantic import BaseModel, TypeAdapter

from cluster.language.errors import InvalidInputError, SlicewiseError, UnreachableError
from cluster.rpc.message import Request
from cluster.rpc.read_messages import (
    BalanceAnswer,
    BalanceRequest,
    ExplainAnswer,
    ExplainRequest,
    PriorityAnswer,
    PriorityRequest,
    StatementAnswer,
    StatementPlace,
    StatementRequest,
    WhyAnswer,
    WhyRequest,
)
from cluster.settings.file import Settings
from cluster.slurm.interface import SlurmReader
from slurm_plugin.accounting.types import BalanceLine, StatementRow
from slurm_plugin.api.access import Reader, ReaderHandler, ReaderHandlers
from slurm_plugin.api.priority_reads import explain_priority
from slurm_plugin.api.why_reads import why
from slurm_plugin.explain.headroom import Explanation, explain, situation
from slurm_plugin.ledger.store import Ledger
from slurm_plugin.ledger.summaries import balance_lines, books_now
from slurm_plugin.quota_cycle.gather import world_of
from slurm_plugin.quota_cycle.world import Seen
from slurm_plugin.state.controller import Sync

T = TypeVar("T")

_THREADS = 4
_WAITING = 32
_WAITING_PER_UID = 2
_DEADLINE_S = 10.0
_ASKS = 2
"""Questions to Slurm at a time."""
_PAGE_ROWS = 2000
"""Rows of a statement in one answer: about 1 MB."""

_TELL_PLACES = frozenset(
    {"SW-DATABASE-DOWN", "SW-DATABASE-BUSY", "SW-DATABASE-RIGHTS", "SW-DATABASE-FAILED"}
)
"""Codes of failures that say where the database is, and what PostgreSQL answered."""

_EXPLANATION = TypeAdapter(Explanation)
_ROW = TypeAdapter(StatementRow)
_BALANCE = TypeAdapter(BalanceLine)


class Reads:
    """Answers requests that only read, to each user for the user's own tenants."""

    def __init__(self, settings: Settings, slurm: SlurmReader, ledger: Ledger, sync: Sync) -> None:
        self._settings = settings
        self._slurm = slurm
        self._ledger = ledger
        self._sync = sync
        self._threads = ThreadPoolExecutor(_THREADS, "reads")
        self._waiting: Counter[int] = Counter()
        self._slurm_turn = asyncio.Semaphore(_ASKS)

    def handlers(self) -> ReaderHandlers:
        """What answers each read.

        A handler raises InvalidInputError: SW-TENANT-UNKNOWN equally for a tenant that does not
        exist and for one that the reader may not read, SW-FORBIDDEN for jobs. It raises
        UnreachableError: SW-BUSY, SW-SLURM-DOWN and the ledger's own; only operators are told where
        its database is.
        """
        return hiding_places(
            {
                ExplainRequest: self._explain,
                StatementRequest: self._statement,
                BalanceRequest: self._balance,
                WhyRequest: self._why,
                PriorityRequest: self._priority,
            }
        )

    async def _explain(self, request: ExplainRequest, reader: Reader) -> ExplainAnswer:
        require_own(request.tenant, reader)
        self.require_sight()
        explanation = partial(self._explanation, request.tenant, reader)
        return await self.from_ledger(reader.uid, explanation)

    async def _statement(self, request: StatementRequest, reader: Reader) -> StatementAnswer:
        require_own(request.tenant, reader)
        return await self.from_ledger(reader.uid, partial(self._page, request, reader))

    async def _balance(self, request: BalanceRequest, reader: Reader) -> BalanceAnswer:
        require_own(request.tenant, reader)
        return await self.from_ledger(reader.uid, partial(self._balances, request, reader))

    async def _why(self, request: WhyRequest, reader: Reader) -> WhyAnswer:
        self.require_sight()
        settings, ledger, sync = self._settings, self._ledger, self._sync
        read = partial(why, request.about, reader, ledger, settings, sync)
        return await self.from_ledger(reader.uid, read)

    async def _priority(self, request: PriorityRequest, reader: Reader) -> PriorityAnswer:
        self.require_sight()
        settings, slurm, sync = self._settings, self._slurm, self._sync
        with self._in_line(reader.uid):
            async with self._slurm_turn:
                return await explain_priority(request.job, reader, slurm, settings, sync)

    def _explanation(self, tenant: str, reader: Reader) -> ExplainAnswer:
        sync = self._sync
        books = books_now(self._ledger, self._settings, sync.clock.shown_s)
        require_known(tenant, books.tenants.keys(), reader)
        world = world_of(books, self._settings, Seen(sync.jobs, sync.nodes, sync.view.services))
        found = explain(tenant, situation(world))
        return ExplainAnswer(explanation=_EXPLANATION.dump_python(found, mode="json"))

    def _page(self, request: StatementRequest, reader: Reader) -> StatementAnswer:
        if request.tenant is not None:
            ledger = self._ledger
            known = ledger.tenants.policy().keys() | ledger.charges.charged_tenants()
            require_known(request.tenant, known, reader)
        place = request.after
        now_s = place.now_s if place else int(time.time())
        rows = self._ledger.audit.statement_page(
            _tenants(request.tenant, reader),
            request.since_s,
            now_s,
            (place.tenant, place.start_s, place.job_id) if place else None,
            _PAGE_ROWS,
        )
        return StatementAnswer(
            now_s=now_s,
            rows=tuple(_ROW.dump_python(row, mode="json") for row in rows),
            more=_place(rows[-1], now_s) if len(rows) == _PAGE_ROWS else None,
        )

    def _balances(self, request: BalanceRequest, reader: Reader) -> BalanceAnswer:
        books = books_now(self._ledger, self._settings, self._sync.clock.shown_s)
        if request.tenant is not None:
            require_known(request.tenant, books.tenants.keys() | books.balances.keys(), reader)
        lines = balance_lines(books, _tenants(request.tenant, reader))
        return BalanceAnswer(
            balances=tuple(_BALANCE.dump_python(line, mode="json") for line in lines)
        )

    def require_sight(self) -> None:
        """Raise UnreachableError (SW-SLURM-DOWN) if Slurm was not seen whole."""
        if not self._sync.view.complete:
            raise UnreachableError(
                "SW-SLURM-DOWN", "Slurm does not answer the daemon now.", "Try again."
            )

    async def from_ledger(self, uid: int, read: Callable[[], T]) -> T:
        """Call a function that reads the ledger, in a thread.

        Raises UnreachableError: SW-BUSY if too many reads are under way, in all or for this user;
        SW-DATABASE-DOWN at the deadline.
        """
        self._count(uid)
        reading = asyncio.get_running_loop().run_in_executor(self._threads, read)
        reading.add_done_callback(partial(self._ended, uid))
        try:
            async with asyncio.timeout(_DEADLINE_S):
                # The thread itself can't be stopped: it counts until it ends.
                return await asyncio.shield(reading)
        except TimeoutError:
            raise UnreachableError(
                "SW-DATABASE-DOWN",
                f"The ledger's database did not answer within {_DEADLINE_S:.0f} s.",
                "Try again later.",
            ) from None

    def _count(self, uid: int) -> None:
        waiting = self._waiting
        if waiting[uid] >= _WAITING_PER_UID or waiting.total() >= _WAITING:
            raise UnreachableError(
                "SW-BUSY", "The daemon has as many reads in progress as it allows.", "Try again."
            )
        waiting[uid] += 1

    @contextmanager
    def _in_line(self, uid: int) -> Iterator[None]:
        """Count a user who waits for Slurm like one who waits for the ledger."""
        self._count(uid)
        try:
            yield
        finally:
            self._waiting -= Counter([uid])

    def _ended(self, uid: int, reading: "asyncio.Future[T]") -> None:
        self._waiting -= Counter([uid])
        if not reading.cancelled():
            # Take the error: if the caller has gone, asyncio would warn that it was never
            # retrieved.
            reading.exception()


def hiding_places(handlers: ReaderHandlers) -> ReaderHandlers:
    """The same handlers, each ``without_places``."""
    return {kind: partial(_hiding, handle) for kind, handle in handlers.items()}


async def _hiding(handle: ReaderHandler, request: Request, reader: Reader) -> BaseModel:
    with without_places(reader):
        return await handle(request, reader)


@contextmanager
def without_places(reader: Reader) -> Iterator[None]:
    """Hide from all but operators where the database is, and what PostgreSQL answered."""
    try:
        yield
    except SlicewiseError as error:
        if reader.tenants is None or error.refusal.code not in _TELL_PLACES:
            raise
        raise UnreachableError(
            error.refusal.code, "The ledger does not answer now.", "Try again later."
        ) from None


def require_own(tenant: str | None, reader: Reader) -> None:
    """Raise InvalidInputError (SW-TENANT-UNKNOWN) if the reader may not read that tenant."""
    if tenant is not None and not reader.may_read(tenant):
        raise _unknown(tenant, reader)


def _unknown(tenant: str, reader: Reader) -> InvalidInputError:
    """The same error for others' tenants and for none: asking must not reveal names."""
    own = ", ".join(sorted(reader.tenants or ())) or "none"
    hint = "All: slicewise tenant list" if reader.tenants is None else f"Yours: {own}."
    return InvalidInputError("SW-TENANT-UNKNOWN", f"You have no tenant {tenant!r}.", hint)


def require_known(tenant: str, known: Collection[str], reader: Reader) -> None:
    """Raise InvalidInputError (SW-TENANT-UNKNOWN) for a tenant that is not ``known``: it has no
    quota.

    An account that is no tenant any more may be known by its runs.
    """
    if tenant in known:
        return
    if reader.tenants is None:
        raise _unknown(tenant, reader)
    raise InvalidInputError(
        "SW-TENANT-UNKNOWN",
        f"Your account {tenant!r} has no quota.",
        "The operator can give it one: slicewise tenant-quota set",
    )


def _tenants(tenant: str | None, reader: Reader) -> frozenset[str] | None:
    return reader.tenants if tenant is None else frozenset({tenant})


def _place(last: StatementRow, now_s: int) -> StatementPlace:
    run = last.run
    return StatementPlace(
        tenant=run.tenant, start_s=run.key.start_s, job_id=run.key.job_id, now_s=now_s
    )
