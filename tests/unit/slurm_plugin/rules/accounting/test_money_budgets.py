"""What is left of budgets in money."""

from builders.tariffs import BERLIN, local_s, record, tariff

from slicewise.slurm_plugin.rules.accounting.charge_lines import Charged, ChargeLine
from slicewise.slurm_plugin.rules.accounting.money_budgets import (
    MoneyBudgetStatus,
    first_period_s,
    money_budget_statuses,
)
from slicewise.slurm_plugin.rules.accounting.tariff import PriceBook

NOW_S = local_s("2026-10-28 15:00")
BUDGETS = tariff(
    """
[budgets.science]
amount = 10.5
[budgets.vision]
amount = 2
period = "day"
warn_at = 0.5
"""
)


def line(at: str, tenant: str, millionths: int) -> ChargeLine:
    at_s = local_s(at)
    return ChargeLine(
        Charged(
            start_s=at_s,
            end_s=at_s + 3600,
            day=at[:10],
            payer=tenant,
            tenant=tenant,
            service="",
            user="alice",
            gpu_types=("1g.10gb",),
        ),
        1,
        millionths,
    )


def test_those_below_count_and_only_what_is_of_the_period() -> None:
    parents = {"vision": ((0, "science"),), "optics": ((0, ""),)}
    book = PriceBook([record(1, 0, BUDGETS)], parents, BERLIN)
    lines = [
        line("2026-10-01 00:00", "vision", 4_000_000),
        line("2026-10-27 23:00", "science", 500_000),
        line("2026-10-28 00:00", "vision", 2_500_000),
        line("2026-10-28 01:00", "optics", 9_000_000),
    ]
    assert money_budget_statuses(BUDGETS.budgets, lines, book, NOW_S) == (
        MoneyBudgetStatus("science", 10_500_000, 3_500_000, 0.8, local_s("2026-11-01 00:00")),
        MoneyBudgetStatus("vision", 2_000_000, -500_000, 0.5, local_s("2026-10-29 00:00")),
    )


def test_all_is_read_from_the_longest_period_on() -> None:
    budgets = BUDGETS.budgets.values()
    assert first_period_s(budgets, NOW_S, BERLIN) == local_s("2026-10-01 00:00")
    days = [BUDGETS.budgets["vision"]]
    assert first_period_s(days, NOW_S, BERLIN) == local_s("2026-10-28 00:00")
    assert first_period_s((), NOW_S, BERLIN) == NOW_S
