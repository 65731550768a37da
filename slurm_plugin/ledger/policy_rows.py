"""Converts rows of the policy's tables to values, and values to rows."""

from collections.abc import Mapping
from typing import Any, Literal

from sqlalchemy import BigInteger, ColumnElement, Select, cast, extract, func, or_, select, true

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.meters import SLICES, TOKENS
from slicewise.cluster.language.periods import Period
from slicewise.slurm_plugin.ledger.rebalance_tables import recalls
from slicewise.slurm_plugin.ledger.tables import (
    BUDGET_COLUMNS,
    known_limits,
    loan_changes,
    loans,
    policy,
    quota_changes,
)
from slicewise.slurm_plugin.rules.quota.attributes import ATTRIBUTES
from slicewise.slurm_plugin.rules.quota.types import (
    Budget,
    KnownLimit,
    LimitKey,
    Loan,
    LoanChange,
    LoanTerm,
    Quota,
    QuotaChange,
    Recall,
    Tenant,
    TenantUpdate,
)

_OFF = "off"


def recorded_s(column: ColumnElement[Any]) -> ColumnElement[int]:
    """The time at which a row was recorded, in whole Unix seconds."""
    return cast(func.floor(extract("epoch", column)), BigInteger)


def policy_of(cluster: str) -> Select[Any]:
    """Select every tenant, for ``tenant``."""
    return select(policy).where(policy.c.cluster == cluster)


def tenant(row: Any) -> Tenant:
    """The tenant of a row of ``policy_of``."""
    quota = Quota(**_quota_values(row))
    budgets = (_budget(row, SLICES.name), _budget(row, TOKENS.name))
    return Tenant(row.tenant, row.parent, quota, *budgets)


def _quota_values(row: Any) -> dict[str, Any]:
    return {attribute.field: getattr(row, attribute.field) for attribute in ATTRIBUTES}


def _budget(row: Any, meter: str) -> Budget | None:
    period, amount, carry_over, overdraft = (getattr(row, name) for name in BUDGET_COLUMNS[meter])
    if period in {None, _OFF}:
        return None
    return Budget(_period(period), amount, carry_over, overdraft, meter)


def _budget_change(row: Any, meter: str) -> Budget | Literal["off"] | None:
    is_off = getattr(row, BUDGET_COLUMNS[meter][0]) == _OFF
    return "off" if is_off else _budget(row, meter)


def _period(text: str) -> Period:
    """Read a period; InvalidInputError (SW-DATABASE-NEW) for one of a newer version."""
    try:
        return Period(text)
    except ValueError:
        raise InvalidInputError(
            Code.DATABASE_NEW,
            f"The ledger has a budget of period {text!r}, which this version does not know.",
            "This program is older than the ledger: upgrade it.",
        ) from None


def changes_of(cluster: str, name: str) -> Select[Any]:
    """Select a tenant's changes, the newest first, for ``quota_change``."""
    of = quota_changes.c
    return (
        select(quota_changes, recorded_s(of.recorded_at).label("at_s"))
        .where(of.cluster == cluster, of.tenant == name)
        .order_by(of.id.desc())
    )


def quota_change(row: Any) -> QuotaChange:
    """The change of a row of ``changes_of``."""
    update = TenantUpdate(
        row.tenant,
        row.parent,
        row.removed,
        **_quota_values(row),
        budget=_budget_change(row, SLICES.name),
        token_budget=_budget_change(row, TOKENS.name),
    )
    return QuotaChange(row.id, update, row.author, row.reason, row.at_s)


def change_values(update: TenantUpdate) -> Mapping[str, object]:
    """An update as columns of ``quota_changes``."""
    return {
        "tenant": update.tenant,
        "parent": update.parent,
        "removed": update.removed,
        **{
            name: dict(value) if isinstance(value, Mapping) else value
            for name, value in _quota_values(update).items()
        },
        **{
            name: value
            for meter in BUDGET_COLUMNS
            for name, value in _budget_values(update, meter).items()
        },
    }


