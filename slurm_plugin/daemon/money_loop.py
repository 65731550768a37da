"""Looks every ten minutes at what is left of budgets in money, for metrics."""

import asyncio
import time

from slicewise.cluster.language.errors import OutsideError
from slicewise.slurm_plugin.api.charge_reads import all_charges
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.ledger.tariffs import WantedCharges
from slicewise.slurm_plugin.rules.accounting.charge_lines import merged
from slicewise.slurm_plugin.rules.accounting.money_budgets import (
    MoneyBudgetStatus,
    first_period_s,
    money_budget_statuses,
)
from slicewise.slurm_plugin.rules.accounting.tariff import in_force, price_spans
from slicewise.slurm_plugin.state.cluster_state import ClusterState

_EVERY_S = 600.0
"""All charges of the running periods are read: not each turn."""


class MoneyLoop:
    """Reads all charges of the running periods, in a thread, where a tariff has budgets."""

    def __init__(self, ledger: Ledger, cluster_state: ClusterState, zone: str) -> None:
        self._ledger = ledger
        self._cluster_state = cluster_state
        self._zone = zone
        self._due_s = 0.0

    async def turn(self) -> None:
        """Look, if it is time to. Raises what the ledger raises, and looks again in ten minutes."""
        if time.monotonic() < self._due_s:
            return
        self._due_s = time.monotonic() + _EVERY_S
        now_s = int(self._cluster_state.clock.shown_s)
        try:
            self._cluster_state.money_budgets = await asyncio.to_thread(self._statuses, now_s)
        except OutsideError:
            self._cluster_state.money_budgets = ()
            raise

    def _statuses(self, now_s: int) -> tuple[MoneyBudgetStatus, ...]:
        book = self._ledger.tariffs.book(self._zone)
        record = in_force(book.records, now_s)
        budgets = record.tariff.budgets if record else {}
        begin_s = first_period_s(budgets.values(), now_s, book.zone)
        if not budgets or begin_s >= now_s:
            return ()
        spans = price_spans(book.records, begin_s, now_s, book.zone)
        lines = merged(all_charges(self._ledger, WantedCharges(), spans, book, now_s))
        return money_budget_statuses(budgets, lines, book, now_s)
