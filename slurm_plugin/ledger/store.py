"""The ledger: the plugin's only door to PostgreSQL. Synchronous; callers use a thread."""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from sqlalchemy import BigInteger, Connection, cast, extract, func, select, text, tuple_
from sqlalchemy.dialects.postgresql import insert

from cluster.units import Millislices
from slurm_plugin.decide.model import (
    DEBIT_CREDIT,
    Account,
    Charge,
    Quota,
    QuotaChange,
    Reservation,
    Run,
    RunKey,
    Statement,
)
from slurm_plugin.decide.quotas import check_quota
from slurm_plugin.decide.statement import totals
from slurm_plugin.ledger import queries, schema
from slurm_plugin.ledger.connection import ledger_engine, reading, writing
from slurm_plugin.ledger.tables import (
    accounts,
    compilations,
    quota_changes,
    runs,
    transfers,
    watermarks,
)

QUOTA_CHANNEL = "slicewise_quota"
"""NOTIFY carries the id of a quota change on it."""

_BATCH = 1000
"""Charges per statement: PostgreSQL takes at most 65,535 parameters."""


class Ledger:
    """One cluster's quotas and charges.

    Every method raises UnreachableError (SW-DATABASE-DOWN) if PostgreSQL does not answer and
    OutsideError (SW-DATABASE-FAILED, SW-LEDGER-REFUSED) if it answers with an error; then nothing
    was written. Safe to use from several threads.
    """

    def __init__(self, url: str, cluster: str) -> None:
        """``url`` as postgresql://..., ``cluster`` is Slurm's ClusterName; connects later."""
        self._engine = ledger_engine(url)
        self._cluster = cluster

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close its connections."""
        self._engine.dispose()

    def require_current(self) -> None:
        """Raises InvalidInputError (SW-DATABASE-OLD, SW-DATABASE-NEW) unless it is at head."""
        schema.require_current(self._engine)

    # Quotas

    def quotas(self) -> Mapping[str, Quota]:
        """The quota of each tenant that ever had one, by name."""
        newest = queries.newest_changes_of(self._cluster)
        with reading(self._engine) as connection:
            changes = [queries.quota_change(row) for row in connection.execute(newest)]
        return {one.tenant: Quota(one.tenant, one.nominal_millislices) for one in changes}

    def set_quota(
        self, tenant: str, nominal_millislices: Millislices, author: str, reason: str
    ) -> QuotaChange:
        """Append a change and notify whoever listens on ``slicewise_quota``.

        Raises InvalidInputError: SW-TENANT-NAME, SW-QUOTA-RANGE, SW-TEXT.
        """
        check_quota(tenant, nominal_millislices, author, reason)
        values = {
            "cluster": self._cluster,
            "tenant": tenant,
            "nominal_millislices": nominal_millislices,
            "author": author,
            "reason": reason,
        }
        added = (
            insert(quota_changes).values(values).returning(quota_changes.c.id, queries.RECORDED_S)
        )
        with writing(self._engine) as connection:
            change_id, at_s = connection.execute(added).one()
            connection.execute(select(func.pg_notify(QUOTA_CHANNEL, str(change_id))))
        return QuotaChange(change_id, tenant, nominal_millislices, author, reason, at_s)

    def quota_history(self, tenant: str) -> tuple[QuotaChange, ...]:
        """Every quota that the tenant ever had, the newest first."""
        changes = queries.changes_of(self._cluster).where(quota_changes.c.tenant == tenant)
        with reading(self._engine) as connection:
            rows = connection.execute(changes.order_by(quota_changes.c.id.desc()))
            return tuple(queries.quota_change(row) for row in rows)

    def change_id(self) -> int:
        """The newest quota change's id, 0 if there is none; read it before ``quotas``."""
        newest = select(func.coalesce(func.max(quota_changes.c.id), 0)).where(
            quota_changes.c.cluster == self._cluster
        )
        with reading(self._engine) as connection:
            return int(connection.execute(newest).scalar_one())

    def mark_compiled(self, change_id: int) -> None:
        """Record that Slurm's limits contain that change and every earlier one."""
        marked = insert(compilations).values(cluster=self._cluster, change_id=change_id)
        newer = func.greatest(compilations.c.change_id, marked.excluded.change_id)
        marked = marked.on_conflict_do_update(
            index_elements=[compilations.c.cluster],
            set_={"change_id": newer, "compiled_at": func.now()},
        )
        with writing(self._engine) as connection:
            connection.execute(marked)

    def compiled(self, change_id: int) -> bool:
        """Whether Slurm's limits contain that change."""
        mark = select(compilations.c.change_id).where(compilations.c.cluster == self._cluster)
        with reading(self._engine) as connection:
            return (connection.execute(mark).scalar_one_or_none() or 0) >= change_id

    # Charges

    def open_reservations(self) -> tuple[Reservation, ...]:
        """Runs that are not settled."""
        found = queries.reservations_of(self._cluster)
        with reading(self._engine) as connection:
            return tuple(queries.reservation(row) for row in connection.execute(found))

    def apply(self, charges: Sequence[Charge]) -> frozenset[RunKey]:
        """Book charges in one transaction; returns the runs that it changed.

        A charge that was decided on another state of its run (``Charge.after``) is left out: so
        applying the same charges again changes nothing.
        """
        changed: list[RunKey] = []
        with writing(self._engine) as connection:
            for first in range(0, len(charges), _BATCH):
                fresh = self._fresh(connection, charges[first : first + _BATCH])
                if fresh:
                    ids = self._run_ids(connection, [charge.run for charge in fresh])
                    self._book(connection, fresh, ids)
                changed.extend(charge.run.key for charge in fresh)
        return frozenset(changed)

    def _fresh(self, connection: Connection, charges: Sequence[Charge]) -> list[Charge]:
        """The charges whose runs have as many transfers as they were decided on.

        Two writers who both find so are told apart by the unique number of a run's transfers.
        """
        keys = [queries.key_values(charge.run.key) for charge in charges]
        counted = (
            select(*queries.RUN_KEY, func.count(transfers.c.id))
            .outerjoin(transfers, transfers.c.run_id == runs.c.id)
            .where(tuple_(*queries.RUN_KEY).in_(keys))
            .group_by(*queries.RUN_KEY)
        )
        done = {RunKey(*row[:3]): row[3] for row in connection.execute(counted)}
        return [charge for charge in charges if done.get(charge.run.key, 0) == charge.after]

    def _run_ids(self, connection: Connection, found: Sequence[Run]) -> Mapping[RunKey, int]:
        rows = [queries.run_values(run) for run in sorted(found, key=lambda run: run.key)]
        connection.execute(insert(runs).on_conflict_do_nothing(), rows)
        keys = [queries.key_values(run.key) for run in found]
        ids = select(*queries.RUN_KEY, runs.c.id).where(tuple_(*queries.RUN_KEY).in_(keys))
        return {RunKey(*row[:3]): row[3] for row in connection.execute(ids)}

    def _book(
        self, connection: Connection, charges: Sequence[Charge], ids: Mapping[RunKey, int]
    ) -> None:
        of = self._account_ids(connection, sorted({charge.run.tenant for charge in charges}))
        rows = [
            {
                "run_id": ids[charge.run.key],
                "number": number,
                "kind": transfer.kind.value,
                "debit_account_id": of[charge.run.tenant, DEBIT_CREDIT[transfer.kind][0]],
                "credit_account_id": of[charge.run.tenant, DEBIT_CREDIT[transfer.kind][1]],
                "amount_millislice_s": transfer.amount_millislice_s,
                "until_s": transfer.until_s,
            }
            for charge in charges
            for number, transfer in enumerate(charge.transfers, start=charge.after + 1)
        ]
        connection.execute(insert(transfers), rows)

    def _account_ids(
        self, connection: Connection, tenants: Sequence[str]
    ) -> Mapping[tuple[str, Account], int]:
        rows = [
            {"cluster": self._cluster, "tenant": tenant, "kind": kind.value}
            for tenant in tenants
            for kind in Account
        ]
        connection.execute(insert(accounts).on_conflict_do_nothing(), rows)
        ids = select(accounts.c.tenant, accounts.c.kind, accounts.c.id).where(
            accounts.c.cluster == self._cluster, accounts.c.tenant.in_(tenants)
        )
        return {(tenant, Account(kind)): id_ for tenant, kind, id_ in connection.execute(ids)}

    def accounted_until_s(self) -> int:
        """Up to when every run's end is in the ledger; the first call sets it to now."""
        mark = select(watermarks.c.accounted_until_s).where(watermarks.c.cluster == self._cluster)
        with reading(self._engine) as connection:
            found = connection.execute(mark).scalar_one_or_none()
        if found is not None:
            return int(found)
        now_s = cast(func.floor(extract("epoch", func.now())), BigInteger)
        first = insert(watermarks).values(cluster=self._cluster, accounted_until_s=now_s)
        with writing(self._engine) as connection:
            connection.execute(first.on_conflict_do_nothing())
            return int(connection.execute(mark).scalar_one())

    def set_accounted_until_s(self, second: int) -> None:
        """Record that; it never goes back."""
        moved = insert(watermarks).values(cluster=self._cluster, accounted_until_s=second)
        later = func.greatest(watermarks.c.accounted_until_s, moved.excluded.accounted_until_s)
        moved = moved.on_conflict_do_update(
            index_elements=[watermarks.c.cluster], set_={"accounted_until_s": later}
        )
        with writing(self._engine) as connection:
            connection.execute(moved)

    # Looking back

    def charged_tenants(self) -> frozenset[str]:
        """Tenants that ever had a run."""
        names = select(accounts.c.tenant).where(accounts.c.cluster == self._cluster).distinct()
        with reading(self._engine) as connection:
            return frozenset(connection.execute(names).scalars())

    def statement(self, tenant: str | None, since_s: int, now_s: int) -> Statement:
        """Runs that ended at ``since_s`` or later or still run, of one tenant or of all.

        What a running one has used so far is counted up to ``now_s``; each run counts whole.
        """
        with reading(self._engine) as connection:
            found = connection.execute(queries.statement_of(self._cluster, tenant, since_s)).all()
        rows = tuple(queries.statement_row(row, now_s) for row in found)
        return Statement(rows, totals(rows))

    def imbalance(self) -> int:
        """Millislice-seconds that do not add up, over every cluster; 0 iff all is well.

        Recomputed from the transfers alone: that debits equal credits; that no run has posted and
        voided more than it reserved; that what is open by each run's, and by each tenant's
        transfers is what ``open_reservations`` holds.
        """
        with reading(self._engine) as connection:
            return int(connection.execute(text(queries.IMBALANCE)).scalar_one())
