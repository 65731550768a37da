"""Keeps windows of the calendar: which quota holds when, and who set it."""

from collections.abc import Iterable
from dataclasses import replace

from sqlalchemy import Connection
from sqlalchemy.dialects.postgresql import insert

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.runtime.database import reading, writing
from slicewise.slurm_plugin.ledger import reads
from slicewise.slurm_plugin.ledger import window_rows as rows
from slicewise.slurm_plugin.ledger.base import LedgerPart
from slicewise.slurm_plugin.ledger.rebalance_tables import quota_window_ends, quota_windows
from slicewise.slurm_plugin.rules.quota.calendar import Window, WindowRecord, check_window, rivals
from slicewise.slurm_plugin.rules.quota.calendar_times import moments
from slicewise.slurm_plugin.rules.quota.tenants import check_words


class Windows(LedgerPart):
    """Windows. A process that changes windows waits for one that changes quotas."""

    def not_over(self) -> tuple[Window, ...]:
        """Windows that hold now or later, in the order in which they were set."""
        with reading(self._engine) as connection:
            return reads.windows(connection, self._cluster)

    def add(self, window: Window, author: str, reason: str, zone: str) -> Window:
        """Add a window; return it with its id.

        The newest one of its kind for the tenant, added again with the same reason, is it.

        Raises InvalidInputError: SW-VALUE, also if it is over already, and what
        ``calendar.check_window`` raises.
        """
        check_words(author, reason)
        with writing(self._engine) as connection:
            reads.lock_policy(connection, self._cluster)
            policy = reads.policy(connection, self._cluster)
            windows = reads.windows(connection, self._cluster)
            newest = _newest_of_kind(windows, window)
            if newest and replace(newest, window_id=0) == replace(window, reason=reason):
                return newest
            beside = rivals(policy, windows, window)
            now_s = reads.now_s(connection)
            if window.last_s is not None and window.last_s <= now_s:
                raise _over(window)
            check_window(policy, beside, window, moments((*beside, window), now_s, zone))
            said = {"cluster": self._cluster, "author": author, "reason": reason}
            values = {**said, **rows.window_values(window)}
            added = insert(quota_windows).values(values).returning(quota_windows.c.id)
            window_id = connection.execute(added).scalar_one()
        return replace(window, window_id=window_id, reason=reason)

    def end(self, window_id: int, author: str, reason: str) -> Window:
        """Remove a window; raises InvalidInputError (SW-VALUE, SW-NAME-UNKNOWN)."""
        check_words(author, reason)
        with writing(self._engine) as connection:
            reads.lock_policy(connection, self._cluster)
            known = reads.windows(connection, self._cluster)
            windows = [window for window in known if window.window_id == window_id]
            if not windows:
                raise InvalidInputError(
                    Code.NAME_UNKNOWN,
                    f"There is no window {window_id}, or it is over.",
                    "List them: slicewise tenant-quota calendar list",
                )
            _end(connection, windows, author, reason)
            return windows[0]

    def history(self) -> tuple[WindowRecord, ...]:
        """Every window that ever existed, the newest first, with who set and removed it."""
        with reading(self._engine) as connection:
            result = connection.execute(rows.window_records_of(self._cluster))
            return tuple(rows.window_record(row) for row in result)


def _newest_of_kind(windows: Iterable[Window], window: Window) -> Window | None:
    of_kind = [
        other for other in windows if (other.tenant, other.kind) == (window.tenant, window.kind)
    ]
    return of_kind[-1] if of_kind else None


def end_of(connection: Connection, cluster: str, tenant: str, author: str, reason: str) -> None:
    """Within a transaction: remove every window of a tenant."""
    mine = [window for window in reads.windows(connection, cluster) if window.tenant == tenant]
    _end(connection, mine, author, reason)


def _end(connection: Connection, found: Iterable[Window], author: str, reason: str) -> None:
    values = [
        {"window_id": window.window_id, "author": author, "reason": reason} for window in found
    ]
    if values:
        connection.execute(insert(quota_window_ends), values)


def _over(window: Window) -> InvalidInputError:
    return InvalidInputError(
        Code.VALUE,
        f"The window for {window.tenant or 'all together'} would be over already.",
        "Give a --last in the future.",
    )
