"""Chooses where commands read: in the ledger itself for operators, through the daemon for users."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.settings.file import DatabaseSettings, Settings
from slicewise.cluster.settings.read import database_url
from slicewise.slurm_plugin.cli.common.options import opened_ledger
from slicewise.slurm_plugin.rules.accounting.types import BalanceLine, Statement

if TYPE_CHECKING:
    from slicewise.cluster.rpc.history_messages import HistoryAnswer, HistoryRequest
    from slicewise.slurm_plugin.rules.accounting.overview import BudgetStatus
    from slicewise.slurm_plugin.rules.explain.headroom import Explanation


class Source(Protocol):
    """The reads that both sources offer; they raise InvalidInputError (SW-TENANT-UNKNOWN)."""

    def explanation(self, tenant: str) -> "Explanation":
        """Return what the tenant may still start, and what allows no more."""

    def statement(self, tenant: str | None, since_s: int) -> tuple[Statement, int]:
        """Return runs that ended at ``since_s`` or later, or still run.

        Of a tenant, those of its account and those that it pays for, where the caller may see them.
        The second value is the time up to which running ones are counted, in Unix seconds.
        """

    def charged_below(self, tenant: str) -> tuple[str, ...]:
        """Return the tenants below one that have had runs, by name, where the caller may see them.

        A statement of a tenant has none of theirs that it does not pay for.
        """

    def balances(self, tenant: str | None) -> tuple[BalanceLine, ...]:
        """Return current balances; None stands for all tenants that the caller may see."""

    def budgets(self, tenant: str | None) -> "tuple[BudgetStatus, ...]":
        """Return the status of budgets that pay for the tenant, or for all that the caller may see.

        Of a tenant it has what was used of it; empty if no budget pays for the tenant.
        """

    def tenants(self) -> tuple[str, ...]:
        """Return the names of the tenants that the caller may see."""

    def history(self, request: "HistoryRequest") -> "HistoryAnswer":
        """Return figures over time."""


@contextmanager
def opened_source(settings: Settings) -> Iterator[Source]:
    """Open the ledger if its URL can be read, else the daemon, which shows users own tenants."""
    # Imported here: neither source needs the other's libraries.
    if _may_read(settings.database):
        from slicewise.slurm_plugin.cli.common.ledger_backend import LedgerSource  # noqa: PLC0415 -- operators alone

        with opened_ledger(settings) as ledger:
            yield LedgerSource(ledger, settings)
    else:
        from slicewise.cluster.rpc.client import DaemonClient  # noqa: PLC0415 -- users alone
        from slicewise.slurm_plugin.cli.common.daemon_backend import DaemonSource  # noqa: PLC0415

        yield DaemonSource(DaemonClient(settings.daemon))


def _may_read(settings: DatabaseSettings) -> bool:
    try:
        return bool(database_url(settings))
    except InvalidInputError:
        return False
