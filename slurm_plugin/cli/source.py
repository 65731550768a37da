"""Where commands read: an operator's in the ledger itself, everybody else's through the daemon."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from cluster.errors import InvalidInputError
from cluster.settings import DatabaseSettings, Settings, database_url
from slurm_plugin.cli.parts import opened_ledger
from slurm_plugin.decide.model import BalanceLine, Statement

if TYPE_CHECKING:
    from slurm_plugin.decide.explain import Explanation


class Source(Protocol):
    """What both can tell. Raises InvalidInputError (SW-TENANT-UNKNOWN)."""

    def explanation(self, tenant: str) -> "Explanation":
        """What it may still start, and why not more."""

    def statement(self, tenant: str | None, since_s: int) -> tuple[Statement, int]:
        """Runs that ended then or later, or still run; up to when those are counted."""

    def balances(self, tenant: str | None) -> tuple[BalanceLine, ...]:
        """Accounts as they stand."""


@contextmanager
def opened_source(settings: Settings) -> Iterator[Source]:
    """The ledger for who may read where it is; the daemon, which shows own tenants, for others."""
    # Each imports what the other has no use for.
    if _may_read(settings.database):
        from slurm_plugin.cli.ledger_source import LedgerSource  # noqa: PLC0415 -- operators alone

        with opened_ledger(settings) as ledger:
            yield LedgerSource(ledger, settings)
    else:
        from cluster.daemon_client import DaemonClient  # noqa: PLC0415 -- users alone
        from slurm_plugin.cli.daemon_source import DaemonSource  # noqa: PLC0415

        yield DaemonSource(DaemonClient(settings.daemon))


def _may_read(settings: DatabaseSettings) -> bool:
    try:
        return bool(database_url(settings))
    except InvalidInputError:
        return False
