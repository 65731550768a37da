"""Books charges: runs, what they reserve and use; and the watermark of accounting."""

import json
from collections.abc import Mapping, Sequence

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Double,
    bindparam,
    case,
    delete,
    func,
    or_,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import insert

from slicewise.cluster.language.meters import SLICES
from slicewise.cluster.runtime.database import reading, writing
from slicewise.slurm_plugin.ledger import reads
from slicewise.slurm_plugin.ledger.base import LedgerPart
from slicewise.slurm_plugin.ledger.booking import book
from slicewise.slurm_plugin.ledger.tables import (
    accounts,
    lost_runs,
    open_reservations,
    runs,
    transfers,
    watermarks,
)
from slicewise.slurm_plugin.ledger.window_rows import NOW_S
from slicewise.slurm_plugin.rules.accounting.lost_runs import LostRun
from slicewise.slurm_plugin.rules.accounting.types import Charge, Reservation, RunKey, Transfer
from slicewise.slurm_plugin.rules.admission.decayed_use import Holding

_BOOK = "SELECT slicewise.book($1)"
_ROWS_AT_ONCE = 5000
_SEALED_AT_ONCE, _BATCHES = 2000, 20
"""Transfers sealed in one batch, and most batches of one call. Bookings wait for each batch, some
10 ms."""
MOST_SEALED = _SEALED_AT_ONCE * _BATCHES
"""Transfers that one call seals at most: one that seals fewer leaves none."""
_AHEAD_S = 3600
"""Seconds: a watermark further in the future was written by a clock that was wrong."""


