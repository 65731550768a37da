"""Queries of the ledger's charges and budgets, and conversion of their rows to values."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    Subquery,
    case,
    cast,
    func,
    or_,
    select,
    true,
    tuple_,
)

from slicewise.cluster.language.meters import SLICES
from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.slurm_plugin.ledger.policy_rows import recorded_s
from slicewise.slurm_plugin.ledger.tables import (
    BUDGET_COLUMNS,
    accounts,
    balances,
    budget_entries,
    open_reservations,
    quota_changes,
    runs,
    service_generations,
    share_entries,
    transfers,
)
from slicewise.slurm_plugin.rules.accounting.statement import open_row
from slicewise.slurm_plugin.rules.accounting.types import (
    Account,
    Balance,
    BudgetEntry,
    Reservation,
    Run,
    RunKey,
    StatementRow,
    TransferKind,
)

_PAYER = func.coalesce(runs.c.payer, runs.c.tenant)
_RUN_COLUMNS = (
    runs.c.cluster,
    runs.c.job_id,
    runs.c.start_s,
    runs.c.tenant,
    runs.c.user_name,
    runs.c.task,
    runs.c.gres,
    runs.c.cost_millislices,
    _PAYER,
)
_OPEN_COLUMNS = (
    open_reservations.c.reserved,
    open_reservations.c.posted,
)


def _slices_of(cluster: str) -> tuple[ColumnElement[bool], ...]:
    return runs.c.cluster == cluster, runs.c.meter == SLICES.name


def reservations_of(cluster: str) -> Select[Any]:
    """Select open reservations, for ``reservation``."""
    count = select(func.count()).where(transfers.c.run_id == runs.c.id).scalar_subquery()
    return (
        select(*_RUN_COLUMNS, *_OPEN_COLUMNS, count)
        .join(open_reservations, open_reservations.c.run_id == runs.c.id)
        .where(*_slices_of(cluster))
        .order_by(runs.c.job_id, runs.c.start_s)
    )


def reservation(row: Any) -> Reservation:
    """The reservation of a row of ``reservations_of``."""
    *columns, reserved, posted, count = row
    return Reservation(
        *_run_fields(columns), MillisliceSeconds(reserved), MillisliceSeconds(posted), count
    )


def statement_of(cluster: str, tenant: str | None, since_s: int) -> Select[Any]:
    """Select runs with their open reservations and booked amounts, for ``statement_row``.

    Of a tenant, those of its account and those that it pays for; None: all.
    """
    query = _statement(cluster, since_s)
    return query if tenant is None else query.where(_concerns(tenant))


def _concerns(tenant: str) -> ColumnElement[bool]:
    """Return whether a run is one of the tenant's account, or the tenant pays for it."""
    return or_(runs.c.tenant == tenant, _PAYER.in_((tenant,)))


def open_paid_by(cluster: str, payer: str) -> Select[Any]:
    """Select the same of the open runs that one tenant pays for, its own or of tenants below it."""
    return _statement(cluster, None).where(_PAYER.in_((payer,)))


def settled_use_paid_by(cluster: str, payer: str, since_s: int) -> Select[Any]:
    """Select the sum of what the settled runs that one tenant pays for have used since then.

    It is what ``used_since`` sums over their rows.
    """
    booked = (
        select(_sum(TransferKind.POST) - _sum(TransferKind.REVERSE), func.max(transfers.c.until_s))
        .where(transfers.c.run_id == runs.c.id)
        .lateral("booked")
    )
    used, until_s = booked.c
    before = runs.c.cost_millislices * func.greatest(0, since_s - runs.c.start_s)
    settled = open_reservations.c.run_id.is_(None)
    amount = func.sum(func.greatest(0, used - before))
    return (
        select(cast(func.coalesce(amount, 0), BigInteger))
        .select_from(runs)
        .join(booked, true())
        .outerjoin(open_reservations, open_reservations.c.run_id == runs.c.id)
        .where(*_slices_of(cluster), _PAYER.in_((payer,)), settled, until_s >= since_s)
        .where(runs.c.id.in_(_used_since(since_s)))
    )


def statement_page_of(
    cluster: str,
    tenant: str | None,
    since_s: int,
    after: tuple[str, int, int] | None,
    until_s: int | None,
    *,
    accounts: Collection[str] | None,
) -> Select[Any]:
    """Select the same of runs of these accounts (None: all), after the run with that account,
    start, job, of runs that began before ``until_s`` (None: whenever).
    """
    query = statement_of(cluster, tenant, since_s)
    if until_s is not None:
        query = query.where(runs.c.start_s < until_s)
    if accounts is not None:
        query = query.where(runs.c.tenant.in_(accounts))
    if after is not None:
        query = query.where(tuple_(*_STATEMENT_ORDER) > tuple_(*after))
    return query


