"""Charges: runs, what is reserved for them, what became of it; the watermark of accounting."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import BigInteger, Select, cast, extract, func, select
from sqlalchemy.dialects.postgresql import insert

from cluster.database import reading, writing
from slurm_plugin.decide.model import Charge, Reservation, RunKey, Transfer
from slurm_plugin.ledger import queries
from slurm_plugin.ledger.booking import book
from slurm_plugin.ledger.part import LedgerPart
from slurm_plugin.ledger.tables import accounts, watermarks

_BOOK = "SELECT slicewise.book(%s)"


class Charges(LedgerPart):
    """Booking what runs reserve and use."""

    def open_reservations(self) -> tuple[Reservation, ...]:
        """Runs that are not settled."""
        found = queries.reservations_of(self._cluster)
        with reading(self._engine) as connection:
            return tuple(queries.reservation(row) for row in connection.execute(found))

    def apply(self, charges: Sequence[Charge]) -> frozenset[RunKey]:
        """Book all charges at once or none; returns the runs that it changed.

        A charge that was decided on another state of its run (``Charge.after``) is left out: so
        applying the same charges again changes nothing.
        """
        if not charges:
            return frozenset()
        in_order = sorted(charges, key=lambda charge: charge.run.key)
        values = json.dumps([_values(charge) for charge in in_order])
        booked = book(self._booking, _BOOK, values)
        return frozenset(in_order[position].run.key for position in booked)

    def charged_tenants(self) -> frozenset[str]:
        """Tenants that ever had a run."""
        used = accounts.c.kind == "used"
        names = select(accounts.c.tenant).where(accounts.c.cluster == self._cluster, used)
        with reading(self._engine) as connection:
            return frozenset(connection.execute(names).scalars())

    def accounted_until_s(self) -> int:
        """Up to when every run's end is in the ledger; the first call sets it to now."""
        found = self.last_accounted_s()
        if found is not None:
            return found
        mark = self._mark()
        now_s = cast(func.floor(extract("epoch", func.now())), BigInteger)
        first = insert(watermarks).values(cluster=self._cluster, accounted_until_s=now_s)
        with writing(self._engine) as connection:
            connection.execute(first.on_conflict_do_nothing())
            return int(connection.execute(mark).scalar_one())

    def last_accounted_s(self) -> int | None:
        """The same, but nothing is set; None before the first call of that."""
        with reading(self._engine) as connection:
            found = connection.execute(self._mark()).scalar_one_or_none()
        return None if found is None else int(found)

    def _mark(self) -> Select[Any]:
        return select(watermarks.c.accounted_until_s).where(watermarks.c.cluster == self._cluster)

    def set_accounted_until_s(self, second: int) -> None:
        """Record that; it never goes back."""
        moved = insert(watermarks).values(cluster=self._cluster, accounted_until_s=second)
        later = func.greatest(watermarks.c.accounted_until_s, moved.excluded.accounted_until_s)
        moved = moved.on_conflict_do_update(
            index_elements=[watermarks.c.cluster], set_={"accounted_until_s": later}
        )
        with writing(self._engine) as connection:
            connection.execute(moved)


def _values(charge: Charge) -> Mapping[str, object]:
    """As ``slicewise.book`` reads it."""
    run = charge.run
    return {
        "cluster": run.key.cluster,
        "job_id": run.key.job_id,
        "start_s": run.key.start_s,
        "tenant": run.tenant,
        "payer": run.payer,
        "user_name": run.user,
        "task": run.task,
        "gres": dict(run.gres),
        "cost_millislices": run.cost_millislices,
        "after": charge.after,
        "transfers": [_transfer_values(transfer) for transfer in charge.transfers],
    }


def _transfer_values(transfer: Transfer) -> Mapping[str, object]:
    return {
        "kind": transfer.kind,
        "amount_millislice_s": transfer.amount_millislice_s,
        "until_s": transfer.until_s,
    }
