"""What the parts of the ledger share."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, text

DEADLINE = text(
    "SELECT set_config('statement_timeout', '4s', true), set_config('lock_timeout', '3s', true)"
)
"""Deadline for statements on which a user waits: the statement is done, or never will be, before
the user is told that it failed."""


@dataclass(frozen=True)
class Database:
    """One cluster's rows, and the engines that reach them.

    Attributes:
        engine: for everything but charges.
        booking: for ``Charges.post``; see ``booking.booking_engine``.
        cluster: Slurm's ClusterName.
    """

    engine: Engine
    booking: Engine
    cluster: str


class LedgerPart:
    """Base of the ledger's parts: methods on some tables of one cluster, each its own transaction.

    Every method raises UnreachableError (SW-DATABASE-DOWN) if PostgreSQL does not answer and
    OutsideError (SW-DATABASE-FAILED, SW-LEDGER-REFUSED) if it answers with an error; then nothing
    was written.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._engine = database.engine
        self._cluster = database.cluster


def seconds(epoch: Any) -> float | None:
    """PostgreSQL's ``extract(epoch ...)`` as a float; None for NULL."""
    return None if epoch is None else float(epoch)
