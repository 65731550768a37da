"""Reads back what was booked: statements, exports, and whether everything adds up."""

from collections.abc import Collection, Iterator, Mapping

from sqlalchemy import Connection, text

from slicewise.cluster.runtime.database import reading
from slicewise.slurm_plugin.ledger import (
    energy_replay,
    queries,
    reads,
    replay,
    usage_replay,
    window_rows,
)
from slicewise.slurm_plugin.ledger.base import LedgerPart
from slicewise.slurm_plugin.ledger.share_queries import PAID_SINCE
from slicewise.slurm_plugin.rules.accounting.overview import used_since
from slicewise.slurm_plugin.rules.accounting.statement import totals
from slicewise.slurm_plugin.rules.accounting.types import (
    Statement,
    StatementRow,
    Verification,
)
from slicewise.slurm_plugin.rules.quota.calendar import loosely_within


class Audit(LedgerPart):
    """Reads and checks the whole ledger."""

    def statement(self, tenant: str | None, since_s: int, now_s: int) -> Statement:
        """Runs that ended at ``since_s`` or later or still run, of one tenant or of all (None).

        Of a tenant, those of its account and those that it pays for, of whichever account. The use
        of a running job is counted up to ``now_s``; each run counts whole.
        """
        with reading(self._engine) as connection:
            found = connection.execute(queries.statement_of(self._cluster, tenant, since_s)).all()
        rows = tuple(queries.statement_row(row, now_s) for row in found)
        return Statement(rows, totals(rows))

    def used_of_budget(self, payer: str, since_s: int, now_s: int) -> int:
        """Millislice-seconds that the runs that one tenant's budget pays for have used since then.

        With the shares of others' runs that were charged to it since then, less what others were
        charged of those that it pays for. PostgreSQL adds up the settled runs. Raises
        UnreachableError (SW-DATABASE-DOWN) if it takes too long.
        """
        settled = queries.settled_use_paid_by(self._cluster, payer, since_s)
        with self._reading() as connection:
            used = int(connection.execute(settled).scalar_one())
            found = connection.execute(queries.open_paid_by(self._cluster, payer)).all()
            budget = {"cluster": self._cluster, "payer": payer, "since_s": since_s}
            used += int(connection.execute(text(PAID_SINCE), budget).scalar_one())
        rows = (queries.statement_row(row, now_s) for row in found)
        return used + used_since(rows, payer, since_s)

    def statement_page(
        self,
        tenant: str | None,
        since_s: int,
        now_s: int,
        after: tuple[str, int, int] | None,
        rows: int,
        *,
        until_s: int | None = None,
        accounts: Collection[str] | None = None,
    ) -> tuple[StatementRow, ...]:
        """A page of such a statement: ``rows`` of its rows, in its order.

        Only runs that began before ``until_s``, and runs of ``accounts``, where these are given.
        ``after`` is account, start and job id of the last row of the page before. Raises
        UnreachableError (SW-DATABASE-DOWN) if PostgreSQL takes too long.
        """
        page = queries.statement_page_of(
            self._cluster, tenant, since_s, after, until_s, accounts=accounts
        )
        with self._reading() as connection:
            found = connection.execute(page.limit(rows)).all()
        return tuple(queries.statement_row(row, now_s) for row in found)

    def export(
        self, since_s: int, after_id: int, until_id: int, rows: int
    ) -> tuple[Mapping[str, str | int | None], ...]:
        """``rows`` transfers recorded at ``since_s`` or later, in the order of booking.

        Only those with a number above ``after_id``, up to ``until_id``. Amounts are in the unit of
        their meter, times Unix seconds; ``job_id``, ``task``, ``start_s`` and ``until_s`` are None
        for a budget's transfer, ``author`` and ``reason`` for a run's. Raises UnreachableError
        (SW-DATABASE-DOWN) if PostgreSQL takes too long.
        """
        wanted = queries.export_of(self._cluster, since_s, after_id, until_id).limit(rows)
        with self._reading() as connection:
            return tuple(dict(row) for row in connection.execute(wanted).mappings())

    def newest_sealed_id(self) -> int:
        """The number of the newest sealed transfer; none up to it is booked later."""
        with reading(self._engine) as connection:
            return int(connection.execute(text(replay.NEWEST_SEALED)).scalar_one())

    def verify(self) -> Verification:
        """Replay every transfer, over every cluster, and compare with all that is stored.

        Checked are: that each transfer moves between the accounts that its kind and its run or
        budget entry name; that each run's open reservation holds what its transfers leave reserved
        and have posted; that a settled run has used, or was waived, what Slurm allotted to it; that
        the numbers of a run's transfers have no gap; that each account's balance is the sum over
        its transfers; that each budget entry has exactly its transfer; that the seals match what is
        stored, and none is missing at their end; that loans are what they were last changed to, and
        within limits; that recalls are between tenants; that no watermark or recall lies in the
        future, and all are what they were last changed to; that services of a pool have together
        what their tenant's runs cost; that jobs and nobody have together what each board took; that
        sums of usage by hour,
        run, day and month are those of its records and of its transfers, and no more than engines
        have counted.
        """
        with reading(self._engine) as connection:
            numbers = _numbers_of_seals(connection)
        with reading(self._engine) as connection:
            connection.execute(text(replay.SETTING))
            checks = (*replay.CHECKS, *usage_replay.CHECKS, *energy_replay.CHECKS)
            found = [connection.execute(text(check)).one() for check in checks]
            clusters = connection.execute(text(_LENDING)).scalars().all()
            others = [fault for cluster in clusters for fault in _loan_faults(connection, cluster)]
            found.append(connection.execute(text(replay.CUT_OFF), numbers).one())
            connection.execute(text(replay.BY_INDEX))
            sealed = connection.execute(text(replay.SEALS)).one()
            seal = connection.execute(text(replay.NEWEST_SEAL)).scalar_one_or_none()
        return replay.verification(found, sealed, others, seal or "")

    def has_seal(self, seal: str) -> bool:
        """Whether the chain has that hash (hexadecimal)."""
        with reading(self._engine) as connection:
            return bool(connection.execute(text(replay.HAS_SEAL), {"seal": seal}).scalar_one())


def _numbers_of_seals(connection: Connection) -> Mapping[str, int]:
    """How many numbers of seals were ever given."""
    sequence = connection.execute(text(replay.SEALS_SEQUENCE)).scalar_one()
    given, logged = connection.execute(text(replay.GIVEN_NUMBERS.format(sequence=sequence))).one()
    return {"given": given, "logged": logged}


_LENDING = "SELECT DISTINCT cluster FROM slicewise.loans ORDER BY 1"


def _loan_faults(connection: Connection, cluster: str) -> Iterator[str]:
    policy, loans = reads.policy(connection, cluster), reads.loans(connection, cluster)
    recorded = connection.execute(window_rows.window_records_of(cluster))
    # Windows that are over count, too: loans follow them only at the next round.
    windows = [window_rows.window_record(row).window for row in recorded]
    for loan in sorted(set(loans) - set(loosely_within(policy, windows, loans))):
        pair = f"{loan.lender} to {loan.borrower} on {cluster}"
        yield f"loan of {pair}: {loan.amount_millislices} are beyond what its limits allow"
