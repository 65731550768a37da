"""Tests what people read of budgets."""

import pytest
from printed_text import printed_text

from slicewise.cluster.language.periods import Period
from slicewise.cluster.language.units import MillisliceSeconds
from slicewise.cluster.runtime.console import plain
from slicewise.slurm_plugin.cli.views.budgets import budgets_table
from slicewise.slurm_plugin.rules.accounting.overview import BudgetStatus
from slicewise.slurm_plugin.rules.quota.types import Budget

NOW_S, HOUR = 1_000_000, 3_600_000
BUDGET = Budget(Period.MONTH, MillisliceSeconds(10 * HOUR))


def status(ends_s: int | None, resets_s: int | None, used: int | None = 4 * HOUR) -> BudgetStatus:
    left, reserved, rate = 6 * HOUR, HOUR, 2000 if ends_s is not None else 0
    return BudgetStatus("vision", BUDGET, left, reserved, used, rate, ends_s, None, resets_s)


def shown(one: BudgetStatus, width: int = 120) -> str:
    return printed_text(budgets_table([one], NOW_S), width)


@pytest.mark.parametrize(
    ("ends_s", "resets_s", "words"),
    [
        (NOW_S + 3 * 86_400, NOW_S + 9 * 86_400, "ends in 3 days"),
        (NOW_S + 10_800, None, "ends in 3 h"),
        (NOW_S + 90, None, "ends in 90 s"),
        (NOW_S, None, "ended"),
        (NOW_S + 10_800, NOW_S + 10_800, "lasts"),
    ],
)
def test_when_a_budget_ends(ends_s: int, resets_s: int | None, words: str) -> None:
    for width in (80, 120):
        assert words in shown(status(ends_s, resets_s), width)


def test_left_and_used_are_what_the_period_had() -> None:
    one = status(None, None)
    text = shown(one)
    assert [word for word in ("10.00", "4.00", "6.00", "1.00", "never") if word not in text] == []
    assert plain(one)["had"] == 10 * HOUR
    assert "had" not in shown(status(None, None, used=None))
