"""Looks every ten minutes at the running month: money, joules, and what is left of budgets."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass

from slicewise.cluster.language.periods import Period, date_text, period_start_s
from slicewise.cluster.rpc.overview_messages import MonthNow
from slicewise.cluster.settings.file import Settings
from slicewise.slurm_plugin.api.energy import MOST_ROWS, energy_by_tenant
from slicewise.slurm_plugin.common.log import warn
from slicewise.slurm_plugin.ledger.store import Ledger
from slicewise.slurm_plugin.rules.accounting.energy import EnergySums
from slicewise.slurm_plugin.rules.accounting.money_budgets import (
    MoneyBudgetStatus,
    TenantCost,
    money_budget_statuses,
    period_begins_s,
    spans_alike,
    tenant_costs,
)
from slicewise.slurm_plugin.rules.accounting.tariff import in_force, price_spans
from slicewise.slurm_plugin.rules.overview.month import tenant_months
from slicewise.slurm_plugin.state.cluster_state import ClusterState

_EVERY_S = 600.0
"""All of the running periods is added up: not each turn."""


@dataclass(frozen=True)
class _Money:
    """``costs`` are those of the month; ``zone`` is that of its days, of money and joules."""

    zone: str
    month: str
    month_s: int
    seen_s: int
    currency: str
    costs: tuple[TenantCost, ...]
    budgets: tuple[MoneyBudgetStatus, ...]


class MoneyLoop:
    """Adds up what the running month and budgets' periods cost, where there is a tariff, and the
    month's joules, in a thread.
    """

    def __init__(self, settings: Settings, ledger: Ledger, cluster_state: ClusterState) -> None:
        self._settings = settings
        self._ledger = ledger
        self._cluster_state = cluster_state
        self._due_s = 0.0
        self._has_warned = False

    async def turn(self) -> None:
        """Look, if it is time to. Raises what the ledger raises, and looks again in ten minutes."""
        if time.monotonic() < self._due_s:
            return
        self._due_s = time.monotonic() + _EVERY_S
        now_s = int(self._cluster_state.clock.shown_s)
        month: MonthNow | None = None
        budgets: tuple[MoneyBudgetStatus, ...] = ()
        try:
            money = await asyncio.to_thread(self._money, now_s)
            # Joules take their time: what is left of budgets doesn't hang on them.
            month, budgets = _month(money, None), money.budgets
            energy = await asyncio.to_thread(
                energy_by_tenant,
                self._ledger,
                self._settings,
                money.month_s,
                now_s,
                money.zone,
            )
            if energy is None:
                warn("energy_too_many", month=money.month, rows=MOST_ROWS)
            month = _month(money, energy)
        finally:
            self._cluster_state.month = month
            self._cluster_state.money_budgets = budgets

    def _money(self, now_s: int) -> _Money:
        book = self._ledger.tariffs.book(self._settings.ledger.time_zone)
        if book.zone != self._settings.ledger.time_zone and not self._has_warned:
            warn("tariff_zone_differs", tariffs=book.zone, ledger=self._settings.ledger.time_zone)
            self._has_warned = True
        month_s = period_start_s(Period.MONTH, now_s, book.zone)
        record = in_force(book.records, now_s)
        budgets = record.tariff.budgets if record else {}
        begins_s = {month_s, *period_begins_s(budgets.values(), now_s, book.zone)}
        costs: tuple[TenantCost, ...] = ()
        if book.records and (begin_s := min(begins_s)) < now_s:
            spans = price_spans(book.records, begin_s, now_s, book.zone)
            alike = spans_alike(spans, begins_s, book)
            spent = self._ledger.tariffs.spent(spans, alike, book.zone, now_s)
            costs = tenant_costs(spent, spans, book)
        return _Money(
            book.zone,
            date_text(month_s, book.zone)[: len("2026-11")],
            month_s,
            now_s,
            record.tariff.currency if record else "",
            tuple(cost for cost in costs if cost.start_s >= month_s),
            money_budget_statuses(budgets, costs, book, now_s),
        )


def _month(money: _Money, energy: Mapping[str, EnergySums] | None) -> MonthNow | None:
    tenants = tenant_months(money.costs, energy)
    if not tenants:
        return None
    return MonthNow(
        month=money.month,
        zone=money.zone,
        currency=money.currency,
        seen_s=money.seen_s,
        tenants=tenants,
    )
