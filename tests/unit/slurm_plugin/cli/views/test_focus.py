"""Rows of FOCUS for tokens and shares, beside those of runs."""

from dataclasses import replace
from decimal import Decimal

from slicewise.slurm_plugin.cli.views.focus import Billing, focus_rows
from slicewise.slurm_plugin.rules.accounting.charge_lines import Charged, ChargeLine

TOKENS = Charged(
    start_s=0,
    end_s=86_400,
    day="1970-01-01",
    payer="vision",
    tenant="vision",
    service="chat",
    user="alice",
    gpu_types=(),
    owner="science",
    kind="request",
    meter="output-tokens",
    price=Decimal("0.40"),
    list_price=Decimal("0.60"),
)
BILLING = Billing("cluster", 0, 86_400, "EUR")


def test_tokens_have_rows_with_the_list_price_beside_the_own_if_they_are_priced() -> None:
    (row,) = focus_rows([ChargeLine(TOKENS, 1_500_000, 600_000)], BILLING)
    assert (row.SkuId, row.ConsumedQuantity, row.ConsumedUnit) == (
        *("output-tokens", 1_500_000, "Tokens"),
    )
    assert (row.PricingQuantity, row.PricingUnit) == (Decimal("1.5"), "Million Tokens")
    assert (row.BilledCost, row.ContractedUnitPrice) == (Decimal("0.6"), Decimal("0.40"))
    assert (row.ListCost, row.ListUnitPrice) == (Decimal("0.9"), Decimal("0.60"))
    assert (row.ResourceId, row.ChargeDescription) == ("science/chat", "Output tokens of alice")
    free = replace(TOKENS, price=Decimal(0))
    assert focus_rows([ChargeLine(free, 1_500_000, 0)], BILLING) == []


def test_a_share_is_its_own_sku_and_below_0_for_who_is_relieved() -> None:
    share = replace(
        TOKENS,
        user="-",
        gpu_types=("1g.10gb",),
        kind="share",
        meter="slice-seconds",
        price=Decimal("0.36"),
        list_price=None,
    )
    (row,) = focus_rows([ChargeLine(share, -3_600_000, -360_000)], BILLING)
    assert (row.SkuId, row.BilledCost, row.ListCost) == (
        *("share", Decimal("-0.36"), Decimal("-0.36")),
    )
    assert (row.ConsumedQuantity, row.PricingUnit) == (-3600, "Slice-Hours")
    assert row.ChargeDescription == "Shares of a service's hours"


def test_joules_have_a_row_in_kilowatt_hours() -> None:
    energy = replace(
        TOKENS, kind="energy", meter="millijoules", owner="", price=Decimal("0.3"), list_price=None
    )
    (row,) = focus_rows([ChargeLine(energy, 9_000_000_000, 750_000)], BILLING)
    assert (row.SkuId, row.PricingQuantity, row.PricingUnit) == ("kwh", Decimal("2.5"), "kWh")
    assert (row.BilledCost, row.ListCost) == (Decimal("0.75"), Decimal("0.75"))
    assert row.ChargeDescription == "Energy of alice's jobs"
