"""Where commands read: an operator's in the ledger itself, everybody else's through the daemon."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from pydantic import TypeAdapter

from cluster.daemon_client import DaemonClient
from cluster.errors import InvalidInputError
from cluster.jobs import JobView, NodeView
from cluster.settings import DatabaseSettings, Settings, database_url
from cluster.slurm.commands import CommandSlurm
from cluster.wire_reads import StatementRequest
from slurm_plugin.cli.parts import opened_ledger, require_tenant
from slurm_plugin.decide.explain import Explanation, explain
from slurm_plugin.decide.model import BalanceLine, Statement, StatementRow
from slurm_plugin.decide.statement import totals
from slurm_plugin.ledger_reads import balance_lines, books_now, situation

if TYPE_CHECKING:
    from slurm_plugin.ledger.store import Ledger


class Source(Protocol):
    """What both can tell. Raises InvalidInputError (SW-TENANT-UNKNOWN)."""

    def explanation(self, tenant: str) -> Explanation:
        """What it may still start, and why not more."""

    def statement(self, tenant: str | None, since_s: int) -> tuple[Statement, int]:
        """Runs that ended then or later, or still run; up to when those are counted."""

    def balances(self, tenant: str | None) -> tuple[BalanceLine, ...]:
        """Accounts as they stand."""


@contextmanager
def opened_source(settings: Settings) -> Iterator[Source]:
    """The ledger for who may read where it is; the daemon, which shows own tenants, for others."""
    if _may_read(settings.database):
        with opened_ledger(settings) as ledger:
            yield LedgerSource(ledger, settings)
    else:
        yield DaemonSource(DaemonClient(settings.daemon))


def _may_read(settings: DatabaseSettings) -> bool:
    try:
        return bool(database_url(settings))
    except InvalidInputError:
        return False


class LedgerSource:
    """Every tenant, and Slurm asked by this command."""

    def __init__(self, ledger: "Ledger", settings: Settings) -> None:
        self._ledger = ledger
        self._settings = settings

    def explanation(self, tenant: str) -> Explanation:
        """As ``Source`` says."""
        require_tenant(self._ledger.tenants.policy(), tenant)
        jobs, nodes = asyncio.run(_look())
        books = books_now(self._ledger, self._settings)
        return explain(tenant, situation(books, self._settings, jobs, nodes))

    def statement(self, tenant: str | None, since_s: int) -> tuple[Statement, int]:
        """As ``Source`` says."""
        self._require_known(tenant)
        now_s = int(time.time())
        return self._ledger.audit.statement(tenant, since_s, now_s), now_s

    def balances(self, tenant: str | None) -> tuple[BalanceLine, ...]:
        """As ``Source`` says."""
        self._require_known(tenant)
        books = books_now(self._ledger, self._settings)
        return balance_lines(books, None if tenant is None else {tenant})

    def _require_known(self, tenant: str | None) -> None:
        """An account that is no tenant may still have runs."""
        if tenant is None:
            return
        known = sorted({*self._ledger.tenants.policy(), *self._ledger.charges.charged_tenants()})
        if tenant not in known:
            raise InvalidInputError(
                "SW-TENANT-UNKNOWN",
                f"The ledger knows no tenant {tenant!r}.",
                f"Known: {', '.join(known) or 'none'}.",
            )


async def _look() -> tuple[tuple[JobView, ...], tuple[NodeView, ...]]:
    slurm = CommandSlurm()
    return await asyncio.gather(slurm.jobs(), slurm.nodes())


class DaemonSource:
    """Own tenants, as the daemon sees them."""

    def __init__(self, daemon: DaemonClient) -> None:
        self._daemon = daemon

    def explanation(self, tenant: str) -> Explanation:
        """As ``Source`` says."""
        answer = asyncio.run(self._daemon.explain(tenant))
        return TypeAdapter(Explanation).validate_python(answer.explanation)

    def statement(self, tenant: str | None, since_s: int) -> tuple[Statement, int]:
        """As ``Source`` says."""
        rows, now_s = asyncio.run(self._pages(StatementRequest(tenant=tenant, since_s=since_s)))
        return Statement(rows, totals(rows)), now_s

    async def _pages(self, request: StatementRequest) -> tuple[tuple[StatementRow, ...], int]:
        adapter = TypeAdapter(tuple[StatementRow, ...])
        answer = await self._daemon.statement(request)
        rows = [*adapter.validate_python(answer.rows)]
        while answer.more is not None:
            request = request.model_copy(update={"after": answer.more})
            answer = await self._daemon.statement(request)
            rows += adapter.validate_python(answer.rows)
        return tuple(rows), answer.now_s

    def balances(self, tenant: str | None) -> tuple[BalanceLine, ...]:
        """As ``Source`` says."""
        answer = asyncio.run(self._daemon.balance(tenant))
        return TypeAdapter(tuple[BalanceLine, ...]).validate_python(answer.balances)
