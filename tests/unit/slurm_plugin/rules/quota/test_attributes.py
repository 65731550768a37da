"""Tests that what a quota says is declared once, and that all else follows."""

from dataclasses import fields
from typing import get_type_hints

import pytest
from builders.settings import site_settings

from slicewise.cluster.language.errors import InvalidInputError
from slicewise.cluster.language.units import Millislices
from slicewise.slurm_plugin.ledger.tables import quota_changes
from slicewise.slurm_plugin.rules.quota.attributes import ATTRIBUTES, SETTINGS, quota_values
from slicewise.slurm_plugin.rules.quota.types import MAX_NOMINAL_MILLISLICES, Quota, TenantUpdate

SETTINGS_OF_SITE = site_settings(types=["1g.10gb", "3g.40gb"])
DECLARED = [attribute.field for attribute in ATTRIBUTES]


def values(**words: object) -> dict[str, object]:
    quota = Quota(Millislices(0), type_limits={"1g.10gb": 3})
    return dict(quota_values(words, quota, SETTINGS_OF_SITE))


def test_quotas_updates_and_the_ledger_have_what_is_declared():
    assert [field.name for field in fields(Quota)] == DECLARED
    assert set(DECLARED) <= {field.name for field in fields(TenantUpdate)}
    assert set(DECLARED) <= set(quota_changes.columns.keys())
    update, quota = get_type_hints(TenantUpdate), get_type_hints(Quota)
    assert [name for name in DECLARED if update[name] != quota[name] | None] == []


def test_options_are_called_as_the_keys():
    options = [setting.option for setting in SETTINGS]
    assert options == [
        "--nominal",
        "--borrowing-limit",
        "--lending-limit",
        "--weight",
        "--limit",
        "--type-nominal",
    ]


def test_words_are_read_by_key():
    assert values(nominal="3.5", borrowing_limit="unlimited", weight="2") == {
        "nominal_millislices": 3500,
        "borrowing_limit_millislices": MAX_NOMINAL_MILLISLICES,
        "weight": 2,
    }
    assert values(limits=("3g.40gb=1",)) == {
        "type_limits": {"1g.10gb": 3, "3g.40gb": 1},
        "model_limits": {},
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"height": "2"}, "A quota has no height"),
        ({"nominal": "many"}, "--nominal: 'many' is not a number of slices"),
        ({"nominal": ""}, "--nominal: '' is not a number of slices"),
        ({"nominal": ("1", "2")}, "--nominal can't be"),
        ({"limits": "3g.40gb=1"}, "--limit can't be"),
        ({"weight": "2.5"}, "--weight: '2.5' is not a whole number"),
    ],
)
def test_other_words_are_refused(words: dict[str, object], said: str):
    with pytest.raises(InvalidInputError, match=said) as raised:
        values(**words)
    assert raised.value.refusal.code == "SW-VALUE"
