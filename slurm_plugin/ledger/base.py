"""What the parts of the ledger share."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, text

from slicewise.cluster.runtime.database import reading

DEADLINE = text(
    "SELECT set_config('statement_timeout', '4s', true), set_config('lock_timeout', '3s', true)"
)
"""Deadline for statements on which a user waits: the statement is done, or never will be, before
the user is told that it failed."""
_READ_DEADLINE = text("SET LOCAL statement_timeout = '8s'")


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

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        """What ``reading`` yields, where a user waits: UnreachableError (SW-DATABASE-DOWN) for a
        statement that takes longer than eight seconds.
        """
        with reading(self._engine) as connection:
            connection.execute(_READ_DEADLINE)
            yield connection


def seconds(epoch: Any) -> float | None:
    """PostgreSQL's ``extract(epoch ...)`` as a float; None for NULL."""
    return None if epoch is None else float(epoch)
