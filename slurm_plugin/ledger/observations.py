"""Keeps sums of what was decided and of what could be lent, by day."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, fields
from typing import Any, TypeVar

from sqlalchemy import Connection, Table, delete, select
from sqlalchemy.dialects.postgresql import insert

from slicewise.cluster.runtime.database import reading, writing
from slicewise.slurm_plugin.ledger.base import DEADLINE, LedgerPart
from slicewise.slurm_plugin.ledger.observation_tables import (
    OBSERVED,
    observed_loans,
    observed_quota,
    observed_submissions,
)
from slicewise.slurm_plugin.rules.common.observations import (
    LentBetween,
    Observations,
    QuotaUse,
    Submissions,
)

_Sum = TypeVar("_Sum", Submissions, LentBetween, QuotaUse)


class ObservationSums(LedgerPart):
    """Sums by day. Several processes may add to the same ones."""

    def add(self, found: Observations, oldest_s: int) -> None:
        """Add these sums to those of their days, and delete days that began before ``oldest_s``."""
        with writing(self._engine) as connection:
            connection.execute(DEADLINE)
            self._add(connection, observed_submissions, found.submissions)
            self._add(connection, observed_loans, found.loans)
            self._add(connection, observed_quota, found.quota)
            for table in OBSERVED:
                old = (table.c.cluster == self._cluster, table.c.day_s < oldest_s)
                connection.execute(delete(table).where(*old))

    def since(self, since_s: int) -> Observations:
        """Read the sums of the days that began at ``since_s`` (Unix seconds) or later."""
        with reading(self._engine) as connection:
            return Observations(
                tuple(self._read(connection, observed_submissions, Submissions, since_s)),
                tuple(self._read(connection, observed_loans, LentBetween, since_s)),
                tuple(self._read(connection, observed_quota, QuotaUse, since_s)),
            )

    def _add(self, connection: Connection, table: Table, sums: Iterable[_Sum]) -> None:
        rows = [{"cluster": self._cluster, **_row(record)} for record in sums]
        if not rows:
            return
        # Two daemons that add to the same rows must lock them in the same order.
        keys = [column.name for column in table.primary_key.columns]
        rows.sort(key=lambda row: [row[key] for key in keys])
        new = insert(table)
        added = {
            column.name: column + new.excluded[column.name]
            for column in table.columns
            if not column.primary_key
        }
        connection.execute(new.on_conflict_do_update(index_elements=keys, set_=added), rows)

    def _read(
        self, connection: Connection, table: Table, kind: type[_Sum], since_s: int
    ) -> Iterator[_Sum]:
        names = [_COLUMNS.get(field.name, field.name) for field in fields(kind)]
        query = (
            select(*(table.c[name] for name in names))
            .where(table.c.cluster == self._cluster, table.c.day_s >= since_s)
            .order_by(*table.primary_key.columns)
        )
        return (kind(*row) for row in connection.execute(query).all())


_COLUMNS = {"user": "user_name"}
"""Columns with another name than the field: PostgreSQL keeps the word for itself."""


def _row(record: Submissions | LentBetween | QuotaUse) -> dict[str, Any]:
    return {_COLUMNS.get(name, name): value for name, value in asdict(record).items()}
