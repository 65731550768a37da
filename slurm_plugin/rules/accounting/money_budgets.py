"""Tells what is left of budgets in money: for alarms alone, nothing ends for them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slicewise.cluster.language.periods import Period, next_start_s, period_start_s
from slicewise.slurm_plugin.rules.accounting.charge_lines import ChargeLine
from slicewise.slurm_plugin.rules.accounting.tariff import (
    MILLIONTHS,
    MoneyBudget,
    PriceBook,
    is_within,
)


@dataclass(frozen=True)
class MoneyBudgetStatus:
    """What is left of a tenant's budget in the running period.

    Attributes:
        amount_millionths, left_millionths: of the currency; less than 0 is beyond the budget.
        warn_at: part of the amount from which on it is said.
        ends_s: when the period ends, in Unix seconds.
    """

    tenant: str
    amount_millionths: int
    left_millionths: int
    warn_at: float
    ends_s: int

    @property
    def used_millionths(self) -> int:
        """What the tenant and those below it were charged in the period."""
        return self.amount_millionths - self.left_millionths

    @property
    def is_low(self) -> bool:
        """Whether the part is used of which the tariff warns."""
        return self.used_millionths >= self.warn_at * self.amount_millionths


def first_period_s(budgets: Iterable[MoneyBudget], now_s: int, zone: str) -> int:
    """When the longest of the running periods began; ``now_s`` without budgets."""
    starts = (period_start_s(Period(budget.period), now_s, zone) for budget in budgets)
    return min(starts, default=now_s)


def money_budget_statuses(
    budgets: Mapping[str, MoneyBudget], lines: Iterable[ChargeLine], book: PriceBook, now_s: int
) -> tuple[MoneyBudgetStatus, ...]:
    """One for each budget, by name: what the tenant and those below it were charged since then.

    ``lines`` are ``merged``, of all tenants since ``first_period_s``.
    """
    begins = {
        tenant: period_start_s(Period(budget.period), now_s, book.zone)
        for tenant, budget in budgets.items()
    }
    used = dict.fromkeys(budgets, 0)
    for line in lines:
        for tenant, begin_s in begins.items():
            if line.of.start_s >= begin_s and is_within(
                book, line.of.tenant, tenant, line.of.start_s
            ):
                used[tenant] += line.millionths or 0
    return tuple(
        MoneyBudgetStatus(
            tenant,
            amount := int(budgets[tenant].amount * MILLIONTHS),
            amount - used[tenant],
            float(budgets[tenant].warn_at),
            next_start_s(Period(budgets[tenant].period), now_s, book.zone) or now_s,
        )
        for tenant in sorted(budgets)
    )