_STATEMENT_ORDER = (runs.c.tenant, runs.c.start_s, runs.c.job_id)


def _used_since(since_s: int) -> Select[Any]:
    """Select the runs that used something since then, and some whose use was taken back: an index
    finds them, and not the years before. The reserve's end is the job's limit.
    """
    is_reserve = transfers.c.kind == TransferKind.RESERVE.value
    return select(transfers.c.run_id).where(transfers.c.until_s >= since_s, ~is_reserve)


def _statement(cluster: str, since_s: int | None) -> Select[Any]:
    """Select open runs, and those that ended since then (None: only open ones)."""
    of_run = transfers.c.run_id == runs.c.id
    booked = (
        select(
            _sum(TransferKind.POST) - _sum(TransferKind.REVERSE),
            _sum(TransferKind.WAIVE),
            func.count(),
        )
        .where(of_run)
        .lateral("booked")
    )
    newest = select(transfers.c.until_s).where(of_run).order_by(transfers.c.number.desc())
    last = newest.limit(1).lateral("last")
    open_runs, is_open = select(open_reservations.c.run_id), open_reservations.c.run_id.is_not(None)
    wanted = (
        (is_open,)
        if since_s is None
        else (
            or_(is_open, last.c.until_s >= since_s),
            runs.c.id.in_(_used_since(since_s).union(open_runs)),
        )
    )
    return (
        select(*_RUN_COLUMNS, *_OPEN_COLUMNS, *booked.c, last.c.until_s, _service())
        .select_from(runs)
        .join(booked, true())
        .join(last, true())
        .outerjoin(open_reservations, open_reservations.c.run_id == runs.c.id)
        .where(*_slices_of(cluster), *wanted)
        .order_by(*_STATEMENT_ORDER)
    )


def _service() -> ColumnElement[str]:
    """Return the service of which a run is a replica; "" if it is none.

    A run's task begins with the number of its array. Of several generations whose arrays had that
    number the newest counts. What is recorded after a run was charged names it all the same.
    """
    of = service_generations.c
    array = cast(func.substring(runs.c.task, "^[0-9]{1,18}"), BigInteger)
    found = (
        select(of.name)
        .where(
            of.cluster == runs.c.cluster,
            of.array_job_id == array,
            of.tenant == runs.c.tenant,
        )
        .order_by(of.id.desc())
        .limit(1)
    )
    return func.coalesce(found.scalar_subquery(), "")


def _sum(kind: TransferKind) -> ColumnElement[int]:
    amount = func.sum(transfers.c.amount).filter(transfers.c.kind == kind.value)
    return cast(func.coalesce(amount, 0), BigInteger)


def statement_row(row: Any, now_s: int) -> StatementRow:
    """The statement's row of a row of ``statement_of``; a running job counts up to ``now_s``."""
    *columns, reserved, posted, used, waived, count, until_s, service = row
    if reserved is not None:
        found = open_row(reservation((*columns, reserved, posted, count)), now_s)
        return replace(found, service=service)
    return StatementRow(
        Run(*_run_fields(columns)),
        until_s,
        MillisliceSeconds(used),
        MillisliceSeconds(waived),
        MillisliceSeconds(0),
        service,
    )


def _run_fields(columns: Any) -> tuple[RunKey, str, str, str, Mapping[str, int], Millislices, str]:
    cluster, job_id, start_s, tenant, user, task, gres, cost, payer = columns
    return RunKey(cluster, job_id, start_s), tenant, user, task, gres, Millislices(cost), payer


_BALANCED = (
    Account.GRANTED,
    Account.AVAILABLE,
    Account.RESERVED,
    Account.USED,
    Account.WAIVED,
)
"""Kinds of accounts, in the order of the fields of ``Balance``."""


def balances_of(cluster: str, meter: str) -> Select[Any]:
    """Select balances (credits less debits) by tenant, for ``balance``."""
    amount = balances.c.credits - balances.c.debits
    sums = (func.sum(amount).filter(accounts.c.kind == kind.value) for kind in _BALANCED)
    return (
        select(accounts.c.tenant, *(func.coalesce(each, 0) for each in sums))
        .join(balances, balances.c.account_id == accounts.c.id)
        .where(accounts.c.cluster == cluster, accounts.c.meter == meter)
        .group_by(accounts.c.tenant)
        .order_by(accounts.c.tenant)
    )


def balance(row: Any) -> Balance:
    """The balance of a row of ``balances_of``."""
    tenant, granted, *others = row
    return Balance(tenant, -int(granted), *map(int, others))


def rollovers_of(cluster: str, meter: str) -> Select[Any]:
    """Select the start of the period of each tenant's last rollover."""
    rolls = budget_entries.c.meter == meter, budget_entries.c.kind == "roll"
    return (
        select(budget_entries.c.tenant, func.max(budget_entries.c.period_start_s))
        .where(budget_entries.c.cluster == cluster, *rolls)
        .group_by(budget_entries.c.tenant)
    )


