"""Converts rows of windows to values, and values to rows."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import BigInteger, Select, cast, extract, func, or_, select

from slicewise.slurm_plugin.ledger.policy_rows import recorded_s
from slicewise.slurm_plugin.ledger.rebalance_tables import quota_window_ends, quota_windows
from slicewise.slurm_plugin.rules.quota.calendar import Window, WindowKind, WindowRecord

NOW_S = cast(func.floor(extract("epoch", func.now())), BigInteger)
"""The start of the transaction, in whole Unix seconds."""


def windows_of(cluster: str) -> Select[Any]:
    """Select windows that are neither removed nor over, the oldest first, for ``window``."""
    of = quota_windows.c
    return (
        select(quota_windows)
        .where(of.cluster == cluster, or_(of.last_s.is_(None), of.last_s > NOW_S))
        .where(of.id.not_in(select(quota_window_ends.c.window_id)))
        .order_by(of.id)
    )


def window(row: Any) -> Window:
    """The window of a row of ``windows_of``."""
    return Window(
        window_id=row.id,
        tenant=row.tenant,
        kind=WindowKind(row.kind),
        amount_millislices=row.amount_millislices,
        days=frozenset(row.days),
        begin_min=row.begin_min,
        end_min=row.end_min,
        first_s=row.first_s,
        last_s=row.last_s,
        reason=row.reason,
    )


def window_values(window: Window) -> Mapping[str, object]:
    """A window as columns of ``quota_windows``, without author and reason."""
    return {
        "tenant": window.tenant,
        "kind": window.kind,
        "amount_millislices": window.amount_millislices,
        "days": sorted(window.days),
        "begin_min": window.begin_min,
        "end_min": window.end_min,
        "first_s": window.first_s,
        "last_s": window.last_s,
    }


def window_records_of(cluster: str) -> Select[Any]:
    """Select every window with its end, the newest first, for ``window_record``."""
    of, end = quota_windows.c, quota_window_ends.c
    return (
        select(
            quota_windows,
            recorded_s(of.recorded_at).label("set_s"),
            end.author.label("ended_by"),
            recorded_s(end.recorded_at).label("ended_s"),
            end.reason.label("ended_why"),
        )
        .outerjoin(quota_window_ends, end.window_id == of.id)
        .where(of.cluster == cluster)
        .order_by(of.id.desc())
    )


def window_record(row: Any) -> WindowRecord:
    """The window's record of a row of ``window_records_of``."""
    return WindowRecord(
        window=window(row),
        author=row.author,
        set_s=row.set_s,
        ended_by=row.ended_by or "",
        ended_s=row.ended_s,
        ended_why=row.ended_why or "",
    )
