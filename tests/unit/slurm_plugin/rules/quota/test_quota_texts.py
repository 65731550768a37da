"""Tests quotas and budgets in words."""

from dataclasses import replace

from builders.tenants import tenant

from slicewise.cluster.language.meters import TOKENS
from slicewise.cluster.language.periods import Period
from slicewise.cluster.language.units import Millislices, MillisliceSeconds
from slicewise.slurm_plugin.rules.quota.quota_texts import budget_text, change_words, quota_words
from slicewise.slurm_plugin.rules.quota.types import (
    MAX_BUDGET_MILLISLICE_S,
    MAX_NOMINAL_MILLISLICES,
    Budget,
    Quota,
)

QUOTA = Quota(
    Millislices(6000),
    borrowing_limit_millislices=MAX_NOMINAL_MILLISLICES,
    weight=3,
    type_limits={"3g.40gb": 2},
    model_limits={"H200-141GB": Millislices(7000)},
)
RULE = Budget(Period.MONTH, MillisliceSeconds(3_600_000_000), MAX_BUDGET_MILLISLICE_S)


def test_what_was_set_stands_beside_what_it_was():
    words = quota_words(Quota(Millislices(1000), weight=3), QUOTA)
    assert words == (
        "nominal 6 slices (was 1 slice), borrowing limit unlimited (was 0),"
        " types 2 × 3g.40gb (was unlimited), models 7 slices on H200-141GB (was unlimited)"
    )
    assert quota_words(None, Quota(Millislices(1000))) == "nominal 1 slice"


def test_a_budgets_rule_in_words():
    assert budget_text(RULE) == "1,000 slice-hours a month, carries over all"
    once = Budget(Period.NONE, MillisliceSeconds(36), overdraft=MillisliceSeconds(1_800_000))
    assert budget_text(once) == "0.00001 slice-hours once, overdraft 0.5"
    assert budget_text("off") == "none"
    tokens = Budget(Period.WEEK, 2_000_000, MAX_BUDGET_MILLISLICE_S, 500, TOKENS.name)
    assert budget_text(tokens) == "2,000,000 tokens a week, carries over all, overdraft 500"


def test_a_change_of_a_tenant_in_one_line():
    before = tenant("vision", 4000)
    after = tenant("vision", 6000, "lab", budget=RULE)
    assert change_words("vision", before, after) == (
        "vision: nominal 6 slices (was 4 slices),"
        " budget 1,000 slice-hours a month, carries over all (was none), below lab (was at the top)"
    )
    assert change_words("vision", before, None) == "vision: removed"


def test_guarantees_by_type_are_told_where_there_are_some():
    plain = Quota(Millislices(1000))
    by_type = replace(plain, type_nominals={"3g.40gb": 2, "1g.10gb": 5})
    words = "guaranteed by type 5 × 1g.10gb, 2 × 3g.40gb"
    assert quota_words(plain, by_type) == f"nominal 1 slice, {words} (was any)"
    assert quota_words(by_type, plain).endswith(
        "guaranteed by type any (was 5 × 1g.10gb, 2 × 3g.40gb)"
    )
    assert "by type" not in quota_words(None, plain)