def _budget_values(update: TenantUpdate, meter: str) -> Mapping[str, object]:
    budget, columns = update.budget_on(meter), BUDGET_COLUMNS[meter]
    if not isinstance(budget, Budget):
        return {columns[0]: budget}
    values = (budget.period.value, budget.amount, budget.carry_over, budget.overdraft)
    return dict(zip(columns, values, strict=True))


def loans_of(cluster: str) -> Select[Any]:
    """Select every loan in the order of its tenants' names, for ``loan``."""
    return (
        select(loans).where(loans.c.cluster == cluster).order_by(loans.c.lender, loans.c.borrower)
    )


def loan(row: Any) -> Loan:
    """The loan of a row of ``loans_of``."""
    return Loan(row.lender, row.borrower, row.amount_millislices)


def loan_changes_of(cluster: str, name: str, most: int, before: int | None) -> Select[Any]:
    """Select changes of what a tenant lent and borrowed, the newest first, for ``loan_change``.

    At most ``most`` of them, of those with an id below ``before``.
    """
    of = loan_changes.c
    return (
        select(loan_changes, recorded_s(of.recorded_at).label("at_s"))
        .where(of.cluster == cluster, or_(of.lender == name, of.borrower == name))
        .where(true() if before is None else of.id < before)
        .order_by(of.id.desc())
        .limit(most)
    )


def loan_change(row: Any) -> LoanChange:
    """The change of a row of ``loan_changes_of``."""
    return LoanChange(row.id, loan(row), row.reason, row.at_s)


def loan_terms_of(cluster: str) -> Select[Any]:
    """Select every loan with the seconds at which it began and last grew, in the order of
    ``loans_of``, for ``loan_term``.
    """
    of, now = loan_changes.c, loans.c
    same = (of.cluster == now.cluster, of.lender == now.lender, of.borrower == now.borrower)
    over = (
        select(of.id)
        .where(*same, of.amount_millislices == 0)
        .order_by(of.id.desc())
        .limit(1)
        .scalar_subquery()
        .correlate(loans)
    )
    before = func.lag(of.amount_millislices, 1, 0).over(order_by=of.id)
    since = (
        select(of.recorded_at, (of.amount_millislices > before).label("grew"))
        .where(*same, of.id > func.coalesce(over, 0))
        .correlate(loans)
        .subquery()
    )
    seconds = select(
        recorded_s(func.min(since.c.recorded_at)).label("since_s"),
        recorded_s(func.max(since.c.recorded_at).filter(since.c.grew)).label("grown_s"),
    ).lateral()
    return (
        select(loans, seconds.c.since_s, seconds.c.grown_s)
        .join(seconds, true())
        .where(now.cluster == cluster)
        .order_by(now.lender, now.borrower)
    )


def loan_term(row: Any) -> LoanTerm:
    """The loan and its times of a row of ``loan_terms_of``."""
    return LoanTerm(loan(row), row.since_s, row.grown_s)


def recalls_of(cluster: str) -> Select[Any]:
    """Select every recall in the order of its tenants' names and time, for ``recall``."""
    of = recalls.c
    order = (of.lender, of.borrower, of.called_s)
    return select(recalls).where(of.cluster == cluster).order_by(*order)


def recall(row: Any) -> Recall:
    """The recall of a row of ``recalls_of``."""
    return Recall(row.lender, row.borrower, row.amount_millislices, row.called_s)


def recall_values(lender: str, borrower: str, called_s: int, amount: int) -> Mapping[str, object]:
    """A recall as columns of ``recalls``."""
    return {
        "lender": lender,
        "borrower": borrower,
        "called_s": called_s,
        "amount_millislices": amount,
    }


def known_limits_of(cluster: str) -> Select[Any]:
    """Select every limit that is remembered, for ``known_limit``."""
    return select(known_limits).where(known_limits.c.cluster == cluster)


def known_limit(row: Any) -> tuple[LimitKey, KnownLimit]:
    """The key and values of a row of ``known_limits_of``."""
    return LimitKey(row.entity, row.name, row.field), KnownLimit(row.before, row.last)


def known_limit_values(key: LimitKey, known: KnownLimit) -> Mapping[str, str]:
    """A remembered limit as columns of ``known_limits``."""
    return {
        "entity": key.entity,
        "name": key.name,
        "field": key.field,
        "before": known.before,
        "last": known.last,
    }
