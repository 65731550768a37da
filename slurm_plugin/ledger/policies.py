"""Policy: tenants, their quotas and budgets' rules, loans, what is known of Slurm's limits."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from sqlalchemy import Connection, delete, func, or_, select
from sqlalchemy.dialects.postgresql import insert

from cluster.database import reading, writing
from cluster.leader_lock import LeaderLock
from cluster.units import Millislices
from slurm_plugin.decide.calendar import Window, loosely_within
from slurm_plugin.decide.lending import called_back
from slurm_plugin.decide.policy import (
    KnownLimit,
    LimitKey,
    Loan,
    LoanChange,
    LoanTerm,
    Policy,
    QuotaChange,
    Recall,
    TenantUpdate,
)
from slurm_plugin.decide.tenants import changed_together, check_words
from slurm_plugin.ledger import policy_rows as rows
from slurm_plugin.ledger import window_rows
from slurm_plugin.ledger.part import LedgerPart
from slurm_plugin.ledger.rebalance_tables import quota_window_ends, recalls
from slurm_plugin.ledger.tables import (
    compilations,
    known_limits,
    loan_changes,
    quota_changes,
)

QUOTA_CHANNEL = "slicewise_quota"
"""NOTIFY carries the id of a quota change on it."""

_AUTHOR = "slicewise"


class Policies(LedgerPart):
    """What tenants may hold. Whoever changes it waits for others who do; each decides anew."""

    def policy(self) -> Policy:
        """Every tenant by name."""
        with reading(self._engine) as connection:
            return self._policy(connection)

    def change(self, update: TenantUpdate, author: str, reason: str) -> QuotaChange:
        """Append a change, cut loans to what it leaves, notify who listens on ``slicewise_quota``.

        What loans lose is recalled. Raises InvalidInputError: SW-TEXT and what ``tenants.changed``
        raises.
        """
        with writing(self._engine) as connection:
            return self._change(connection, update, author, reason)

    def _change(
        self, connection: Connection, update: TenantUpdate, author: str, reason: str
    ) -> QuotaChange:
        return self._change_together(connection, (update,), author, reason)[0]

    def _change_together(
        self, connection: Connection, updates: Sequence[TenantUpdate], author: str, reason: str
    ) -> tuple[QuotaChange, ...]:
        check_words(author, reason)
        self._lock(connection)
        after, refused = changed_together(self._policy(connection), updates)
        for error in refused.values():
            raise error
        changes = tuple(
            self._recorded(connection, update, after, author, reason) for update in updates
        )
        current = self._loans(connection)
        allowed = loosely_within(after, self._windows(connection), current)
        self._append_loans(connection, current, allowed, _why(changes[-1]))
        if lost := tuple(called_back(current, allowed, self._now_s(connection))):
            self._replace_recalls(connection, after, (*self._recalls(connection), *lost))
        newest = str(changes[-1].change_id)
        connection.execute(select(func.pg_notify(QUOTA_CHANNEL, newest)))
        return changes

    def _recorded(
        self, connection: Connection, update: TenantUpdate, after: Policy, author: str, reason: str
    ) -> QuotaChange:
        written = _written(update, after)
        change_id, at_s = self._append(connection, written, author, reason)
        change = QuotaChange(change_id, written, author, reason, at_s)
        if update.removed:
            self._forget(connection, update.tenant, author, _why(change))
        return change

    def history(self, tenant: str) -> tuple[QuotaChange, ...]:
        """Every change of the tenant, the newest first."""
        changes = rows.changes_of(self._cluster, tenant)
        with reading(self._engine) as connection:
            return tuple(rows.quota_change(row) for row in connection.execute(changes))

    def change_id(self) -> int:
        """The newest change's id, 0 if there is none; read it before ``policy``."""
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

    def compile_lock(self) -> LeaderLock:
        """The lock of the one process that changes Slurm's limits."""
        return LeaderLock(self._engine, "slicewise compile", self._cluster, "")

    def compiled(self, change_id: int) -> bool:
        """Whether Slurm's limits contain that change."""
        mark = select(compilations.c.change_id).where(compilations.c.cluster == self._cluster)
        with reading(self._engine) as connection:
            return (connection.execute(mark).scalar_one_or_none() or 0) >= change_id

    def loans(self) -> tuple[Loan, ...]:
        """Every loan, in the order of lenders' and borrowers' names."""
        with reading(self._engine) as connection:
            return self._loans(connection)

    def set_loans(
        self, loans: Sequence[Loan], reason: str, recalls: Sequence[Recall] | None = None
    ) -> None:
        """Make these all the loans there are, and these all the recalls; None leaves those.

        Loans that are no longer within limits are cut to them, at whatever hour of the calendar,
        and what they lose joins the recalls. Those of and to who is no tenant are left out. Raises
        InvalidInputError (SW-TEXT).
        """
        check_words(_AUTHOR, reason)
        with writing(self._engine) as connection:
            self._lock(connection)
            policy = self._policy(connection)
            allowed = loosely_within(policy, self._windows(connection), loans)
            self._append_loans(connection, self._loans(connection), allowed, reason)
            if recalls is not None:
                lost = called_back(loans, allowed, self._now_s(connection))
                self._replace_recalls(connection, policy, (*recalls, *lost))

    def recalls(self) -> tuple[Recall, ...]:
        """What lenders take back, in the order of lenders', borrowers' names and time."""
        with reading(self._engine) as connection:
            return self._recalls(connection)

    def loan_terms(self) -> tuple[LoanTerm, ...]:
        """Every loan, and since when, in the order of ``loans``."""
        with reading(self._engine) as connection:
            found = connection.execute(rows.loan_terms_of(self._cluster))
            return tuple(rows.loan_term(row) for row in found)

    def loan_history(self, tenant: str) -> tuple[LoanChange, ...]:
        """What the tenant lent and borrowed, the newest first."""
        changes = rows.loan_changes_of(self._cluster, tenant)
        with reading(self._engine) as connection:
            return tuple(rows.loan_change(row) for row in connection.execute(changes))

    def known_limits(self) -> Mapping[LimitKey, KnownLimit]:
        """What is remembered of every setting in slurmdbd that was ever touched."""
        found = rows.known_limits_of(self._cluster)
        with reading(self._engine) as connection:
            return dict(rows.known_limit(row) for row in connection.execute(found))

    def know_limits(self, known: Mapping[LimitKey, KnownLimit]) -> None:
        """Remember these, in place of what was known of the same settings."""
        if not known:
            return
        values = [
            {"cluster": self._cluster, **rows.known_limit_values(key, known[key])}
            for key in sorted(known)
        ]
        added = insert(known_limits)
        added = added.on_conflict_do_update(
            constraint=known_limits.primary_key,
            set_={"before": added.excluded.before, "last": added.excluded.last},
        )
        with writing(self._engine) as connection:
            connection.execute(added, values)

    def forget_limits(self) -> None:
        """Forget them all, once everything is as it was before."""
        with writing(self._engine) as connection:
            connection.execute(delete(known_limits).where(known_limits.c.cluster == self._cluster))

    def _lock(self, connection: Connection) -> None:
        connection.execute(select(func.slicewise.lock_policy(self._cluster)))

    def _policy(self, connection: Connection) -> Policy:
        found = connection.execute(rows.policy_of(self._cluster))
        return {row.tenant: rows.tenant(row) for row in found}

    def _loans(self, connection: Connection) -> tuple[Loan, ...]:
        found = connection.execute(rows.loans_of(self._cluster))
        return tuple(rows.loan(row) for row in found)

    def _recalls(self, connection: Connection) -> tuple[Recall, ...]:
        found = connection.execute(rows.recalls_of(self._cluster))
        return tuple(rows.recall(row) for row in found)

    def _now_s(self, connection: Connection) -> int:
        return int(connection.execute(select(window_rows.NOW_S)).scalar_one())

    def _windows(self, connection: Connection) -> tuple[Window, ...]:
        found = connection.execute(window_rows.windows_of(self._cluster))
        return tuple(window_rows.window(row) for row in found)

    def _end_windows(
        self, connection: Connection, windows: Iterable[Window], author: str, reason: str
    ) -> None:
        values = [
            {"window_id": one.window_id, "author": author, "reason": reason} for one in windows
        ]
        if values:
            connection.execute(insert(quota_window_ends), values)

    def _forget(self, connection: Connection, tenant: str, author: str, reason: str) -> None:
        """Its windows and recalls: a tenant of its name may come again."""
        mine = [one for one in self._windows(connection) if one.tenant == tenant]
        self._end_windows(connection, mine, author, reason)
        of = recalls.c
        connection.execute(
            delete(recalls)
            .where(of.cluster == self._cluster)
            .where(or_(of.lender == tenant, of.borrower == tenant))
        )

    def _replace_recalls(
        self, connection: Connection, policy: Policy, now: Iterable[Recall]
    ) -> None:
        """Those between tenants; of the same two and the same second they are one."""
        amounts: Counter[tuple[str, str, int]] = Counter()
        for one in now:
            if {one.lender, one.borrower} <= policy.keys():
                amounts[one.lender, one.borrower, one.called_s] += one.amount_millislices
        connection.execute(delete(recalls).where(recalls.c.cluster == self._cluster))
        if amounts:
            values = [
                {"cluster": self._cluster, **rows.recall_values(*key, amount)}
                for key, amount in amounts.items()
            ]
            connection.execute(insert(recalls), values)

    def _append(
        self, connection: Connection, update: TenantUpdate, author: str, reason: str
    ) -> tuple[int, int]:
        """Returns the change's id and when it was recorded."""
        values = {
            "cluster": self._cluster,
            "author": author,
            "reason": reason,
            **rows.change_values(update),
        }
        at_s = rows.recorded_s(quota_changes.c.recorded_at)
        added = insert(quota_changes).values(values).returning(quota_changes.c.id, at_s)
        change_id, recorded_s = connection.execute(added).one()
        return change_id, recorded_s

    def _append_loans(
        self, connection: Connection, before: Sequence[Loan], after: Sequence[Loan], reason: str
    ) -> None:
        """Add what differs."""
        new = {(one.lender, one.borrower): one.amount_millislices for one in after}
        old = {(one.lender, one.borrower): one.amount_millislices for one in before}
        values = [
            {
                "cluster": self._cluster,
                "lender": lender,
                "borrower": borrower,
                "amount_millislices": new.get((lender, borrower), 0),
                "reason": reason,
            }
            for lender, borrower in sorted(new.keys() | old.keys())
            if new.get((lender, borrower)) != old.get((lender, borrower))
        ]
        if values:
            connection.execute(insert(loan_changes), values)


def _why(change: QuotaChange) -> str:
    return f"change {change.change_id}: {change.update.tenant}"


def _written(update: TenantUpdate, after: Policy) -> TenantUpdate:
    """With the nominal that it leads to: an older daemon reads no more than that.

    So it lets a removed tenant run nothing.
    """
    if update.tenant not in after:
        return TenantUpdate(update.tenant, removed=True, nominal_millislices=Millislices(0))
    nominal = after[update.tenant].quota.nominal_millislices
    return replace(update, nominal_millislices=nominal)
