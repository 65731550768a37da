"""What is left of budgets in money."""

from typing import Any

from builders.tariffs import BERLIN, local_s, record, tariff

from slicewise.cluster.language.periods import clock_text
from slicewise.slurm_plugin.rules.accounting.money_budgets import (
    MoneyBudgetStatus,
    Spent,
    money_budget_statuses,
    period_begins_s,
    spans_alike,
    tenant_costs,
)
from slicewise.slurm_plugin.rules.accounting.tariff import PriceBook, price_spans

NOW_S = local_s("2026-10-28 15:00")
BUDGETS = tariff(
    """
prices = { slice_hour = 0.36, million_output_tokens = 2 }
[budgets.science]
amount = 10.5
[budgets.vision]
amount = 2
period = "day"
warn_at = 0.5
"""
)


def spent(at: str, tenant: str, hours: int, **fields: Any) -> Spent:
    of_run = {"owner": tenant, "gpu_types": ("1g.10gb",), "meter": "slice-seconds"}
    whole = {**of_run, "amount": hours * 3_600_000, **fields}
    return Spent(local_s(at), tenant, **whole)


def test_those_below_count_and_only_what_is_of_the_period() -> None:
    parents = {"vision": ((0, "science"),), "optics": ((0, ""),)}
    book = PriceBook([record(1, 0, BUDGETS)], parents, BERLIN)
    spans = price_spans(book.records, local_s("2026-10-01 00:00"), NOW_S, BERLIN)
    used = [
        spent("2026-10-01 00:00", "vision", 10),
        spent("2026-10-27 00:00", "science", -1, owner="science"),
        spent("2026-10-28 00:00", "vision", 6),
        spent("2026-10-28 00:00", "optics", 90),
        spent("2026-10-28 00:00", "vision", 0, meter="output-tokens", amount=500_000),
    ]
    assert money_budget_statuses(BUDGETS.budgets, tenant_costs(used, spans, book), book, NOW_S) == (
        MoneyBudgetStatus("science", 10_500_000, 4_100_000, 0.8, local_s("2026-11-01 00:00")),
        MoneyBudgetStatus("vision", 2_000_000, -1_160_000, 0.5, local_s("2026-10-29 00:00")),
    )


def test_spans_are_alike_that_have_the_same_prices_tenants_and_budgets() -> None:
    night = tariff('[[windows]]\nname = "night"\nbegin = "20:00"\nfactor = 0.5')
    moved_s, begin_s = local_s("2026-10-27 00:00"), local_s("2026-10-25 00:00")
    parents = {"vision": ((0, "science"), (moved_s, "chem"))}
    book = PriceBook([record(1, 0, night)], parents, BERLIN)
    spans = price_spans(book.records, begin_s, NOW_S, BERLIN)
    alike = spans_alike(spans, {local_s("2026-10-28 00:00")}, book)
    texts = [clock_text(span.start_s, BERLIN)[:16] for span in alike]
    assert texts == [
        *("2026-10-25 00:00", "2026-10-25 20:00") * 2,
        *("2026-10-27 00:00", "2026-10-27 20:00"),
        "2026-10-28 00:00",
    ]


def test_periods_began_at_midnight() -> None:
    assert period_begins_s(BUDGETS.budgets.values(), NOW_S, BERLIN) == {
        local_s("2026-10-01 00:00"),
        local_s("2026-10-28 00:00"),
    }
