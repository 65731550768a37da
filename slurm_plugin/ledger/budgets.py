"""Reads balances of tenants, and books what their budgets are given or have taken back."""

import json
from collections.abc import Mapping
from dataclasses import asdict

from sqlalchemy import Connection, text

from slicewise.cluster.language.codes import Code
from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.meters import SLICES
from slicewise.cluster.runtime.database import reading, writing
from slicewise.slurm_plugin.ledger import queries, reads
from slicewise.slurm_plugin.ledger.base import DEADLINE, LedgerPart
from slicewise.slurm_plugin.rules.accounting.budgets import Amend, unspent
from slicewise.slurm_plugin.rules.accounting.types import Balance, BudgetEntry
from slicewise.slurm_plugin.rules.quota.types import Budget

_USED_SINCE = text("""
SELECT coalesce(sum(t.amount), 0)::bigint
  FROM slicewise.runs r
  JOIN slicewise.transfers t ON t.run_id = r.id
 WHERE r.cluster = :cluster AND coalesce(r.payer, r.tenant) = :payer AND r.meter = :meter
   AND t.kind = 'use' AND t.until_s >= :since_s
   AND t.id > coalesce((SELECT s.last_transfer_id FROM slicewise.seals s
                         WHERE s.recorded_at < to_timestamp(:since_s) - interval '2 hours'
                         ORDER BY s.id DESC LIMIT 1), 0)
""")
"""What ended since then was not sealed two hours before: gateways' clocks are no hour ahead."""
_ENTER = text("SELECT slicewise.enter_budget(CAST(:entry AS jsonb), :unspent)")


class Budgets(LedgerPart):
    """Reads balances, and books the entries that grant a budget."""

    def balances(self, meter: str = SLICES.name) -> Mapping[str, Balance]:
        """Balances of every tenant that ever had a run or a budget on the meter, by name."""
        with reading(self._engine) as connection:
            return reads.balances(connection, self._cluster, meter)

    def rollovers(self, meter: str = SLICES.name) -> Mapping[str, int]:
        """The start of the period of each tenant's last rollover, in Unix seconds."""
        with reading(self._engine) as connection:
            return reads.rollovers(connection, self._cluster, meter)

    def renewed(self, meter: str = SLICES.name) -> Mapping[str, int]:
        """When each budget on the meter that was removed after its last rollover was set again,
        in Unix seconds.
        """
        with reading(self._engine) as connection:
            result = connection.execute(queries.renewed_of(self._cluster, meter))
            return {tenant: int(at_s) for tenant, at_s in result}

    def used_since(self, payer: str, since_s: int, meter: str) -> int:
        """What requests used of a budget since then. A batch counts whole, by its last end."""
        given = {"cluster": self._cluster, "payer": payer, "since_s": since_s, "meter": meter}
        with reading(self._engine) as connection:
            connection.execute(DEADLINE)
            return int(connection.execute(_USED_SINCE, given).scalar_one())

    def enter(
        self,
        entry: BudgetEntry,
        had: int | None,
        change_id: int | None = None,
    ) -> bool:
        """Book a budget entry with its transfer; return whether it is booked.

        Nothing is booked if available + reserved of the tenant is not ``had``, or
        if the policy has changes after ``change_id``, on both of which the entry was decided (None
        books in any case), or if a rollover is not later than the tenant's last. An entry that
        exists already under its key counts as booked, and stays as it is. Raises InvalidInputError
        (SW-BUDGET-KEY) if another entry has the key.
        """
        with writing(self._engine) as connection:
            if change_id is not None:
                reads.lock_policy(connection, self._cluster)
                if reads.change_id(connection, self._cluster) != change_id:
                    return False
            if _enter(connection, self._cluster, entry, had):
                return True
            return entry.key is not None and self._is_there(connection, entry, entry.key)

    def _is_there(self, connection: Connection, entry: BudgetEntry, key: str) -> bool:
        found = connection.execute(queries.entry_of(self._cluster, key)).one_or_none()
        if found is None:
            return False
        if tuple(found) != (entry.tenant, entry.kind, entry.amount, entry.meter):
            raise InvalidInputError(
                Code.BUDGET_KEY,
                f"The key {key!r} belongs to another entry: {found.kind} of {found.tenant}.",
                "Give each entry a key of its own. Nothing was booked.",
            )
        return True

    def entries(
        self, tenant: str | None, since_s: int, meter: str = SLICES.name
    ) -> tuple[BudgetEntry, ...]:
        """Entries on the meter that were recorded at ``since_s`` or later, of one tenant or of all,
        the oldest first.
        """
        found = queries.entries_of(self._cluster, meter, tenant, since_s)
        with reading(self._engine) as connection:
            return tuple(queries.budget_entry(row) for row in connection.execute(found))


def amend(
    connection: Connection,
    cluster: str,
    tenant: str,
    before: Budget | None,
    decide: Amend,
    *,
    meter: str,
) -> int:
    """Within a transaction: book what ``decide`` returns for what is unspent on the meter.

    It is decided again while use is posted in between. Returns what is given, in its unit.
    """
    while True:
        had = unspent(reads.balances(connection, cluster, meter).get(tenant))
        entry = decide(before, reads.rollovers(connection, cluster, meter).get(tenant), had)
        if entry is None:
            return 0
        if _enter(connection, cluster, entry, had):
            return entry.amount


def _enter(connection: Connection, cluster: str, entry: BudgetEntry, had: int | None) -> bool:
    values = json.dumps({**asdict(entry), "cluster": cluster})
    booked = connection.execute(_ENTER, {"entry": values, "unspent": had})
    return bool(booked.scalar_one())
