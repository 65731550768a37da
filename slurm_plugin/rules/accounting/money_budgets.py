"""Tells what is left of budgets in money: for alarms alone, nothing ends for them."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slicewise.cluster.language.meters import SLICES
from slicewise.cluster.language.periods import Period, next_start_s, period_start_s
from slicewise.slurm_plugin.rules.accounting.charge_lines import ChargeMeter
from slicewise.slurm_plugin.rules.accounting.tariff import (
    MILLIONTHS,
    MoneyBudget,
    PriceBook,
    PriceSpan,
    money,
    slice_hour_price,
    upward,
    usage_prices,
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


@dataclass(frozen=True)
class Spent:
    """What a tenant used in spans of the same prices.

    Attributes:
        start_s: when the first of these spans begins, in Unix seconds.
        owner: by whose prices: of a share, the tenant whose run it was.
        amount: in the meter's unit; below 0 is what others were charged of the tenant's runs.
    """

    start_s: int
    tenant: str
    owner: str
    gpu_types: tuple[str, ...]
    meter: ChargeMeter
    amount: int


@dataclass(frozen=True)
class TenantCost:
    """What of it a tenant was charged in millionths of the currency; None without a tariff."""

    start_s: int
    tenant: str
    millionths: int | None


def period_begins_s(budgets: Iterable[MoneyBudget], now_s: int, zone: str) -> frozenset[int]:
    """When the running periods of budgets began, in Unix seconds."""
    return frozenset(period_start_s(Period(budget.period), now_s, zone) for budget in budgets)


def spans_alike(
    spans: Iterable[PriceSpan], begins_s: Iterable[int], book: PriceBook
) -> tuple[PriceSpan, ...]:
    """Of each span the first one in which every tenant has the same prices and tenants above it,
    and that lies between the same of these moments.
    """
    moves_s = {at_s for parents in book.parents.values() for at_s, _ in parents}
    moments_s = sorted({*begins_s, *moves_s})
    firsts: list[tuple[int, PriceSpan]] = []
    alike = []
    for span in spans:
        place = bisect_right(moments_s, span.start_s)
        like = (
            first
            for at, first in firsts
            if at == place and first.tariff is span.tariff and first.factor == span.factor
        )
        if (first := next(like, None)) is None:
            firsts.append((place, first := span))
        alike.append(first)
    return tuple(alike)


def tenant_costs(
    spent: Iterable[Spent], spans: Iterable[PriceSpan], book: PriceBook
) -> tuple[TenantCost, ...]:
    """What each costs; ``spans`` have those that it names.

    Each is rounded once, and not as the lines of an invoice are: a millionth a line may be between.
    """
    of_start = {span.start_s: span for span in spans}

    def cost(each: Spent) -> int | None:
        span = of_start[each.start_s]
        price = (
            slice_hour_price(book, span, each.owner, each.gpu_types)
            if each.meter == SLICES.name
            else usage_prices(book, span, each.tenant)[each.meter]
        )
        return None if price is None else money(each.meter, each.amount, price)

    return tuple(TenantCost(each.start_s, each.tenant, cost(each)) for each in spent)


def money_budget_statuses(
    budgets: Mapping[str, MoneyBudget], costs: Iterable[TenantCost], book: PriceBook, now_s: int
) -> tuple[MoneyBudgetStatus, ...]:
    """One for each budget, by name: what the tenant and those below it were charged since its
    period began. ``costs`` are of all tenants, none of them across the begin of a period.
    """
    begins = {
        tenant: period_start_s(Period(budget.period), now_s, book.zone)
        for tenant, budget in budgets.items()
    }
    used = dict.fromkeys(budgets, 0)
    for cost in costs:
        for tenant in upward(book, cost.tenant, cost.start_s) if cost.millionths else ():
            if tenant in begins and cost.start_s >= begins[tenant]:
                used[tenant] += cost.millionths or 0
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
