"""What is asked of the ledger's tables, and their rows as values."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import BigInteger, Select, cast, extract, func, literal, select

from cluster.units import Millislices, MillisliceSeconds
from slurm_plugin.decide.model import (
    QuotaChange,
    Reservation,
    Run,
    RunKey,
    StatementRow,
    TransferKind,
)
from slurm_plugin.decide.statement import open_row
from slurm_plugin.ledger.tables import open_reservations, quota_changes, runs, transfers

RUN_KEY = (runs.c.cluster, runs.c.job_id, runs.c.start_s)
_RUN_COLUMNS = (
    *RUN_KEY,
    runs.c.tenant,
    runs.c.user_name,
    runs.c.task,
    runs.c.gres,
    runs.c.cost_millislices,
)
_SETTLING = (TransferKind.POST.value, TransferKind.VOID.value)

RECORDED_S = cast(func.floor(extract("epoch", quota_changes.c.recorded_at)), BigInteger)


def changes_of(cluster: str) -> Select[Any]:
    """Quota changes, for ``quota_change``."""
    columns = (
        quota_changes.c.id,
        quota_changes.c.tenant,
        quota_changes.c.nominal_millislices,
        quota_changes.c.author,
        quota_changes.c.reason,
        RECORDED_S,
    )
    return select(*columns).where(quota_changes.c.cluster == cluster)


def newest_changes_of(cluster: str) -> Select[Any]:
    """The newest change of each tenant."""
    newest = select(func.max(quota_changes.c.id)).where(quota_changes.c.cluster == cluster)
    return changes_of(cluster).where(
        quota_changes.c.id.in_(newest.group_by(quota_changes.c.tenant))
    )


def quota_change(row: Any) -> QuotaChange:
    """A row of ``changes_of``."""
    change_id, tenant, nominal, author, reason, at_s = row
    return QuotaChange(change_id, tenant, Millislices(nominal), author, reason, at_s)


def reservations_of(cluster: str) -> Select[Any]:
    """Open reservations, for ``reservation``."""
    count = select(func.count()).where(transfers.c.run_id == runs.c.id).scalar_subquery()
    reserved = open_reservations.c.reserved_millislice_s
    return (
        select(*_RUN_COLUMNS, reserved, count)
        .join(open_reservations, open_reservations.c.run_id == runs.c.id)
        .where(runs.c.cluster == cluster)
        .order_by(*RUN_KEY)
    )


def reservation(row: Any) -> Reservation:
    """A row of ``reservations_of``."""
    *columns, reserved, count = row
    run = _run(columns)
    return Reservation(
        run.key,
        run.tenant,
        run.user,
        run.task,
        run.gres,
        run.cost_millislices,
        MillisliceSeconds(reserved),
        count,
    )


def statement_of(cluster: str, tenant: str | None, since_s: int) -> Select[Any]:
    """Runs with what is posted, their end, what is reserved: for ``statement_row``."""
    amount, until_s = transfers.c.amount_millislice_s, transfers.c.until_s
    posted = func.sum(amount).filter(transfers.c.kind == TransferKind.POST.value)
    end_s = func.max(until_s).filter(transfers.c.kind.in_(_SETTLING))
    booked = (
        select(transfers.c.run_id, func.coalesce(posted, 0).label("posted"), end_s.label("end_s"))
        .group_by(transfers.c.run_id)
        .subquery()
    )
    query = (
        select(
            *_RUN_COLUMNS,
            booked.c.posted,
            booked.c.end_s,
            func.coalesce(open_reservations.c.reserved_millislice_s, 0),
        )
        .join(booked, booked.c.run_id == runs.c.id)
        .outerjoin(open_reservations, open_reservations.c.run_id == runs.c.id)
        .where(runs.c.cluster == cluster)
        .where(func.coalesce(booked.c.end_s, literal(since_s)) >= since_s)
        .order_by(runs.c.tenant, runs.c.start_s, runs.c.job_id)
    )
    return query if tenant is None else query.where(runs.c.tenant == tenant)


def statement_row(row: Any, now_s: int) -> StatementRow:
    """A row of ``statement_of``; one that still runs is counted up to ``now_s``."""
    *columns, posted, end_s, reserved = row
    run = _run(columns)
    if reserved:
        return open_row(run, MillisliceSeconds(reserved), now_s)
    return StatementRow(run, end_s, MillisliceSeconds(int(posted)), MillisliceSeconds(0))


def _run(columns: Any) -> Run:
    cluster, job_id, start_s, tenant, user, task, gres, cost = columns
    return Run(RunKey(cluster, job_id, start_s), tenant, user, task, gres, Millislices(cost))


def run_values(run: Run) -> Mapping[str, object]:
    """A run as a row of ``runs``."""
    return {
        "cluster": run.key.cluster,
        "job_id": run.key.job_id,
        "start_s": run.key.start_s,
        "tenant": run.tenant,
        "user_name": run.user,
        "task": run.task,
        "gres": dict(run.gres),
        "cost_millislices": run.cost_millislices,
    }


def key_values(key: RunKey) -> tuple[str, int, int]:
    """In the order of ``RUN_KEY``."""
    return key.cluster, key.job_id, key.start_s


IMBALANCE = """
WITH entries AS (
    SELECT t.run_id, a.cluster, a.tenant, a.kind, e.amount
      FROM slicewise.transfers t
     CROSS JOIN LATERAL (VALUES (t.debit_account_id, -t.amount_millislice_s::numeric),
                                (t.credit_account_id, t.amount_millislice_s::numeric)
                        ) AS e (account_id, amount)
      LEFT JOIN slicewise.accounts a ON a.id = e.account_id
), open AS (
    SELECT r.id AS run_id, r.cluster, r.tenant, o.reserved_millislice_s AS amount
      FROM slicewise.open_reservations o JOIN slicewise.runs r ON r.id = o.run_id
), differences AS (
    SELECT abs(sum(amount)) AS amount FROM entries GROUP BY run_id
    UNION ALL
    SELECT abs(sum(amount)) FROM entries
    UNION ALL
    SELECT abs(coalesce(e.amount, 0) - coalesce(o.amount, 0))
      FROM (SELECT run_id, sum(amount) AS amount FROM entries WHERE kind = 'reserved' GROUP BY 1) e
      FULL JOIN open o USING (run_id)
    UNION ALL
    SELECT abs(coalesce(e.amount, 0) - coalesce(o.amount, 0))
      FROM (SELECT cluster, tenant, sum(amount) AS amount
              FROM entries WHERE kind = 'reserved' GROUP BY 1, 2) e
      FULL JOIN (SELECT cluster, tenant, sum(amount) AS amount FROM open GROUP BY 1, 2) o
     USING (cluster, tenant)
)
SELECT coalesce(sum(amount), 0) FROM differences
"""
