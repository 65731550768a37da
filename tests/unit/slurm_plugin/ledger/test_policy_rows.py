from types import SimpleNamespace

import pytest

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.meters import TOKENS
from slicewise.cluster.language.periods import Period
from slicewise.slurm_plugin.ledger import policy_rows
from slicewise.slurm_plugin.rules.quota.types import Budget


def row(period: str | None) -> SimpleNamespace:
    """A row of the view ``policy``, and of ``changes_of``."""
    return SimpleNamespace(
        id=1,
        tenant="vision",
        parent="",
        removed=None,
        nominal_millislices=1000,
        borrowing_limit_millislices=0,
        lending_limit_millislices=0,
        weight=1,
        type_limits={},
        model_limits={},
        type_nominals={},
        budget_period=period,
        budget_millislice_s=3000,
        carry_over_millislice_s=2000,
        overdraft_millislice_s=1000,
        token_budget_period=period,
        budget_tokens=30,
        carry_over_tokens=20,
        overdraft_tokens=10,
        author="root",
        reason="",
        at_s=7,
    )


@pytest.mark.parametrize("period", Period)
def test_each_period_is_read(period: Period) -> None:
    budget = Budget(period, 3000, 2000, 1000)
    assert policy_rows.tenant(row(period.value)).budget == budget
    assert policy_rows.quota_change(row(period.value)).update.budget == budget
    of_tokens = Budget(period, 30, 20, 10, TOKENS.name)
    assert policy_rows.tenant(row(period.value)).token_budget == of_tokens
    assert policy_rows.quota_change(row(period.value)).update.token_budget == of_tokens


def test_off_is_no_budget_and_an_unchanged_one_no_change() -> None:
    assert policy_rows.tenant(row("off")).budget is None
    assert policy_rows.quota_change(row("off")).update.budget == "off"
    assert policy_rows.quota_change(row(None)).update.budget is None


@pytest.mark.parametrize("read", [policy_rows.tenant, policy_rows.quota_change])
def test_a_period_of_a_newer_version_asks_for_an_upgrade_of_this_one(read) -> None:
    with pytest.raises(InvalidInputError, match="'decade', which this version") as raised:
        read(row("decade"))
    assert raised.value.refusal.code == "SW-DATABASE-NEW"
    assert "older than the ledger: upgrade it" in raised.value.refusal.hint