class Charges(LedgerPart):
    """Books what runs reserve and use."""

    @property
    def _slices(self) -> tuple[ColumnElement[bool], ...]:
        return runs.c.cluster == self._cluster, runs.c.meter == SLICES.name

    def open_reservations(self) -> tuple[Reservation, ...]:
        """Reservations of runs that are not settled."""
        with reading(self._engine) as connection:
            return reads.reservations(connection, self._cluster)

    def post(self, charges: Sequence[Charge]) -> frozenset[RunKey]:
        """Book all charges in one transaction or none; return the runs that it changed.

        A charge that was decided on another state of its run (``Charge.after``) is left out, so
        posting the same charges again changes nothing.
        """
        if not charges:
            return frozenset()
        in_order = sorted(charges, key=lambda charge: charge.run.key)
        values = json.dumps([_values(charge) for charge in in_order])
        booked = book(self._database.booking, _BOOK, values)
        return frozenset(in_order[position].run.key for position in booked)

    def holdings(self, since_s: int) -> tuple[Holding, ...]:
        """Holdings of every run that has ended at ``since_s`` or later, or is still open."""
        newest = (
            select(transfers.c.until_s)
            .where(transfers.c.run_id == runs.c.id)
            .order_by(transfers.c.number.desc())
            .limit(1)
            .lateral("newest")
        )
        is_open = open_reservations.c.run_id.is_not(None)
        query = (
            select(
                runs.c.tenant, runs.c.cost_millislices, runs.c.start_s, newest.c.until_s, is_open
            )
            .select_from(runs)
            .join(newest, true())
            .outerjoin(open_reservations, open_reservations.c.run_id == runs.c.id)
            .where(*self._slices, or_(is_open, newest.c.until_s >= since_s))
        )
        with reading(self._engine) as connection:
            result = connection.execution_options(yield_per=_ROWS_AT_ONCE).execute(query)
            return tuple(
                Holding(tenant, amount, start_s, None if still_open else until_s)
                for tenant, amount, start_s, until_s, still_open in result
            )

    def seal(self) -> int:
        """Chain what was booked since the last seal to all that was before, as ``Audit.verify``
        checks.

        Returns the number of transfers sealed. Of a long history that is a part: ``MOST_SEALED``.
        """
        total = 0
        for _ in range(_BATCHES):
            with writing(self._engine) as connection:
                sealed = connection.execute(select(func.slicewise.seal(_SEALED_AT_ONCE)))
                total += (count := int(sealed.scalar_one()))
            if count < _SEALED_AT_ONCE:
                break
        return total

    def charged_tenants(self) -> frozenset[str]:
        """Tenants that ever had a run."""
        used = accounts.c.kind == "used", accounts.c.meter == SLICES.name
        names = select(accounts.c.tenant).where(accounts.c.cluster == self._cluster, *used)
        with reading(self._engine) as connection:
            return frozenset(connection.execute(names).scalars())

    def lost_runs(self, monotonic_s: float) -> Mapping[RunKey, LostRun]:
        """What the last daemon knew of runs that are not settled, and that Slurm shows no more.

        ``monotonic_s`` is now, by the monotonic clock: no daemon looked between its end and now.
        """
        query = (
            select(runs.c.job_id, runs.c.start_s, lost_runs)
            .join(lost_runs, lost_runs.c.run_id == runs.c.id)
            .where(*self._slices)
        )
        with reading(self._engine) as connection:
            return {
                RunKey(self._cluster, row.job_id, row.start_s): LostRun(
                    monotonic_s - row.gone_s, row.end_s, row.shown_s
                )
                for row in connection.execute(query)
            }

    def keep_lost_runs(self, found: Mapping[RunKey, LostRun], monotonic_s: float) -> None:
        """Keep that for the next daemon, in the place of what was kept before."""
        mine = select(runs.c.id).where(*self._slices)
        one_run = mine.where(
            runs.c.job_id == bindparam("of_job_id"), runs.c.start_s == bindparam("of_start_s")
        ).add_columns(
            bindparam("gone", type_=Double),
            bindparam("end", type_=BigInteger),
            bindparam("shown", type_=BigInteger),
        )
        columns = ("run_id", "gone_s", "end_s", "shown_s")
        values = [
            {
                "of_job_id": key.job_id,
                "of_start_s": key.start_s,
                "gone": monotonic_s - lost.since_s,
                "end": lost.end_s,
                "shown": lost.shown_s,
            }
            for key, lost in found.items()
        ]
        with writing(self._engine) as connection:
            connection.execute(delete(lost_runs).where(lost_runs.c.run_id.in_(mine)))
            if values:
                connection.execute(insert(lost_runs).from_select(columns, one_run), values)

    def accounted_until_s(self) -> int:
        """Unix seconds up to which every run's end is booked; the first call sets it to now."""
        found = self.last_accounted_s()
        if found is not None:
            return found
        first = insert(watermarks).values(cluster=self._cluster, accounted_until_s=NOW_S)
        with writing(self._engine) as connection:
            if connection.execute(first.on_conflict_do_nothing()).rowcount:
                reads.seal_state(connection, self._cluster, "watermark")
            return reads.accounted_until_s(connection, self._cluster) or 0

    def last_accounted_s(self) -> int | None:
        """The same without setting anything; None if it was never set."""
        with reading(self._engine) as connection:
            return reads.accounted_until_s(connection, self._cluster)

    def set_accounted_until_s(self, second: int) -> None:
        """Move the watermark to ``second``.

        It never goes back, unless it is far ahead of the database's clock.
        """
        mark = watermarks.c.accounted_until_s
        moved = insert(watermarks).values(cluster=self._cluster, accounted_until_s=second)
        after = moved.excluded.accounted_until_s
        later = case((mark > NOW_S + _AHEAD_S, after), else_=func.greatest(mark, after))
        moved = moved.on_conflict_do_update(
            index_elements=[watermarks.c.cluster], set_={"accounted_until_s": later}
        )
        with writing(self._engine) as connection:
            connection.execute(moved)
            reads.seal_state(connection, self._cluster, "watermark")


def _values(charge: Charge) -> Mapping[str, object]:
    """The charge in the form that ``slicewise.book`` reads."""
    run = charge.run
    return {
        "cluster": run.key.cluster,
        "meter": run.key.meter,
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
        "amount": transfer.amount,
        "until_s": transfer.until_s,
    }
