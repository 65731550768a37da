"""Reads and changes tenants: their quotas and their budgets' rules."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from sqlalchemy import Connection
from sqlalchemy.dialects.postgresql import insert

from slicewise.cluster.language.meters import BUDGETED, SLICES
from slicewise.cluster.language.units import Millislices
from slicewise.cluster.runtime.database import reading, writing
from slicewise.slurm_plugin.ledger import budgets, loans, reads
from slicewise.slurm_plugin.ledger import calendar as windows
from slicewise.slurm_plugin.ledger import policy_rows as rows
from slicewise.slurm_plugin.ledger.base import LedgerPart
from slicewise.slurm_plugin.ledger.tables import quota_changes
from slicewise.slurm_plugin.rules.accounting.budgets import Amend
from slicewise.slurm_plugin.rules.quota.calendar import in_force, loosely_within
from slicewise.slurm_plugin.rules.quota.calendar_times import moment
from slicewise.slurm_plugin.rules.quota.lending import called_back
from slicewise.slurm_plugin.rules.quota.tenants import changed_together, check_words
from slicewise.slurm_plugin.rules.quota.types import (
    Budget,
    Policy,
    QuotaChange,
    TenantUpdate,
)


class Tenants(LedgerPart):
    """Tenants' quotas. Writers wait for each other; each decides on what the one before left."""

    def policy(self) -> Policy:
        """Every tenant by name."""
        with reading(self._engine) as connection:
            return reads.policy(connection, self._cluster)

    def policy_in_force(self, at_s: float, zone: str) -> Policy:
        """Every tenant by name, with the quotas of the calendar in that time zone at ``at_s``."""
        with reading(self._engine) as connection:
            policy = reads.policy(connection, self._cluster)
            calendar = reads.windows(connection, self._cluster)
        return in_force(policy, calendar, moment(at_s, zone))

    def change(self, update: TenantUpdate, author: str, reason: str) -> QuotaChange:
        """Append a change, and cut loans to what it leaves.

        What loans lose is recalled. Raises InvalidInputError: SW-VALUE and what ``tenants.changed``
        raises.
        """
        with writing(self._engine) as connection:
            return _change(connection, self._cluster, (update,), author, reason)[0]

    def change_by(
        self, decide: Callable[[Policy], TenantUpdate | None], author: str, reason: str
    ) -> tuple[Policy, QuotaChange | None]:
        """Make the change that ``decide`` wants of the policy, which nobody changes meanwhile.

        Returns the policy of before, and the change; None if none was wanted. Raises what
        ``change`` and ``decide`` raise.
        """
        with writing(self._engine) as connection:
            reads.lock_policy(connection, self._cluster)
            policy = reads.policy(connection, self._cluster)
            update = decide(policy)
            if update is None:
                return policy, None
            return policy, _change(connection, self._cluster, (update,), author, reason)[0]

    def change_together(
        self,
        updates: Sequence[TenantUpdate],
        author: str,
        reason: str,
        amend: Callable[[str, Budget], Amend],
        judge: Callable[[Policy, Policy], None] = lambda _before, _after: None,
    ) -> tuple[QuotaChange, ...]:
        """Change several tenants as ``change`` and ``set_budget`` do.

        Only the tree that results from all updates has to be valid. ``judge`` is given the policy
        before and after; nobody else changes it meanwhile, and what it raises undoes all. Raises
        InvalidInputError: SW-VALUE and what ``tenants.changed`` raises.
        """
        with writing(self._engine) as connection:
            reads.lock_policy(connection, self._cluster)
            before = reads.policy(connection, self._cluster)
            changes = _change(connection, self._cluster, updates, author, reason)
            judge(before, reads.policy(connection, self._cluster))
            for update in updates:
                for meter in BUDGETED:
                    if isinstance(budget := update.budget_on(meter), Budget):
                        entry, name = amend(update.tenant, budget), update.tenant
                        was = _budget(before, name, meter)
                        budgets.amend(connection, self._cluster, name, was, entry, meter=meter)
            return changes

    def set_budget(
        self, update: TenantUpdate, author: str, reason: str, amend: Amend, meter: str = SLICES.name
    ) -> int:
        """Change the rule of a budget on a meter as ``change`` does, and the running period too.

        If two operators change it at the same time, the second decides on what the first has left.
        Returns what is given immediately, in the meter's unit; below zero, taken back.
        """
        with writing(self._engine) as connection:
            reads.lock_policy(connection, self._cluster)
            name = update.tenant
            before = _budget(reads.policy(connection, self._cluster), name, meter)
            _change(connection, self._cluster, (update,), author, reason)
            return budgets.amend(connection, self._cluster, name, before, amend, meter=meter)

    def history(self, tenant: str) -> tuple[QuotaChange, ...]:
        """Every change of the tenant, the newest first."""
        changes = rows.changes_of(self._cluster, tenant)
        with reading(self._engine) as connection:
            return tuple(rows.quota_change(row) for row in connection.execute(changes))

    def change_id(self) -> int:
        """Id of the newest change, 0 if there is none; read it before ``policy``."""
        with reading(self._engine) as connection:
            return reads.change_id(connection, self._cluster)


def _budget(policy: Policy, tenant: str, meter: str) -> Budget | None:
    return policy[tenant].budget_on(meter) if tenant in policy else None


def _change(
    connection: Connection,
    cluster: str,
    updates: Sequence[TenantUpdate],
    author: str,
    reason: str,
) -> tuple[QuotaChange, ...]:
    check_words(author, reason)
    reads.lock_policy(connection, cluster)
    after, refused = changed_together(reads.policy(connection, cluster), updates)
    for error in refused.values():
        raise error
    changes = tuple(
        _recorded(connection, cluster, _written(update, after), author, reason)
        for update in updates
    )
    current = reads.loans(connection, cluster)
    allowed = loosely_within(after, reads.windows(connection, cluster), current)
    loans.append(connection, cluster, current, allowed, _why(changes[-1]))
    if lost := tuple(called_back(current, allowed, reads.now_s(connection))):
        called = (*reads.recalls(connection, cluster), *lost)
        loans.call_back(connection, cluster, after, called)
    return changes


def _recorded(
    connection: Connection, cluster: str, written: TenantUpdate, author: str, reason: str
) -> QuotaChange:
    values = {
        "cluster": cluster,
        "author": author,
        "reason": reason,
        **rows.change_values(written),
    }
    recorded_s = rows.recorded_s(quota_changes.c.recorded_at)
    added = insert(quota_changes).values(values).returning(quota_changes.c.id, recorded_s)
    change_id, at_s = connection.execute(added).one()
    change = QuotaChange(change_id, written, author, reason, at_s)
    if written.removed:
        # A tenant of the same name may be added again.
        windows.end_of(connection, cluster, written.tenant, author, _why(change))
        loans.forget_recalls(connection, cluster, written.tenant)
    return change


def _why(change: QuotaChange) -> str:
    return f"change {change.change_id}: {change.update.tenant}"


def _written(update: TenantUpdate, after: Policy) -> TenantUpdate:
    """The update with the resulting nominal, which every row has; 0 for a removed tenant."""
    if update.tenant not in after:
        return TenantUpdate(update.tenant, removed=True, nominal_millislices=Millislices(0))
    nominal = after[update.tenant].quota.nominal_millislices
    return replace(update, nominal_millislices=nominal)