def renewed_of(cluster: str, meter: str) -> Select[Any]:
    """Select tenants with a budget on a meter that ended after its last rollover, and the time at
    which it was first set again.
    """
    ended, again = _ended_of(cluster, meter), quota_changes.c
    return (
        select(again.tenant, recorded_s(func.min(again.recorded_at)))
        .join(ended, ended.c.tenant == again.tenant)
        .where(again.cluster == cluster, again.id > ended.c.id, _period_on(meter) != "off")
        .group_by(again.tenant)
    )


def _period_on(meter: str) -> ColumnElement[str]:
    return quota_changes.c[BUDGET_COLUMNS[meter][0]]


def _ended_of(cluster: str, meter: str) -> Subquery:
    """Select, for each tenant, the change that removed its budget, or the tenant, after its last
    roll.
    """
    rolled, changes = budget_entries.c, quota_changes.c
    last = (
        select(rolled.tenant, func.max(rolled.recorded_at).label("recorded_at"))
        .where(rolled.cluster == cluster, rolled.kind == "roll", rolled.meter == meter)
        .group_by(rolled.tenant)
        .subquery()
    )
    return (
        select(changes.tenant, func.max(changes.id).label("id"))
        .join(last, last.c.tenant == changes.tenant)
        .where(changes.cluster == cluster, changes.recorded_at > last.c.recorded_at)
        .where(or_(_period_on(meter) == "off", changes.removed))
        .group_by(changes.tenant)
        .subquery()
    )


def entries_of(cluster: str, meter: str, tenant: str | None, since_s: int) -> Select[Any]:
    """Select budget entries on a meter, the oldest first, for ``budget_entry``."""
    at_s = recorded_s(budget_entries.c.recorded_at)
    query = (
        select(
            budget_entries.c.tenant,
            budget_entries.c.kind,
            budget_entries.c.amount,
            budget_entries.c.period_start_s,
            budget_entries.c.author,
            budget_entries.c.reason,
            at_s,
            budget_entries.c.key,
            budget_entries.c.meter,
        )
        .where(budget_entries.c.cluster == cluster, budget_entries.c.meter == meter)
        .where(at_s >= since_s)
        .order_by(budget_entries.c.id)
    )
    return query if tenant is None else query.where(budget_entries.c.tenant == tenant)


def entry_of(cluster: str, key: str) -> Select[Any]:
    """Select tenant, kind, amount and meter of the entry with that key."""
    of = budget_entries.c
    return select(of.tenant, of.kind, of.amount, of.meter).where(
        of.cluster == cluster, of.key == key
    )


def budget_entry(row: Any) -> BudgetEntry:
    """The budget entry of a row of ``entries_of``."""
    return BudgetEntry(*row)


def export_of(cluster: str, since_s: int, after_id: int, until_id: int) -> Select[Any]:
    """Select transfers recorded at ``since_s`` or later, in the order of their ids.

    Only those with an id above ``after_id``, up to ``until_id``.
    """
    debit, credit = accounts.alias("debit"), accounts.alias("credit")
    at_s = recorded_s(transfers.c.recorded_at)
    kind, share = transfers.c.kind, share_entries.c
    booked_for = func.coalesce(runs.c.tenant, budget_entries.c.tenant)
    # A share's accounts are of one party: who is charged, or who is relieved.
    tenant, payer = (
        case((kind == "share", shared[0]), (kind == "relieve", shared[1]), else_=of_run)
        for shared, of_run in (
            ((credit.c.tenant, debit.c.tenant), booked_for),
            ((debit.c.tenant, credit.c.tenant), func.coalesce(runs.c.payer, booked_for)),
        )
    )
    return (
        select(
            transfers.c.id,
            debit.c.cluster,
            tenant.label("tenant"),
            payer.label("payer"),
            runs.c.job_id,
            runs.c.task,
            runs.c.start_s,
            transfers.c.kind,
            debit.c.kind.label("debit"),
            credit.c.kind.label("credit"),
            debit.c.meter,
            transfers.c.amount,
            transfers.c.until_s,
            budget_entries.c.author,
            budget_entries.c.reason,
            at_s.label("recorded_s"),
        )
        .join(debit, debit.c.id == transfers.c.debit_account_id)
        .join(credit, credit.c.id == transfers.c.credit_account_id)
        .outerjoin(share_entries, share.id == transfers.c.share_entry_id)
        .outerjoin(runs, runs.c.id == func.coalesce(transfers.c.run_id, share.run_id))
        .outerjoin(budget_entries, budget_entries.c.id == transfers.c.budget_entry_id)
        .where(
            debit.c.cluster == cluster,
            at_s >= since_s,
            transfers.c.id > after_id,
            transfers.c.id <= until_id,
        )
        .order_by(transfers.c.id)
    )
