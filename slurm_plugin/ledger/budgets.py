"""Budgets: balances of tenants, and what their budgets were given and had taken back."""

import json
from collections.abc import Mapping
from dataclasses import asdict

from sqlalchemy import Connection, text

from cluster.database import reading, writing
from slurm_plugin.decide.budgets import Amend, unspent
from slurm_plugin.decide.model import Balance, BudgetEntry
from slurm_plugin.decide.policy import Budget
from slurm_plugin.ledger import queries
from slurm_plugin.ledger.part import LedgerPart

_ENTER = text("SELECT slicewise.enter_budget(CAST(:entry AS jsonb), :unspent)")


class Budgets(LedgerPart):
    """Balances, and the entries that grant a budget."""

    def balances(self) -> Mapping[str, Balance]:
        """Of every tenant that ever had a run or a budget, by name."""
        with reading(self._engine) as connection:
            return self._balances(connection)

    def _balances(self, connection: Connection) -> Mapping[str, Balance]:
        found = connection.execute(queries.balances_of(self._cluster))
        return {one.tenant: one for one in map(queries.balance, found)}

    def rolls(self) -> Mapping[str, int]:
        """The start of the period that each tenant's budget was rolled to last, Unix seconds."""
        with reading(self._engine) as connection:
            return self._rolls(connection)

    def _rolls(self, connection: Connection) -> Mapping[str, int]:
        found = connection.execute(queries.rolls_of(self._cluster))
        return {tenant: int(start_s) for tenant, start_s in found}

    def renewed_budgets(self) -> Mapping[str, int]:
        """When each budget that was taken away after its last roll was set again, Unix seconds."""
        with reading(self._engine) as connection:
            found = connection.execute(queries.renewed_of(self._cluster))
            return {tenant: int(at_s) for tenant, at_s in found}

    def book_budget(self, entry: BudgetEntry, unspent_millislice_s: int | None) -> bool:
        """Book it with its transfer; whether it was booked.

        Nothing is booked if available + reserved of the tenant is not ``unspent_millislice_s``,
        which it was decided on (None books in any case), or if a roll is not later than its last.
        """
        with writing(self._engine) as connection:
            return self._enter(connection, entry, unspent_millislice_s)

    def _enter(
        self, connection: Connection, entry: BudgetEntry, unspent_millislice_s: int | None
    ) -> bool:
        values = json.dumps({**asdict(entry), "cluster": self._cluster})
        booked = connection.execute(_ENTER, {"entry": values, "unspent": unspent_millislice_s})
        return bool(booked.scalar_one())

    def _amend(
        self, connection: Connection, tenant: str, before: Budget | None, amend: Amend
    ) -> int:
        """Book what is decided on what is unspent, anew as long as runs are posted in between."""
        while True:
            had = unspent(self._balances(connection).get(tenant))
            entry = amend(before, self._rolls(connection).get(tenant), had)
            if entry is None:
                return 0
            if self._enter(connection, entry, had):
                return entry.amount_millislice_s

    def budget_entries(self, tenant: str | None, since_s: int) -> tuple[BudgetEntry, ...]:
        """Entries recorded at ``since_s`` or later, of one tenant or of all, the oldest first."""
        found = queries.entries_of(self._cluster, tenant, since_s)
        with reading(self._engine) as connection:
            return tuple(queries.budget_entry(row) for row in connection.execute(found))
